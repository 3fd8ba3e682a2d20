"""A job of `bench.consume` and `bench.hits`, and what all contenders share; it imports nothing of kmr."""

from __future__ import annotations

import importlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003  msgspec reads the annotations
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH_ROWS = 131_072
TABLE = "hits"
COLUMNS = ["ts", "path", "status", "ms", "bytes", "country", "partition", "offset"]
DDL = (
    f"CREATE TABLE {TABLE} (ts DateTime64(6, 'UTC'), path String, status Int64, ms Nullable(Float64), "
    "bytes Int64, country LowCardinality(String), `partition` UInt32 DEFAULT 0, `offset` UInt64 DEFAULT 0) "
    "ENGINE = MergeTree ORDER BY (partition, offset) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)


class Hit(msgspec.Struct):
    """The fields that are used."""

    ts: datetime
    path: str
    status: int
    ms: float | None
    bytes: int
    country: str


@dataclass(frozen=True)
class Job:
    """What to consume; `group` is new for every run."""

    bootstrap_servers: str
    topic: str
    group: str
    records: int
    clickhouse_url: str | None

    @property
    def max_age(self) -> float:
        """Seconds after which rows are written, or dropped, though they are few."""
        return 0.5 if self.clickhouse_url is not None else 0.2


def writer(job: Job) -> Callable[[list[tuple[Any, ...]]], None]:
    """Return a function that inserts rows by columns, or drops them."""
    if job.clickhouse_url is None:
        return lambda rows: None
    client = clickhouse_connect.get_client(dsn=job.clickhouse_url)
    with suppress(ImportError):  # else the first insert imports it, while the clock runs
        importlib.import_module("pandas")

    def write(rows: list[tuple[Any, ...]]) -> None:
        columns = [list(column) for column in zip(*rows, strict=True)]
        client.insert(TABLE, columns, column_names=COLUMNS, column_oriented=True)

    return write
