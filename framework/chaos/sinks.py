"""Reads what a redirected strategy has written: how many rows each record has in the sink."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
from anyio import to_thread

from ..kafka.connection import ConnectionConfig
from ..kafka.reading import read_topic
from ..record import TopicPartition
from ..sinks.clickhouse.client import Target, connect
from .redirect import SOURCE
from .verdict import Found, read_sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..record import Batch
    from .redirect import Places, Sink

__all__ = ["read_batches", "read_errors", "read_sink"]


async def read_batches(bootstrap_servers: str, topics: Iterable[str]) -> list[Batch]:
    """Read all records of topics; those of open and aborted transactions are left out."""
    config = ConnectionConfig(bootstrap_servers=bootstrap_servers, client_id="chaos-count")
    return [batch for topic in topics async for batch in read_topic(config, topic)]


async def read_sink(sink: Sink, places: Places, bootstrap_servers: str) -> Found:
    """Count the rows of each record in the sink."""
    if sink == "clickhouse":
        return read_sources(await to_thread.run_sync(_in_clickhouse, places))
    if sink == "parquet":
        return read_sources(await to_thread.run_sync(_in_files, Path(places.files)))
    counts: Counter[str] = Counter()
    for batch in await read_batches(bootstrap_servers, [places.rows]):
        for headers in batch.records.column("headers").to_pylist():
            counts.update(h["value"].decode() for h in headers or () if h["key"] == SOURCE)
    return read_sources(counts)


async def read_errors(places: Places, bootstrap_servers: str) -> Found:
    """Count the failed records in the topic that stands for `reduce_err`."""
    counts: Counter[tuple[TopicPartition, int]] = Counter()
    for batch in await read_batches(bootstrap_servers, [places.errors]):
        for value in batch.records.column("value").to_pylist():
            row = msgspec.json.decode(value or b"")
            counts[TopicPartition(row["topic"], row["partition"]), row["offset"]] += 1
    return Found(counts, {})


def _in_clickhouse(places: Places) -> dict[str, int]:
    with connect(Target.of(places.clickhouse)) as client:
        exists = client.command(f"EXISTS TABLE {places.table}")
        if not int(str(exists)):
            return {}
        rows = client.query(
            f"SELECT {SOURCE}, count() FROM {places.table} GROUP BY {SOURCE}"  # noqa: S608  our names
        ).result_rows
    return {str(source): int(count) for source, count in rows}


def _in_files(directory: Path) -> Counter[str]:
    """Count in the finished files; a name that begins with a dot or an underscore is one under way."""
    counts: Counter[str] = Counter()
    for path in sorted(directory.rglob("[!_.]*.parquet")):
        counts.update(map(str, pq.ParquetFile(path).read([SOURCE]).column(SOURCE).to_pylist()))
    return counts
