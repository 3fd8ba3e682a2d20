"""The sink's tables, and the error sinks: made before a run, read after it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import aiokafka
import anyio
import clickhouse_connect
import msgspec
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from anyio import to_thread

from chaos.history import SCHEMAS
from kmr.delivery.row_letters import ROW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from pathlib import Path

    from clickhouse_connect.driver.asyncclient import AsyncClient

    from chaos.history import Recorder
    from chaos.shape import GroupSpec
    from chaos.workload import Workload

_COLUMNS: Final = ("topic", "partition", "offset", "id", "time")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMEOUT: Final = 60.0
_POLL: Final = 0.2
_DDL: Final = (
    "CREATE TABLE {name} (`topic` LowCardinality(String), `partition` UInt32, `offset` UInt64, {id}"
    # one value for all rows of an INSERT: when it began
    "`inserted` DateTime64(9) DEFAULT now64(9)) "
    "ENGINE = {engine} ORDER BY (topic, partition, offset) {ttl}"
    "SETTINGS non_replicated_deduplication_window = 10000"
)

_WINDOWS_DDL: Final = (
    "CREATE TABLE {name} (window_start DateTime64(6, 'UTC'), window_end DateTime64(6, 'UTC'), "
    "`partition` UInt32, topic LowCardinality(String), bucket Int64, offsets Array(Int64), ids Array(Int64), "
    "first DateTime64(6, 'UTC'), last DateTime64(6, 'UTC'), inserted DateTime64(9) DEFAULT now64(9){rule}) "
    "ENGINE = MergeTree ORDER BY (partition, window_start, bucket) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)

# One row in ten, in every other second: some flushes have no letters.
_REFUSES: Final = ", CONSTRAINT kept CHECK bucket % 10 != 3 OR toSecond(window_start) % 2 = 1"

_RECORDS_OF_WINDOWS: Final = " ARRAY JOIN offsets AS offset, ids AS id"

_ENGINES: Final = {
    # A row whose sums are all 0, as the id of the first record is, would be removed: therefore `n`.
    "SummingMergeTree": ("SummingMergeTree((id, n))", ""),
    "expired": ("MergeTree", "TTL toDateTime(inserted) - INTERVAL 1 DAY "),
}
_POSTGRES_DDL: Final = (
    'CREATE TABLE {name} (topic text, partition int, "offset" bigint, id bigint, '
    "inserted timestamptz DEFAULT now())"  # the start of the transaction
)


@dataclass(frozen=True)
class Places:
    """Where rows can go: the URLs of the servers, and the directory of Parquet files."""

    clickhouse: str
    postgres: str
    files: Path


async def create(places: Places, workload: Workload) -> None:
    """Make the tables of a workload."""
    if workload.sink == "postgres":
        async with await psycopg.AsyncConnection.connect(places.postgres) as connection:
            await connection.execute(_POSTGRES_DDL.format(name=workload.table).encode())
    if workload.sink != "clickhouse":
        return
    url = places.clickhouse
    async with _client(url) as client:
        own = "" if workload.evolve else "`id` UInt64, "
        if workload.table_engine == "SummingMergeTree":
            own += "`n` UInt64 DEFAULT 1, "
        engine, ttl = _ENGINES.get(workload.table_engine, (workload.table_engine, ""))
        ddl = _WINDOWS_DDL if workload.window else _DDL
        given = {"id": own, "engine": engine, "ttl": ttl}
        rule = _REFUSES if workload.refuses else ""
        await client.command(ddl.format(name=workload.table, rule=rule, **given))
        if workload.dead_table:
            plain = {"id": "", "engine": "MergeTree", "ttl": ""}
            await client.command(_DDL.format(name=workload.dead_table, **plain))


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


async def collect(
    places: Places, bootstrap_servers: str, spec: GroupSpec, recorder: Recorder
) -> None:
    """Read the rows that a group has written; log unreadable ones with the reason."""
    workload = spec.workload
    if workload.topic:
        try:
            with anyio.fail_after(_TIMEOUT):
                table = await _results(bootstrap_servers, workload.topic)
            recorder.table("rows", _of_group(table, spec.name))
        except Exception as error:  # noqa: BLE001  a verdict of its own
            recorder.unread(f"rows/{spec.name}", f"{type(error).__name__}: {error}")
    tables = ("" if workload.topic else workload.table, workload.dead_table)
    sources = dict(zip(("rows", "dead"), tables, strict=True))
    if workload.window:
        sources["windows"] = workload.table
    for name, source in sources.items():
        if source:
            try:
                with anyio.fail_after(_TIMEOUT):
                    if name == "windows":
                        table = await _read_windows(places, source)
                    else:
                        table = await _read(places, source, workload if name == "rows" else None)
                recorder.table(name, _of_group(table, spec.name))
            except Exception as error:  # noqa: BLE001  a verdict of its own
                recorder.unread(f"{name}/{spec.name}", f"{type(error).__name__}: {error}")
    if workload.dead_topic:
        try:
            with anyio.fail_after(_TIMEOUT):
                letters = await _dead_letters(bootstrap_servers, workload.dead_topic)
            for name, table in letters.items():
                recorder.table(name, _of_group(table, spec.name))
        except Exception as error:  # noqa: BLE001
            recorder.unread(f"dead/{spec.name}", f"{type(error).__name__}: {error}")


async def has_ids(places: Places, workload: Workload, ids: set[int]) -> bool:
    """Return whether the ClickHouse table of a workload has rows of all of these records."""
    source = f"{workload.table}{_RECORDS_OF_WINDOWS if workload.window else ''}"
    wanted = ", ".join(map(str, sorted(ids))) or "NULL"
    async with _client(places.clickhouse) as client:
        query = f"SELECT uniqExact(id) FROM {source} WHERE id IN ({wanted})"  # noqa: S608
        return str(await client.command(query)) == str(len(ids))


async def _read(places: Places, table: str, workload: Workload | None) -> pa.Table:
    if workload is not None and workload.sink == "postgres":
        return await _read_postgres(places.postgres, table)
    if workload is not None and workload.sink == "parquet":
        return await to_thread.run_sync(_read_files, places.files / table)
    columns = "topic, partition, offset, "
    if workload is not None and workload.window:
        table += _RECORDS_OF_WINDOWS
    if workload is not None:
        columns += "coalesce(COLUMNS('^v[0-9]+$')) AS id, " if workload.evolve else "id, "
    async with _client(places.clickhouse) as client:
        found: pa.Table = await client.query_arrow(
            f"SELECT {columns} toUnixTimestamp64Nano(inserted) AS time FROM {table}"  # noqa: S608
        )
    if workload is not None and workload.fan_out > 1:
        return whole_records(found, workload.fan_out)
    return found


async def _read_windows(places: Places, table: str) -> pa.Table:
    times = {"start": "window_start", "end": "window_end", "first": "first", "last": "last"}
    moments = ", ".join(
        f"toUnixTimestamp64Micro({column}) AS {name}" for name, column in times.items()
    )
    async with _client(places.clickhouse) as client:
        found: pa.Table = await client.query_arrow(
            f"SELECT topic, t.partition AS partition, bucket, {moments}, "  # noqa: S608
            f"false AS letter FROM {table} AS t"
        )
    return found


def whole_records(rows: pa.Table, fan_out: int) -> pa.Table:
    """One line for each time that all rows of a record are there, and one more for rows beyond that."""
    keys = ["topic", "partition", "offset", "id"]
    counted = rows.group_by(keys).aggregate([("time", "min"), ("time", "count")])
    number = counted["time_count"].to_numpy()
    times = np.where(number > fan_out, -(-number // fan_out), number // fan_out)
    lines = counted.take(np.repeat(np.arange(len(counted)), times))
    return lines.select([*keys, "time_min"]).rename_columns([*keys, "time"])


async def _read_postgres(url: str, table: str) -> pa.Table:
    sql = (
        'SELECT topic, partition, "offset", id, '  # noqa: S608  our own table
        f"(extract(epoch FROM inserted) * 1000000)::bigint * 1000 FROM {table}"
    )
    async with await psycopg.AsyncConnection.connect(url) as connection:
        rows = await (await connection.execute(sql.encode())).fetchall()
    columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
    return pa.table(dict(zip(_COLUMNS, map(pa.array, map(list, columns)), strict=True)))


def _read_files(directory: Path) -> pa.Table:
    """The rows of each file; their time is that of the file."""
    tables = []
    for path in sorted(directory.glob("[!_.]*.parquet")):
        rows = pq.ParquetFile(path).read()
        time = pa.repeat(pa.scalar(path.stat().st_mtime_ns), rows.num_rows)
        tables.append(rows.append_column("time", time).select(list(_COLUMNS)))
    return pa.concat_tables(tables)


async def _dead_letters(bootstrap_servers: str, topic: str) -> dict[str, pa.Table]:
    """What `DeadLetterWriter` wrote: the record's place is in its headers.

    Letters of the rows of windows are rows that the sink lacks: copies of a letter are one.
    """
    dead: list[dict[str, Any]] = []
    rows: dict[object, dict[str, Any]] = {}
    async for message in _messages(bootstrap_servers, topic, "read_uncommitted"):
        headers = dict(message.headers)
        letter = {
            "topic": headers["kmr.topic"].decode(),
            "partition": int(headers["kmr.partition"]),
            "offset": int(headers["kmr.offset"]),
        }
        time = {"time": message.timestamp * 1_000_000}
        if ROW in headers:
            row = msgspec.json.decode(message.value)
            rows.setdefault((headers[ROW], *letter.values()), row | time)
        else:
            dead.append(letter | time)
    return {"dead": _table("dead", dead), **rows_of_letters(rows.values())}


def rows_of_letters(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.Table]:
    """Return the tables of a history that windows are in: their records, and the windows themselves."""
    records, windows = [], []
    for row in rows:
        times = {"start": "window_start", "end": "window_end", "first": "first", "last": "last"}
        moments = {name: _microseconds(row[column]) for name, column in times.items()}
        windows.append({**row, **moments, "letter": True})
        records += [
            {**row, "offset": offset, "id": number}
            for offset, number in zip(row["offsets"], row["ids"], strict=True)
        ]
    return {"rows": _table("rows", records), "windows": _table("windows", windows)}


def _microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def _table(name: str, lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return lines as a table of a history, without the group."""
    names = [field for field in SCHEMAS[name].names if field != "group"]
    return pa.Table.from_pylist([dict(line) for line in lines], SCHEMAS[name]).select(names)


async def _results(bootstrap_servers: str, topic: str) -> pa.Table:
    """What `KafkaWriter` wrote and committed."""
    rows = [
        msgspec.json.decode(message.value) | {"time": message.timestamp * 1_000_000}
        async for message in _messages(bootstrap_servers, topic, "read_committed")
    ]
    columns = ("topic", "partition", "offset", "id", "time")
    return pa.table({name: [row[name] for row in rows] for name in columns})


async def _messages(bootstrap_servers: str, topic: str, level: str) -> AsyncIterator[Any]:
    """Everything in a topic; waits until no transaction is open there, if only committed ones are read."""
    ends = await _end_offsets(bootstrap_servers, topic, "read_uncommitted")
    while await _end_offsets(bootstrap_servers, topic, level) != ends:  # noqa: ASYNC110
        await anyio.sleep(_POLL)
    async with _consumer(bootstrap_servers, level) as consumer:
        for partition, end in ends.items():
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            while await consumer.position(partition) < end:
                for message in await _fetched(consumer):
                    yield message


async def _fetched(consumer: Any) -> list[Any]:
    found = await consumer.getmany(timeout_ms=1_000)
    return [message for messages in found.values() for message in messages]


async def _end_offsets(bootstrap_servers: str, topic: str, level: str) -> dict[Any, int]:
    async with _consumer(bootstrap_servers, level) as consumer:
        numbers = await consumer._client._wait_on_metadata(topic)  # noqa: SLF001  no public method waits
        partitions = [aiokafka.TopicPartition(topic, number) for number in sorted(numbers)]
        ends: dict[Any, int] = await consumer.end_offsets(partitions)
        return ends


@asynccontextmanager
async def _consumer(bootstrap_servers: str, level: str) -> AsyncIterator[Any]:
    consumer: Any = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level=level
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


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
