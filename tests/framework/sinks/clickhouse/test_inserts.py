"""How refused rows are found among the others, and how a table gets the columns that it lacks."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kmr.delivery.announcement import Announcement
from kmr.record import Range
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import Write
from kmr.sinks.clickhouse import inserts
from tests.examples import examples

from ...flushes import Flushed, outcome
from .writing import OFFSETS, OpenWriter, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.record import Rows
    from kmr.sinks.clickhouse.writer import ClickHouseWriter
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
    assert result.refusals[0].rows.ranges == (Range("topic", 0, 1, 2),)
    assert result.refusals[0].rows.table.column("age").to_pylist() == [300, 3]


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
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
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
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def none_found(*_arguments: Any) -> dict[int, Any]:
        return {}

    monkeypatch.setattr(inserts, "raising", none_found)  # so that the rows are divided
    table = create_table(OFFSETS + ", `x` UInt8 DEFAULT throwIf(offset = 5)", window=0)
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
    assert "throwIf" in reasons(result)[0]
    assert written(client, table) == [n for n in range(16) if n != 5]
    refused = [token for token in proxy.tokens if proxy.tokens.count(token) > 1]
    assert len(refused) == 4, "only the two overloaded requests are repeated"


async def test_new_columns_of_the_rows_are_added_to_the_table_once_by_all_writers(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS)
    writers = [await open_writer(table, evolve="add") for _ in range(4)]
    results: list[Flushed | Retry] = []

    async def write(at: int, writer: ClickHouseWriter) -> None:
        part = rows(
            0, 2, partition=at, colour=["red", None], tags=[["a"], None], **{f"c{at}": [at, 1]}
        )
        results.append(await flush(writer, part, rows(2, 1, partition=at, empty=[None])))

    async with anyio.create_task_group() as tasks:
        for at, writer in enumerate(writers):
            tasks.start_soon(write, at, writer)
    assert results == [Flushed()] * 4
    described = {row[0]: row[1] for row in client.query(f"DESCRIBE TABLE {table}").result_rows}
    assert described == {
        "partition": "UInt32",
        "offset": "UInt64",
        "colour": "Nullable(String)",
        "tags": "Array(Nullable(String))",
        **{f"c{at}": "Nullable(Int64)" for at in range(4)},
    }, "a column without a value has no type yet"
    found = client.query(
        f"SELECT offset, colour, tags, c2 FROM {table} WHERE partition = 2"
    ).result_rows
    assert sorted(map(tuple, found)) == [
        (0, "red", ["a"], 2),
        (1, None, [], 1),
        (2, None, [], None),
    ]


async def test_a_new_field_of_a_nested_object_is_not_written_and_named_once_in_the_log(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `at` Tuple(zip String, geo Array(Tuple(lat Float64)))")
    writer = await open_writer(table, evolve="add")
    old = {"zip": "1", "geo": [{"lat": 1.0}]}
    new = {"zip": "2", "geo": [{"lat": 2.0, "lon": 3.0}], "city": "Bern"}
    with capture_logs() as logs:
        for first, value in enumerate((old, new, new)):
            assert await flush(writer, rows(first, 1, at=[value])) == Flushed()
    found = client.query(f"SELECT at FROM {table} ORDER BY offset").result_rows
    assert [row[0]["geo"] for row in found] == [[{"lat": 1.0}], [{"lat": 2.0}], [{"lat": 2.0}]]
    (warning,) = [log for log in logs if "columns" in log]
    assert warning["columns"] == ["at.city", "at.geo[].lon"]

    # What the documentation says: the table is altered by hand, which rewrites the column.
    client.command(
        f"ALTER TABLE {table} MODIFY COLUMN at "
        "Tuple(zip String, geo Array(Tuple(lat Float64)), city Nullable(String))"
    )
    restarted = await open_writer(table, evolve="add")
    assert await flush(restarted, rows(3, 1, at=[new])) == Flushed()
    assert await flush(restarted, rows(4, 1, at=[old])) == Flushed()
    found = client.query(f"SELECT at FROM {table} ORDER BY offset").result_rows
    assert [row[0]["city"] for row in found] == [None, None, None, "Bern", None]


@pytest.mark.parametrize("name", ["", "a\nb", "null"])
async def test_a_new_column_with_a_name_in_it_that_clickhouse_lacks_refuses_its_rows(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, name: str
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table, evolve="add")
    result = await flush(
        writer, rows(0, 1), rows(1, 1, new=[{"a": [{name: 1}]}]), rows(2, 1, b=[7])
    )
    assert poisoned_offsets(result) == [1]
    assert "has no column new" in reasons(result)[0]
    assert written(client, table) == [0, 2]


async def test_rows_that_do_not_fit_an_evolving_table_are_poison_with_the_reason(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `n` UInt8, `tags` Array(String)")
    writer = await open_writer(table, evolve="add")
    result = await flush(
        writer,
        rows(0, 1, n=[1], tags=[["a"]]),
        rows(1, 1, n=[[2]], tags=[["a"]]),
        rows(2, 1, n=[3], tags=["text"]),
        rows(3, 1, tags=[["a"]]),
        rows(4, 1, n=[4], tags=[["a"]], new=[1]),
        rows(5, 2, n=[5, 5], tags=[["a"], ["a"]], new=[2, 3]),
        rows(7, 1, n=[6], tags=[["a"]], new=["text"], schema_id=[42]),
    )
    assert written(client, table) == [0, 4, 5, 6]
    assert poisoned_offsets(result) == [1, 2, 3, 7]
    assert [
        reason.replace(table, "t").partition(": list<item")[0] for reason in reasons(result)
    ] == [
        "column n (UInt8) cannot hold list<item: int64>",
        "column tags (Array(String)) cannot hold string: string is not a list",
        "column n (UInt8) cannot be null",
        "column new (Nullable(Int64)) cannot hold 'text' (schema id 42)",
    ]
    assert poisoned_offsets(await flush(writer, rows(8, 1))) == [8]


async def test_an_alter_that_fails_for_now_is_repeated_and_one_without_an_effect_is_an_error(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS + ", `made` UInt8 MATERIALIZED 1")
    writer = await open_writer(table, url=proxy.url, evolve="add")
    proxy.alter_faults = [341, 517, "lose"]
    for _ in range(3):
        assert isinstance(await flush(writer, rows(0, 2, new=["a", "b"])), Retry)
    assert await outcome(writer) == Flushed()
    assert written(client, table, "new") == ["a", "b"]
    assert proxy.tokens == ["g:topic:0:0-1"]
    assert "has no column made to write to" in reasons(await flush(writer, rows(2, 1, made=[2])))[0]


async def test_new_columns_under_lost_answers_and_kills_lose_and_double_nothing(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    """Each change has a column of its own; a writer whose flush is unanswered is replaced by another."""
    table = create_table(OFFSETS)
    random = Random(11)
    faults: list[str | int] = ["lose", 252]
    options: dict[str, Any] = {"url": proxy.url, "evolve": "add", "delivery": "exactly-once"}
    expected: dict[tuple[int, int], int] = {}

    async def work(partition: int) -> None:
        writer = await open_writer(table, **options)
        for at in range(12):
            change, count = 12 * partition + at, random.randint(1, 4)
            first = 10 * at
            expected.update({(partition, first + row): change for row in range(count)})
            announcement = Announcement(
                first, first + count - 1, f"g:topic:{partition}:{first}-{first + count - 1}", "w"
            )
            part = rows(first, count, partition=partition, **{f"c{change}": [change] * count})
            proxy.faults += random.sample(faults, random.randint(0, 1))
            proxy.alter_faults += ["lose"] * random.randint(0, 1)
            replayed = False
            while not await deliver(writer, part, announcement, replayed=replayed):
                replayed = True
                await writer.close()
                writer = await open_writer(table, **options)

    async with anyio.create_task_group() as tasks:
        for partition in range(3):
            tasks.start_soon(work, partition)
    changes = ", ".join(f"c{change}" for change in range(36))
    found = client.query(f"SELECT partition, offset, coalesce({changes}) FROM {table}").result_rows
    assert len(found) == len(expected)
    assert {(partition, offset): change for partition, offset, change in found} == expected


async def deliver(
    writer: ClickHouseWriter, part: Rows, announcement: Announcement, *, replayed: bool
) -> bool:
    """Flush an announced range once; False if its outcome is unknown."""
    writer.reset()
    writer.add(part)
    result = await outcome(writer, Write(announcement, repeated=replayed))
    assert isinstance(result, Retry) or result == Flushed()
    return not isinstance(result, Retry)


async def test_a_row_that_is_put_off_each_time_is_refused_and_its_neighbours_are_written(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    takes_memory = "length(repeat('much memory', if(x = 3, 20_000_000, 1)))"
    table = create_table(f"{OFFSETS}, `x` UInt8, `y` UInt8 DEFAULT {takes_memory}")
    writer = await open_writer(table, settings={"max_memory_usage": "100000000"})
    for _ in range(6):
        assert isinstance(await flush(writer, rows(0, 10, x=range(10))), Retry)
    result = await flush(writer, rows(0, 10, x=range(10)))
    assert poisoned_offsets(result) == [3]
    assert "each of 6 attempts; other rows are written" in reasons(result)[0]
    assert written(client, table) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    for _ in range(12):  # none of these is written: the server may be the reason
        assert isinstance(await flush(writer, rows(10, 3, x=[3, 3, 3])), Retry)


@pytest.mark.parametrize(
    ("before", "after", "values", "refused"),
    [
        ("Int32", "Int8", [300, 2], "column x (Int8) cannot hold 300"),
        ("DateTime64(3)", "DateTime", ["2200-01-01", "2026-01-01"], "cannot hold '2200-01-01'"),
        ("Decimal(9, 4)", "Decimal(9, 2)", ["1.2345", "1.5"], "cannot hold '1.2345'"),
        ("UInt64", "Float32", [16_777_217, 3], "column x (Float32) cannot hold 16777217"),
    ],
)
async def test_a_table_that_is_altered_to_hold_less_gets_no_value_that_it_would_change(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    values: list[Any],
    refused: str,
) -> None:
    monkeypatch.setattr(inserts, "_LOOK_AGAIN", 0.0)
    table = create_table(f"{OFFSETS}, `x` {before}")
    writer = await open_writer(table)
    assert await flush(writer, rows(0, 2, x=values)) == Flushed()
    client.command(f"TRUNCATE TABLE {table}")
    client.command(f"ALTER TABLE {table} MODIFY COLUMN `x` {after}")
    result = await flush(writer, rows(2, 2, x=values))
    assert poisoned_offsets(result) == [2]
    assert refused in reasons(result)[0]
    assert written(client, table) == [3]
