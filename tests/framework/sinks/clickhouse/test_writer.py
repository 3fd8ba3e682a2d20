"""ClickHouseWriter against the embedded ClickHouse: what is written, what is refused, what is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from framework.errors import StrategyError
from framework.record import Range, Rows
from framework.reducer import Empty, Flushed, Retry

from .writing import OFFSETS, OpenWriter, flush, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable, Proxy


async def test_rows_are_written_and_nothing_is_written_without_rows(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `timestamp` DateTime")
    writer = await open_writer(table)
    assert await flush(writer) == Empty()
    stamps = pa.array([1_700_000_000_123_456] * 3, pa.timestamp("us", "UTC"))
    assert await flush(writer, rows(5, 3, timestamp=stamps)) == Flushed(poisoned=[])
    assert written(client, table) == [5, 6, 7]
    assert (
        client.command(f"SELECT DISTINCT toUnixTimestamp(timestamp) FROM {table}") == 1_700_000_000
    )


async def test_each_partition_is_one_insert_with_a_token_of_its_whole_span(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table, url=proxy.url)
    await flush(writer, rows(0, 10), rows(10, 5), rows(100, 3, partition=1))
    assert sorted(proxy.tokens) == ["g:topic:0:0-14", "g:topic:1:100-102"]
    assert proxy.settings["async_insert"] == "0"
    assert len(written(client, table)) == 18


async def test_after_a_lost_answer_only_that_insert_is_sent_again_and_no_row_is_doubled(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table, url=proxy.url, concurrency=1)
    proxy.faults = ["lose"]
    result = await flush(writer, rows(0, 10), rows(0, 5, partition=1))
    assert isinstance(result, Retry)
    assert table in result.reason
    assert await writer.flush() == Flushed(poisoned=[])
    lost, *others = proxy.tokens
    assert sorted(others) == sorted({"g:topic:0:0-9", "g:topic:1:0-4"})
    assert others.count(lost) == 1
    assert client.command(f"SELECT count() FROM {table}") == 15


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_rows_that_the_server_lost_in_a_crash_are_written_again_though_it_knows_their_token(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    delivery: str,
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table, url=proxy.url, delivery=delivery)
    proxy.faults = ["forget"]
    assert isinstance(await flush(writer, rows(0, 10)), Retry)
    assert written(client, table) == []
    assert await writer.flush() == Flushed(poisoned=[])
    assert written(client, table) == list(range(10))
    assert proxy.tokens == ["g:topic:0:0-9", "g:topic:0:0-9", "g:topic:0:0-9/again-1"]


async def test_what_was_written_is_remembered_when_the_stage_adds_the_rows_anew(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS, window=0)  # nothing but the writer's memory prevents a second row
    writer = await open_writer(table, url=proxy.url, concurrency=1)
    proxy.faults = [202, 202]
    first, second = rows(0, 10), rows(0, 5, partition=1)
    assert isinstance(await flush(writer, first, second), Retry)
    proxy.faults = [202]
    assert isinstance(await writer.flush(), Retry)
    assert await flush(writer, first, second) == Flushed(
        poisoned=[]
    )  # with a reset, as for a revoke
    assert client.command(f"SELECT count() FROM {table}") == 15


async def test_the_same_range_written_by_another_writer_is_not_doubled(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS)
    for _ in range(2):
        writer = await open_writer(table)
        assert await flush(writer, rows(0, 100)) == Flushed(poisoned=[])
    assert client.command(f"SELECT count() FROM {table}") == 100


async def test_a_request_that_hangs_ends_in_a_retry(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table, url=proxy.url, timeout=0.2)
    proxy.faults = ["hang"]
    result = await flush(writer, rows(0, 3))
    assert isinstance(result, Retry)
    assert "no answer in time" in result.reason
    writer = await open_writer(table, url=proxy.url)
    assert await flush(writer, rows(0, 3)) == Flushed(poisoned=[])
    assert written(client, table) == [0, 1, 2]


@pytest.mark.parametrize("code", [252, 241, 242, 159, 202, 745])
async def test_a_server_at_its_limit_is_tried_again_later(
    create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy, code: int
) -> None:
    writer = await open_writer(create_table(OFFSETS), url=proxy.url)
    proxy.faults = [code]
    result = await flush(writer, rows(0, 3))
    assert isinstance(result, Retry)
    assert "a fault of the test" in result.reason
    assert result.after == (5.0 if code == 252 else None)
    assert await writer.flush() == Flushed(poisoned=[])


async def test_a_failing_materialized_view_stops_instead_of_doubling_rows(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table, copy = create_table(OFFSETS), create_table(OFFSETS)
    client.command(
        f"CREATE MATERIALIZED VIEW {copy}_mv TO {copy} AS "
        f"SELECT partition, offset + throwIf(offset = 3) AS offset FROM {table}"
    )
    writer = await open_writer(table)
    try:
        with pytest.raises(StrategyError, match="pushing to view"):
            await flush(writer, rows(0, 8))
        assert client.command(f"SELECT count() = uniqExact(offset) FROM {table}") == 1
    finally:
        client.command(f"DROP TABLE {copy}_mv")


async def test_a_column_that_the_table_lacks_is_an_error_unless_it_is_ignored(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS)
    more = rows(0, 2, colour=["red", "blue"])
    writer = await open_writer(table)
    with pytest.raises(StrategyError, match=rf"default\.{table} has no column colour"):
        await flush(writer, more)
    writer = await open_writer(table, extra_columns="ignore")
    assert await flush(writer, more) == Flushed(poisoned=[])
    assert written(client, table) == [0, 1]


async def test_a_column_that_the_rows_lack_needs_a_default(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `a` UInt8 DEFAULT 42, `b` Nullable(UInt8), `c` UInt8 ALIAS a")
    assert await flush(await open_writer(table), rows(0, 1)) == Flushed(poisoned=[])
    assert client.query(f"SELECT a, b FROM {table}").result_rows == [(42, None)]
    table = create_table(OFFSETS + ", `needed` UInt8")
    with pytest.raises(StrategyError, match="no column needed, which has no DEFAULT"):
        await flush(await open_writer(table), rows(0, 1))
    writer = await open_writer(table, columns=["partition", "offset"])
    assert await flush(writer, rows(0, 1, other=["x"])) == Flushed(poisoned=[])


async def test_null_becomes_the_default_of_a_column_that_has_one(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `a` UInt8 DEFAULT 42")
    assert await flush(await open_writer(table), rows(0, 2, a=[1, None])) == Flushed(poisoned=[])
    assert written(client, table, "a") == [1, 42]


async def test_a_type_that_cannot_become_that_of_the_column_stops(
    create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `x` Array(UInt8)")
    with pytest.raises(
        StrategyError, match=r"column x of .* is Array\(UInt8\), but the rows have string"
    ):
        await flush(await open_writer(table), rows(0, 1, x=["text"]))


async def test_a_table_that_is_altered_while_rows_flow_is_read_again(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `x` UInt8")
    writer = await open_writer(table)
    assert await flush(writer, rows(0, 1, x=[1])) == Flushed(poisoned=[])
    client.command(f"ALTER TABLE {table} MODIFY COLUMN x UInt16, ADD COLUMN y String")
    assert await flush(writer, rows(1, 1, x=[300], y=["new"])) == Flushed(poisoned=[])
    client.command(f"ALTER TABLE {table} DROP COLUMN y")
    with pytest.raises(StrategyError, match="has no column y"):
        await flush(writer, rows(2, 1, x=[1], y=["gone"]))
    assert written(client, table, "x") == [1, 300]


async def test_a_table_that_is_dropped_while_rows_flow_stops(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table)
    client.command(f"DROP TABLE {table}")
    with pytest.raises(StrategyError, match=f"There is no table default.{table}"):
        await flush(writer, rows(0, 1))


async def test_rows_of_several_partitions_at_once_have_a_token_over_all_of_them(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table("`carrier` String, `flights` UInt8")
    writer = await open_writer(table, url=proxy.url)
    made = pa.table({"carrier": ["AA", "UA", "DL"], "flights": [3, 400, 500]})
    ranges = (Range("topic", 0, 0, 9), Range("topic", 1, 5, 7))
    result = await flush(writer, Rows(made, ranges))
    assert proxy.tokens == ["g:topic:0:0-9,topic:1:5-7"]
    assert written(client, table, "carrier") == ["AA"]
    assert isinstance(result, Flushed)
    assert [p.rows.ranges for p in result.poisoned] == [ranges]
    assert reasons(result) == ["column flights (UInt8) cannot hold 400 (and 1 more rows)"]


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
async def test_blocks_may_be_compressed(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, compression: str | None
) -> None:
    table = create_table(OFFSETS + ", `text` String")
    writer = await open_writer(table, compression=compression)
    await flush(writer, rows(0, 1000, text=["the same again"] * 1000))
    assert client.command(f"SELECT countIf(text = 'the same again') FROM {table}") == 1000
