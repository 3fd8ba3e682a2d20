"""ClickHouseWriter against the embedded ClickHouse: what it refuses, what it writes, what it repeats."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import pyarrow as pa
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Context, Retry
from kmr.sinks.clickhouse.writer import ClickHouseWriter
from tests.framework.sinks.conftest import Proxy, serving

from ...flushes import Flushed, outcome
from .writing import (
    OFFSETS,
    OpenWriter,
    flush,
    poisoned_offsets,
    reasons,
    rows,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path

    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable


async def test_rows_are_written_and_nothing_is_written_without_rows(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `timestamp` DateTime")
    writer = await open_writer(table)
    stamps = pa.array([1_700_000_000_123_456] * 3, pa.timestamp("us", "UTC"))
    assert await flush(writer, rows(5, 3, timestamp=stamps)) == Flushed()
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
    assert await outcome(writer) == Flushed()
    lost, *others = proxy.tokens
    assert sorted(others) == sorted({"g:topic:0:0-9", "g:topic:1:0-4"})
    assert others.count(lost) == 1
    assert client.command(f"SELECT count() FROM {table}") == 15


async def test_written_rows_are_remembered_when_the_stage_adds_them_again(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS, window=0)  # nothing but the writer's memory prevents a second row
    writer = await open_writer(table, url=proxy.url, concurrency=1)
    proxy.faults = [202, 202]
    first, second = rows(0, 10), rows(0, 5, partition=1)
    assert isinstance(await flush(writer, first, second), Retry)
    proxy.faults = [202]
    assert isinstance(await outcome(writer), Retry)
    assert await flush(writer, first, second) == Flushed()  # with a reset, as for a revoke
    assert client.command(f"SELECT count() FROM {table}") == 15


async def test_the_same_range_written_by_another_writer_is_not_doubled(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS)
    for _ in range(2):
        writer = await open_writer(table)
        assert await flush(writer, rows(0, 100)) == Flushed()
    assert client.command(f"SELECT count() FROM {table}") == 100


async def test_a_request_that_hangs_ends_in_a_retry(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table, url=proxy.url, timeout=1.0)
    proxy.faults = ["hang"]
    result = await flush(writer, rows(0, 3))
    assert isinstance(result, Retry)
    assert "no answer in time" in result.reason
    writer = await open_writer(table, url=proxy.url)
    assert await flush(writer, rows(0, 3)) == Flushed()
    assert written(client, table) == [0, 1, 2]


@pytest.mark.parametrize(
    ("window", "fault", "doubles"),
    [(0, "lose", True), (0, 241, True), (0, 252, False), (10_000, "lose", False)],
)
async def test_a_retry_says_whether_the_table_may_get_its_rows_twice(
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    window: int,
    fault: str | int,
    *,
    doubles: bool,
) -> None:
    writer = await open_writer(create_table(OFFSETS, window=window), url=proxy.url)
    proxy.faults = [fault]
    result = await flush(writer, rows(0, 3))
    assert isinstance(result, Retry)
    assert result.may_double is doubles


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
    assert await outcome(writer) == Flushed()


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
        with pytest.raises(StrategyError, match=r"pushing to view.*correct the view"):
            await flush(writer, rows(0, 8))
        assert client.command(f"SELECT count() = uniqExact(offset) FROM {table}") == 1
    finally:
        client.command(f"DROP TABLE {copy}_mv")


async def test_a_table_that_is_altered_while_rows_flow_is_read_again(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `x` UInt8")
    writer = await open_writer(table)
    assert await flush(writer, rows(0, 1, x=[1])) == Flushed()
    client.command(f"ALTER TABLE {table} MODIFY COLUMN x UInt16, ADD COLUMN y String")
    assert await flush(writer, rows(1, 1, x=[300], y=["new"])) == Flushed()
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


async def test_a_missing_table_is_created_at_start_for_the_columns_of_the_strategy(
    client: Client, clickhouse_url: str, context: Context
) -> None:
    types = {"offset": pa.int64(), "partition": pa.int32(), "text": pa.string()}
    declared = pa.schema([pa.field(name, kind) for name, kind in types.items()])
    context = context.with_sinks(schema_of=lambda _: declared)
    with pytest.raises(
        StrategyError,
        match=r"no table default\.made_at_start\. Create it, or set create=True: CREATE .* `text` Nullable",
    ):
        await ClickHouseWriter("made_at_start", url=clickhouse_url).open(context)
    writer = ClickHouseWriter(
        "made_at_start",
        url=clickhouse_url,
        create=True,
        columns=["partition", "offset"],
        order_by=["offset"],
    )
    try:
        for _ in range(2):
            await writer.open(context)
            assert writer.capabilities.delivery == "exactly-once"
            await writer.close()
        columns, key = client.query(
            "SELECT (SELECT groupArray(name) FROM system.columns WHERE table = 'made_at_start'), sorting_key "
            "FROM system.tables WHERE name = 'made_at_start'"
        ).result_rows[0]
        assert (columns, key) == (["partition", "offset"], "(offset)")
    finally:
        client.command("DROP TABLE IF EXISTS made_at_start")


async def test_a_table_of_columns_that_are_not_declared_cannot_be_created(
    open_writer: OpenWriter,
) -> None:
    with pytest.raises(
        StrategyError, match=r"columns of its rows are not declared, so .* declare them"
    ):
        await open_writer("nowhere", create=True)
    with pytest.raises(StrategyError, match="the rows for nowhere have no column x"):
        await open_writer("nowhere", create=pa.schema([("y", pa.int8())]), columns=["x"])


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
    assert [p.rows.ranges for p in result.refusals] == [ranges]
    assert reasons(result) == [f"column flights (UInt8) cannot hold {n}" for n in (400, 500)]


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
async def test_blocks_may_be_compressed(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, compression: str | None
) -> None:
    table = create_table(OFFSETS + ", `text` String")
    writer = await open_writer(table, compression=compression)
    await flush(writer, rows(0, 1000, text=["the same again"] * 1000))
    assert client.command(f"SELECT countIf(text = 'the same again') FROM {table}") == 1000


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
        assert await flush(await open_writer(table, **arguments), rows(first, 1)) == Flushed()
    assert written(client, "other.t") == [0, 1, 2]
    with pytest.raises(SinkError, match="nosuch does not exist"):
        await open_writer("nosuch.t")


async def test_a_server_that_does_not_answer_is_named_without_the_password(
    open_writer: OpenWriter,
) -> None:
    with pytest.raises(SinkError, match=r"http://127\.0\.0\.1:1 did not answer") as raised:
        await open_writer("t", url="http://user:secret@127.0.0.1:1", connect_timeout=0.01)
    assert "secret" not in str(raised.value)


async def test_the_url_comes_from_the_environment(
    clickhouse_url: str,
    create_table: CreateTable,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KMR_CLICKHOUSE_URL", clickhouse_url)
    writer = ClickHouseWriter(create_table(OFFSETS))
    await writer.open(context)
    assert await flush(writer, rows(0, 1)) == Flushed()
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
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        ClickHouseWriter(**{"table": "t", **arguments})


async def test_a_writer_that_was_not_opened_says_so() -> None:
    writer = ClickHouseWriter("t")
    writer.add(rows(0, 1))
    with pytest.raises(SinkError, match="before it was opened"):
        await outcome(writer)


async def test_a_setting_that_the_server_cannot_read_is_an_error_at_start(
    open_writer: OpenWriter,
) -> None:
    with pytest.raises(SinkError, match="'many'"):
        await open_writer("t", settings={"max_threads": "many"})


def test_options_that_contradict_evolve_are_refused() -> None:
    with pytest.raises(StrategyError, match="evolve must be 'add' or None, not 'drop'"):
        ClickHouseWriter("t", evolve="drop")  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="extra_columns='ignore' leaves out"):
        ClickHouseWriter("t", evolve="add", extra_columns="ignore")
    with pytest.raises(StrategyError, match=r"order_by must be list\[str\] or None, not 'x'"):
        ClickHouseWriter("t", order_by="x")


async def test_a_distributed_table_does_not_evolve(
    create_table: CreateTable, clickhouse_url: str, context: Context
) -> None:
    """The embedded engine has no cluster: a server in front of it says that a table is Distributed."""

    class Cluster(Proxy):
        def forwarded(self, path: str, body: bytes) -> tuple[str, bytes]:
            renamed = body.replace(b"SELECT engine,", b"SELECT 'Distributed' AS engine,")
            return path, renamed

    table = create_table(OFFSETS)
    async with serving(Cluster(clickhouse_url)) as cluster:
        writer = ClickHouseWriter(table, url=cluster.url, evolve="add")
        try:
            with pytest.raises(StrategyError, match="is Distributed, and the tables behind it"):
                await writer.open(context)
        finally:
            await writer.close()


@pytest.mark.parametrize("kind", ["Dynamic", "Variant(Int64, String)", "Nullable(Int64)"])
async def test_null_stays_null(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, kind: str
) -> None:
    table = create_table(f"{OFFSETS}, `x` {kind}, `d` Int64 MATERIALIZED 5")
    writer = await open_writer(table)
    await flush(writer, rows(0, 3, x=pa.array([1, None, 0])))
    assert client.query(f"SELECT isNull(x) FROM {table} ORDER BY offset").result_columns == [
        [0, 1, 0]
    ]


async def test_a_column_whose_values_the_server_casts_is_not_said_to_store_texts(
    create_table: CreateTable, clickhouse_url: str, context: Context
) -> None:
    told: dict[str, pa.DataType] = {}
    table = create_table("v Variant(Int64, String), d Dynamic, s String, n Decimal(5, 2)")
    writer = ClickHouseWriter(table, url=clickhouse_url)
    await writer.open(context.with_sinks(tell_types=lambda _, stored: told.update(stored)))
    await writer.close()
    assert set(told) == {"s", "n"}


@pytest.mark.parametrize("kind", ["Variant(Int64, String)", "Dynamic"])
async def test_a_variant_that_rows_lack_or_that_has_only_nulls_is_null(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, kind: str
) -> None:
    table = create_table(f"{OFFSETS}, v {kind}")
    writer = await open_writer(table)
    assert poisoned_offsets(await flush(writer, rows(0, 2))) == []
    assert (
        poisoned_offsets(await flush(writer, rows(2, 1, v=pa.nulls(1)), rows(3, 1, v=["a"]))) == []
    )
    assert poisoned_offsets(await flush(writer, rows(4, 1, v=pa.nulls(1)))) == []
    found = client.query(
        f"SELECT offset, v::Nullable(String) FROM {table} ORDER BY offset"
    ).result_rows
    assert found == [(0, None), (1, None), (2, None), (3, "a"), (4, None)]
