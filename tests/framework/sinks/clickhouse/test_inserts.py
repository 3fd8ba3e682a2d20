"""How refused rows are found among the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kmr.record import Range
from kmr.reducers.reducer import Flushed, Retry

from .writing import OFFSETS, OpenWriter, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable, Proxy


async def test_values_that_do_not_fit_are_poison_and_the_rest_is_written(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `age` UInt8, `name` String, `note` Nullable(String)")
    writer = await open_writer(table)
    first = rows(0, 4, age=[1, 300, 3, 4], name=["a", "b", None, "d"], note=[None] * 4)
    second = rows(4, 2, age=["5", "six"], name=["e", "f"], note=["x", "y"])
    result = await flush(writer, first, second)
    assert written(client, table) == [0, 3, 4]
    assert poisoned_offsets(result) == [1, 2, 5]
    assert reasons(result) == [
        "column age (UInt8) cannot hold 300",
        "column name (String) cannot be null",
        "column age (UInt8) cannot hold 'six'",
    ]
    assert isinstance(result, Flushed)
    assert result.poisoned[0].rows.ranges == (Range("topic", 0, 1, 1),)
    assert result.poisoned[0].rows.table.column("age").to_pylist() == [300]


async def test_all_rows_of_a_flush_can_be_poison(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS + ", `x` UInt8")
    writer = await open_writer(table, url=proxy.url)
    result = await flush(writer, rows(0, 50, x=[-1] * 50))
    assert poisoned_offsets(result) == list(range(50))
    assert reasons(result) == ["column x (UInt8) cannot hold -1"]
    assert proxy.tokens == []


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bad=st.sets(st.integers(0, 63), max_size=5), cast=st.sets(st.integers(0, 63), max_size=5))
async def test_rows_that_the_server_refuses_are_found_and_every_other_row_is_written_once(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    bad: set[int],
    cast: set[int],
) -> None:
    table = create_table(OFFSETS + ", `x` Int32, `address` IPv6, CONSTRAINT odd CHECK x != 7")
    writer = await open_writer(table)
    values = [7 if n in bad and n % 2 else 1 for n in range(64)]
    addresses = ["nowhere" if n in bad and not n % 2 else "::1" for n in range(64)]
    for n in cast:
        values[n] = 2**31
    result = await flush(
        writer,
        rows(0, 40, x=values[:40], address=addresses[:40]),
        rows(40, 24, x=values[40:], address=addresses[40:]),
    )
    assert poisoned_offsets(result) == sorted(bad | cast)
    assert written(client, table) == [n for n in range(64) if n not in bad | cast]


async def test_an_interrupted_search_for_poison_continues_where_it_was(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS + ", CONSTRAINT small CHECK offset != 5", window=0)
    writer = await open_writer(table, url=proxy.url)
    whole = rows(0, 16)
    for healthy in (
        3,
        2,
    ):  # each attempt gets so many requests through, then the server is overloaded
        proxy.faults = [*[""] * healthy, 745]
        assert isinstance(await flush(writer, whole), Retry)
    result = await flush(writer, whole)
    assert poisoned_offsets(result) == [5]
    assert "is violated" in reasons(result)[0]
    assert written(client, table) == [n for n in range(16) if n != 5]
    refused = [token for token in proxy.tokens if proxy.tokens.count(token) > 1]
    assert len(refused) == 4, "only the two overloaded requests are repeated"
