"""ClickHouseWriter against the embedded ClickHouse: what is written, what is refused, what is repeated."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from framework.errors import SinkError, StrategyError
from framework.record import Range, Rows
from framework.reducer import Context, Empty, Flushed, FlushResult, Retry
from framework.sinks.clickhouse.writer import ClickHouseWriter

if TYPE_CHECKING:
    from pathlib import Path

    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable, Proxy

OFFSETS = "`partition` UInt32, `offset` UInt64"
OpenWriter = Callable[..., Awaitable[ClickHouseWriter]]


def rows(first: int, count: int, *, partition: int = 0, **columns: Any) -> Rows:
    """Rows of consecutive offsets of one partition; `columns` besides `partition` and `offset`."""
    offsets = np.arange(first, first + count)
    table = pa.table({"partition": np.full(count, partition), "offset": offsets, **columns})
    return Rows(table, (Range("topic", partition, first, first + count - 1),), offsets)


def poisoned_offsets(result: FlushResult) -> list[int]:
    assert isinstance(result, Flushed)
    offsets: list[int] = []
    for poisoned in result.poisoned:
        assert poisoned.rows.offsets is not None
        offsets += poisoned.rows.offsets.tolist()
    return sorted(offsets)


def reasons(result: FlushResult) -> list[str]:
    assert isinstance(result, Flushed)
    return [poisoned.reason for poisoned in result.poisoned]


async def flush(writer: ClickHouseWriter, *added: Rows) -> FlushResult:
    """A round as the reduce stage makes it."""
    writer.reset()
    for part in added:
        writer.add(part)
    return await writer.flush()


def written(client: Client, table: str, column: str = "offset") -> list[Any]:
    query = f"SELECT `{column}` FROM {table} ORDER BY `{column}`"
    return [row[0] for row in client.query(query).result_rows]


@pytest.fixture
async def open_writer(clickhouse_url: str, context: Context) -> AsyncIterator[OpenWriter]:
    """Opens writers, as a stage does, and closes them after the test."""
    async with AsyncExitStack() as stack:

        async def open_writer(table: str, **arguments: Any) -> ClickHouseWriter:
            arguments.setdefault("url", clickhouse_url)
            writer = ClickHouseWriter(table, **arguments).spawn()
            stack.push_async_callback(writer.close)
            await writer.open(context)
            return writer

        yield open_writer


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


async def test_an_interrupted_search_for_poison_goes_on_where_it_was(
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


async def test_a_missing_table_is_an_error_that_shows_how_to_create_one(
    open_writer: OpenWriter,
) -> None:
    with pytest.raises(StrategyError, match=r"no table default\.nowhere.*CREATE TABLE"):
        await open_writer("nowhere")


async def test_a_database_can_be_named_in_the_table_the_url_or_an_argument(
    client: Client, clickhouse_url: str, open_writer: OpenWriter
) -> None:
    client.command("CREATE DATABASE IF NOT EXISTS other")
    client.command("DROP TABLE IF EXISTS other.t")
    client.command(
        f"CREATE TABLE other.t ({OFFSETS}) ENGINE = MergeTree ORDER BY offset "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    for first, (table, arguments) in enumerate(
        [("other.t", {}), ("t", {"url": f"{clickhouse_url}/other"}), ("t", {"database": "other"})]
    ):
        assert await flush(await open_writer(table, **arguments), rows(first, 1)) == Flushed(
            poisoned=[]
        )
    assert written(client, "other.t") == [0, 1, 2]
    with pytest.raises(SinkError, match="nosuch does not exist"):
        await open_writer("nosuch.t")


async def test_a_server_that_does_not_answer_is_named_without_the_password(
    open_writer: OpenWriter,
) -> None:
    with pytest.raises(SinkError, match=r"http://127\.0\.0\.1:1 did not answer") as raised:
        await open_writer("t", url="http://user:secret@127.0.0.1:1", connect_timeout=0.01)
    assert "secret" not in str(raised.value)


async def test_too_small_a_deduplication_window_is_told_with_the_statement_that_mends_it(
    clickhouse_url: str, create_table: CreateTable, open_writer: OpenWriter, context: Context
) -> None:
    with capture_logs() as logs:
        await open_writer(create_table(OFFSETS))
        assert logs == []
        small = create_table(OFFSETS, window=5)
        writer = ClickHouseWriter(small, url=clickhouse_url)
        for copy in (writer.spawn(), writer.spawn()):
            await copy.open(context)
            await copy.close()
        await open_writer(create_table(OFFSETS, engine="Memory"))
    advice = [entry["advice"] for entry in logs]
    assert len(advice) == 2, "the copies of a stage warn once"
    assert f"ALTER TABLE `default`.`{small}` MODIFY SETTING" in advice[0]
    assert "non_replicated_deduplication_window = 10000" in advice[0]
    assert "Memory" in advice[1]


async def test_the_url_comes_from_the_environment(
    clickhouse_url: str,
    create_table: CreateTable,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KMR_CLICKHOUSE_URL", clickhouse_url)
    writer = ClickHouseWriter(create_table(OFFSETS))
    await writer.open(context)
    assert await flush(writer, rows(0, 1)) == Flushed(poisoned=[])
    await writer.close()


async def test_the_embedded_engine_needs_no_server(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "data"
    with clickhouse_connect.get_client(interface="chdb", path=str(path)) as client:
        client.command(
            f"CREATE TABLE t ({OFFSETS}, `x` UInt8) ENGINE = MergeTree ORDER BY offset "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        writers = [ClickHouseWriter("t", url=f"chdb://{path}") for _ in range(2)]
        for writer in writers:
            await writer.open(context)
            result = await flush(
                writer, rows(0, 3, x=[1, 300, 3]), rows(0, 2, partition=1, x=[1, 2])
            )
            assert poisoned_offsets(result) == [1]
        for writer in writers:
            await writer.close()
        assert written(client, "t") == [0, 0, 1, 2]


async def test_a_directory_that_another_process_has_open_is_refused_by_name(
    clickhouse_url: str, client: Client, context: Context
) -> None:
    path = client.command("SELECT path FROM system.disks WHERE name = 'default'")
    writer = ClickHouseWriter("t", url=f"chdb://{path}")
    with pytest.raises(
        SinkError, match=r"is in use by process \d+: .*KMR_CLICKHOUSE_URL"
    ) as raised:
        await writer.open(context)
    assert f"process {os.getpid()}" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": ""}, "name of a table"),
        ({"url": "ftp://user:secret@host"}, "not ftp://host"),
        ({"settings": {"async_insert": 1}}, "sets async_insert itself"),
        ({"concurrency": 0}, "at least 1"),
        ({"timeout": 0}, "above 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        ClickHouseWriter(**{"table": "t", **arguments})


async def test_a_writer_that_was_not_opened_says_so() -> None:
    writer = ClickHouseWriter("t")
    writer.add(rows(0, 1))
    with pytest.raises(SinkError, match="before it was opened"):
        await writer.flush()


async def test_a_setting_that_the_server_cannot_read_is_told_at_start(
    open_writer: OpenWriter,
) -> None:
    with pytest.raises(SinkError, match="'many'"):
        await open_writer("t", settings={"max_threads": "many"})
