"""Rows that ClickHouse refuses go to `reduce_err`, fast; the others are one insert with the range's token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kmr.errors import StrategyError
from kmr.sinks.clickhouse import inserts

from .writing import OFFSETS, OpenWriter, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable, Proxy


async def test_thirty_thousand_rows_that_violate_constraints_take_seconds_and_one_insert(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    checks = "CONSTRAINT `c x` CHECK amount >= 0, CONSTRAINT named CHECK name != 'it\\'s'"
    table = create_table(f"{OFFSETS}, `amount` Float64, `name` LowCardinality(String), {checks}")
    writer = await open_writer(table, url=proxy.url)
    amounts = [1.0 if n % 12 == 0 else -1.0 for n in range(32_768)]
    names = ["it's" if n % 24 == 0 else "x" for n in range(32_768)]
    began = time.monotonic()
    result = await flush(writer, rows(0, 32_768, amount=amounts, name=names))
    assert time.monotonic() - began < 180, "the aim is 10 s, on a quiet machine"
    kept = [n for n in range(32_768) if n % 24 == 12]
    assert written(client, table) == kept
    assert poisoned_offsets(result) == sorted(set(range(32_768)) - set(kept))
    assert reasons(result)[0] == "constraint `named` (name != 'it\\'s'): name = \"it's\""
    assert reasons(result)[1] == "constraint `c x` (amount >= 0): amount = -1.0"
    assert set(proxy.tokens) == {"g:topic:0:0-32767"}, "what is left has the token of the range"


async def test_a_default_that_raises_refuses_its_row(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(
        OFFSETS + ", `raw` String, `n` Array(UInt8) DEFAULT CAST(raw AS Array(UInt8))"
    )
    writer = await open_writer(table)
    result = await flush(writer, rows(0, 5, raw=["[1]", "[1]", "[1,x]", "[1]", "[]"]))
    assert poisoned_offsets(result) == [2]
    assert "Cannot read array from text" in reasons(result)[0]
    assert written(client, table) == [0, 1, 3, 4]


async def test_thousands_of_rows_of_which_no_condition_is_known_are_divided_so_many_times_only(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inserts, "_MOST_REFUSED", 20)
    table = create_table(
        OFFSETS
        + ", `raw` String, `n` Array(UInt32) DEFAULT arrayMap(x -> x, CAST(raw AS Array(UInt32)))"
    )
    writer = await open_writer(table, url=proxy.url)
    good = set(range(5_000, 5_692))
    raw = [f"[{n}]" if n in good else f"[{n}x" for n in range(8_192)]
    result = await flush(writer, rows(0, 8_192, raw=raw))
    assert len(proxy.tokens) < 300
    refused = poisoned_offsets(result)
    assert sorted(refused + written(client, table)) == list(range(8_192)), "each has one outcome"
    assert 7_500 <= len(refused) < 7_630, "beside good rows at the end of a section"
    together = [each for each in reasons(result) if "not tried alone: too many are refused" in each]
    assert together
    assert all("Cannot read array from text" in each for each in together)
    first = len(proxy.tokens)
    assert poisoned_offsets(await flush(writer, rows(0, 8_192, raw=raw))) == refused, "repeated"
    assert proxy.tokens[first:] == proxy.tokens[:first]


async def test_each_good_row_is_written_where_some_are_refused_everywhere(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(
        OFFSETS + ", `raw` String, `n` Array(UInt32) DEFAULT CAST(raw AS Array(UInt32))"
    )
    writer = await open_writer(table)
    raw = [f"[{n}x" if n % 16 == 5 else f"[{n}]" for n in range(400)]
    result = await flush(writer, rows(0, 400, raw=raw))
    assert poisoned_offsets(result) == list(range(5, 400, 16))
    assert len(written(client, table)) == 400 - 25


async def test_a_set_up_that_refuses_every_row_ends_the_worker(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(
        OFFSETS
        + ", `n` Array(UInt8) DEFAULT CAST(substring('[x', 1, 2 + offset * 0) AS Array(UInt8))"
    )
    writer = await open_writer(table)
    assert poisoned_offsets(await flush(writer, rows(0, 1))) == [0], "one is a letter"
    with pytest.raises(
        StrategyError, match=r"all of the last 151 rows were refused for one reason"
    ):
        await flush(writer, rows(1, 150))
    writer = await open_writer(table)
    with pytest.raises(StrategyError, match="all of the last 3000 rows were refused for one"):
        await flush(writer, rows(1, 3_000))
    assert written(client, table) == []


async def test_a_block_with_too_many_partitions_is_divided(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS, engine="MergeTree ORDER BY tuple() PARTITION BY offset % 150")
    writer = await open_writer(table)
    assert poisoned_offsets(await flush(writer, rows(0, 150))) == []
    assert written(client, table) == list(range(150))
