"""What a ClickHouseWriter refuses before it writes, and where it finds its server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import pytest
from structlog.testing import capture_logs

from framework.errors import SinkError, StrategyError
from framework.reducer import Context, Flushed
from framework.sinks.clickhouse.writer import ClickHouseWriter

from .writing import OFFSETS, OpenWriter, flush, poisoned_offsets, rows, written

if TYPE_CHECKING:
    from pathlib import Path

    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable


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
