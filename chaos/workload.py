"""The strategy that workers run: `kmr run chaos.workload:strategy`, with what to do in the environment."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chaos.unguarded import CommitAfterInsert, ResumeFromMax
from kmr import Batcher, Distinct, Strategy, Window, map_batch
from kmr.sinks import (
    ClickHouseWriter,
    DeadLetterWriter,
    KafkaWriter,
    ParquetWriter,
    PostgresWriter,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kmr.types import Reducer

Mode = Literal[
    "exactly-once", "at-least-once", "at-most-once", "commit-after-insert", "resume-from-max"
]
"""How the strategy delivers; the last two have the guarantee switched off."""

Sink = Literal["clickhouse", "postgres", "parquet"]

TableEngine = Literal["MergeTree", "ReplacingMergeTree", "SummingMergeTree", "expired"]
"""Of the table; `expired`: a MergeTree whose TTL has passed when a row is written."""

ID_BYTES: Final = 20
"""A record's value begins with its id, in so many decimal digits."""

CHANGE_EVERY: Final = 2_500
"""With `evolve`, the ids of so many records are in a column of their own, `v0`, `v1`, ...,"""

LAST_CHANGE: Final = 99
"""and all later ones in the last: each column costs each INSERT."""

BUCKETS: Final = 250
"""How many groups windows have."""

REMEMBERED: Final = 30
"""For how many seconds windows remember an id."""

_MOMENTS: Final = {"first": ("moment", "min"), "last": ("moment", "max")}

HANG: Final = "CHAOS_HANG"
"""The variable with a file's path: the map of the process that finds the file hangs."""

FILES: Final = "KMR_CHAOS_FILES"
"""The variable with the directory below which Parquet files are written."""

_PREFIX: Final = "CHAOS_"
_FOR_EVER: Final = 1e6
_TRANSACTION_TIMEOUT: Final = 3.0  # seconds, below the session timeout


@dataclass(frozen=True)
class Workload:
    """A group's strategy.

    Attributes:
        table: where rows go: columns topic, partition, offset, id.
        dead_table: where failed records go: a table, or else
        dead_topic: a topic; without either, a failed record stops the worker.
        max_rows: limits of a flush,
        max_age: in seconds.
        sink_timeout: seconds for one INSERT, then it is tried again.
        chain: two reducers, one that collects batches and one that writes them.
        evolve: rows get new columns all the time, which the writer adds to the table.
        topic: where rows go instead, in transactions that commit their offsets too.
        sink: what the table is in: a directory of its name, with `parquet`.
        table_engine: of a ClickHouse table.
        fan_out: how many rows a record becomes, all alike.
        raises: poison makes the map raise what is no `Exception`.
        window: seconds of a window; 0: rows are written one by one. A row then has the records of one window
            and bucket, without those whose id the partition had before: these are failed records.
        refuses: the table of windows refuses some rows, which become letters.
    """

    table: str
    mode: Mode = "exactly-once"
    dead_table: str = ""
    dead_topic: str = ""
    max_rows: int = 1_000
    max_age: float = 0.3
    sink_timeout: float = 5.0
    chain: bool = False
    evolve: bool = False
    topic: str = ""
    sink: Sink = "clickhouse"
    table_engine: TableEngine = "MergeTree"
    fan_out: int = 1
    raises: bool = False
    window: float = 0.0
    refuses: bool = False

    def environment(self) -> dict[str, str]:
        """The worker's environment variables for it."""
        return {_PREFIX + name.upper(): str(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """What `environment` gave."""
        kinds: dict[str, Callable[[str], Any]] = {
            "max_rows": int,
            "max_age": float,
            "sink_timeout": float,
            "chain": "True".__eq__,
            "evolve": "True".__eq__,
            "fan_out": int,
            "raises": "True".__eq__,
            "window": float,
            "refuses": "True".__eq__,
        }
        return cls(
            **{
                name: kinds.get(name, str)(environ[_PREFIX + name.upper()])
                for name in cls.__dataclass_fields__
                if _PREFIX + name.upper() in environ
            }
        )

    def with_suffix(self, suffix: str) -> Self:
        """The same with other tables and topics."""
        names = ("table", "dead_table", "dead_topic", "topic")
        given = {name: getattr(self, name) for name in names if getattr(self, name)}
        return replace(self, **{name: value + suffix for name, value in given.items()})

    def strategy(self) -> Strategy:
        """The strategy itself."""
        return Strategy(
            map=self._map(),
            reduce=[*self._collecting(), self._sink()],
            reduce_err=self._error_sink(),
            delivery="at-most-once" if self.mode == "at-most-once" else None,
        )

    def _map(self) -> Callable[..., Any]:
        if self.window:
            return identify_with_bucket
        if self.raises:
            return identify_or_raise
        if self.fan_out > 1:
            return map_batch(partial(identify_often, self.fan_out))
        if self.evolve:
            return identify_anew
        has_table = self.sink in ("clickhouse", "postgres") and not self.topic
        by_us = self.mode not in ("commit-after-insert", "resume-from-max")
        return identify if has_table and by_us else identify_with_place

    def _collecting(self) -> list[Distinct | Reducer]:
        if self.window:
            window = Window(
                self.window,
                time="timestamp",
                by=["topic", "bucket"],
                columns={"offsets": ("offset", "list"), "ids": ("id", "list"), **_MOMENTS},
                lateness=1,
                late="dead-letter",
                idle=2,
            )
            rule = Distinct("id", within=REMEMBERED, on_duplicate="dead-letter")
            return [rule, window]
        return [Batcher(max_rows=self.max_rows // 3, max_age=self.max_age)] if self.chain else []

    def _sink(self) -> Reducer:
        limits: dict[str, Any] = {"max_rows": self.max_rows, "max_age": self.max_age}
        if self.topic:
            return KafkaWriter(
                self.topic,
                delivery="exactly-once",
                attempt_timeout=self.sink_timeout,
                transaction_timeout=_TRANSACTION_TIMEOUT,
                **limits,
            )
        if self.sink == "postgres":
            patience: dict[str, Any] = {"timeout": self.sink_timeout, "connect_timeout": 30.0}
            return PostgresWriter(self.table, **patience, **limits)
        if self.sink == "parquet":
            return ParquetWriter(Path(os.environ.get(FILES, ".")) / self.table, **limits)
        if self.mode == "commit-after-insert":
            return CommitAfterInsert(self.table, **limits)
        if self.mode == "resume-from-max":
            return ResumeFromMax(self.table, **limits)
        return ClickHouseWriter(
            self.table,
            delivery="exactly-once" if self.mode == "exactly-once" else "at-least-once",
            timeout=self.sink_timeout,
            connect_timeout=30.0,
            evolve="add" if self.evolve else None,
            **limits,
        )

    def _error_sink(self) -> Reducer | None:
        if self.dead_topic:
            return DeadLetterWriter(self.dead_topic, max_age=self.max_age)
        if self.dead_table:
            return ClickHouseWriter(
                self.dead_table,
                columns=["topic", "partition", "offset"],
                extra_columns="ignore",
                timeout=self.sink_timeout,
                connect_timeout=30.0,
                max_age=self.max_age,
            )
        return None


@map_batch
def identify_with_bucket(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `identify`, with what windows are made by, and list."""
    rows = identify(batch)
    buckets = pa.array(rows.column("id").to_numpy() % BUCKETS)
    return (
        rows.append_column("bucket", buckets)
        .append_column("topic", batch.column("topic"))
        .append_column("moment", batch.column("timestamp"))
    )


class Unusual(BaseException):
    """What no library expects."""


@map_batch
def identify(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The id of each record; a value that does not begin with one is poison.

    It never returns if it finds the file of the variable CHAOS_HANG, which it takes away.
    """
    with suppress(KeyError, FileNotFoundError):
        Path(os.environ[HANG]).unlink()
        time.sleep(_FOR_EVER)
    digits = pc.binary_slice(batch.column("value"), 0, ID_BYTES)
    ids = digits.cast(pa.string()).cast(pa.int64())
    return pa.RecordBatch.from_arrays([batch.column("kmr_offset"), ids], names=["kmr_offset", "id"])


@map_batch
def identify_with_place(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `identify`, with the place of each record as data: for sinks that have no such columns."""
    rows = identify(batch)
    for name in ("topic", "partition", "offset"):
        rows = rows.append_column(name, batch.column(name))
    return rows


def identify_often(fan_out: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `identify`, each row so often."""
    rows = identify(batch)
    return rows.take(np.repeat(np.arange(rows.num_rows), fan_out))


_raised = cycle([asyncio.CancelledError, SystemExit, KeyboardInterrupt, Unusual])


@map_batch
def identify_or_raise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `identify`, but poison raises each kind of `BaseException` in turn."""
    try:
        return identify(batch)
    except pa.ArrowInvalid as error:
        raise next(_raised)(str(error)) from None


@map_batch
def identify_anew(batch: pa.RecordBatch) -> pa.Table:
    """As `identify`, but the ids of some records after each other are in a column of their own."""
    rows = identify(batch)
    ids = rows.column("id").to_numpy()
    changes = np.minimum(ids // CHANGE_EVERY, LAST_CHANGE)
    columns = {"kmr_offset": rows.column("kmr_offset")}
    for change in np.unique(changes):
        columns[f"v{change}"] = pa.array(ids, mask=changes != change)
    return pa.table(columns)


strategy = Workload.of({f"{_PREFIX}TABLE": "chaos", **os.environ}).strategy()
