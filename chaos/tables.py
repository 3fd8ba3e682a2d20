"""The sink's tables, and the error sinks: made before a run, read after it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import aiokafka
import anyio
import clickhouse_connect
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from clickhouse_connect.driver.asyncclient import AsyncClient

    from chaos.history import Recorder
    from chaos.shape import GroupSpec
    from chaos.workload import Workload

__all__ = ["collect", "create", "drop", "forget_rows"]

_TIMEOUT: Final = 60.0
_DDL: Final = (
    "CREATE TABLE {name} (`topic` LowCardinality(String), `partition` UInt32, `offset` UInt64, {id}"
    # one value for all rows of an INSERT: when it began
    "`inserted` DateTime64(9) DEFAULT now64(9)) "
    "ENGINE = MergeTree ORDER BY (topic, partition, offset) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)


async def create(url: str, workload: Workload) -> None:
    """Make the tables of a workload."""
    async with _client(url) as client:
        own = "" if workload.evolve else "`id` UInt64, "
        await client.command(_DDL.format(name=workload.table, id=own))
        if workload.dead_table:
            await client.command(_DDL.format(name=workload.dead_table, id=""))


async def drop(url: str, workload: Workload) -> None:
    """Remove the tables of a workload."""
    async with _client(url) as client:
        for name in filter(None, (workload.table, workload.dead_table)):
            await client.command(f"DROP TABLE IF EXISTS {name}")


async def forget_rows(url: str, workload: Workload) -> None:
    """Remove the rows of a workload's tables, which remember their tokens."""
    async with _client(url) as client:
        for name in filter(None, (workload.table, workload.dead_table)):
            await client.command(f"ALTER TABLE {name} DELETE WHERE 1 SETTINGS mutations_sync = 2")


async def collect(url: str, bootstrap_servers: str, spec: GroupSpec, recorder: Recorder) -> None:
    """Read the rows that a group has written; log unreadable ones with the reason."""
    workload = spec.workload
    for name, source in (("rows", workload.table), ("dead", workload.dead_table)):
        if source:
            try:
                with anyio.fail_after(_TIMEOUT):
                    table = await _read(url, source, workload if name == "rows" else None)
                recorder.table(name, _of_group(table, spec.name))
            except Exception as error:  # noqa: BLE001  a verdict of its own
                recorder.unread(f"{name}/{spec.name}", f"{type(error).__name__}: {error}")
    if workload.dead_topic:
        try:
            with anyio.fail_after(_TIMEOUT):
                table = await _dead_letters(bootstrap_servers, workload.dead_topic)
            recorder.table("dead", _of_group(table, spec.name))
        except Exception as error:  # noqa: BLE001
            recorder.unread(f"dead/{spec.name}", f"{type(error).__name__}: {error}")


async def _read(url: str, table: str, workload: Workload | None) -> pa.Table:
    columns = "topic, partition, offset, "
    if workload is not None:
        columns += "coalesce(COLUMNS('^v[0-9]+$')) AS id, " if workload.evolve else "id, "
    async with _client(url) as client:
        found: pa.Table = await client.query_arrow(
            f"SELECT {columns} toUnixTimestamp64Nano(inserted) AS time FROM {table}"  # noqa: S608
        )
    return found


async def _dead_letters(bootstrap_servers: str, topic: str) -> pa.Table:
    """What `DeadLetterWriter` wrote: the record's place is in its headers."""
    columns: dict[str, list[Any]] = {"topic": [], "partition": [], "offset": [], "time": []}
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for messages in (await consumer.getmany(timeout_ms=1_000)).values():
                for message in messages:
                    headers = dict(message.headers)
                    columns["topic"].append(headers["kmr.topic"].decode())
                    columns["partition"].append(int(headers["kmr.partition"]))
                    columns["offset"].append(int(headers["kmr.offset"]))
                    columns["time"].append(message.timestamp * 1_000_000)
    finally:
        await consumer.stop()
    return pa.table(columns)


def _of_group(table: pa.Table, group: str) -> pa.Table:
    return table.append_column("group", pa.array([group] * table.num_rows, pa.string()))


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[AsyncClient]:
    client = await clickhouse_connect.get_async_client(dsn=url, autogenerate_session_id=False)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
