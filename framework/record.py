"""What moves through a pipeline: batches of records, and the rows that a map made of them.

Everything is columnar: a `Batch` holds the records of one topic partition as Arrow columns, a `Rows`
holds what user code made of them. Both carry the offset ranges that they stand for, so that the ledger
can tell which records are settled without looking at a single one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "SCHEMA",
    "Batch",
    "Cut",
    "Header",
    "Range",
    "Record",
    "Rows",
    "TopicPartition",
    "to_records",
]

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

_COLUMNS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("headers", pa.list_(_HEADER)),
]
SCHEMA = pa.schema(_COLUMNS)
"""The columns of a batch: those of Spark's own Kafka source, so that one function runs in both engines."""


class TopicPartition(NamedTuple):
    """One partition of one topic. Compares equal to aiokafka's type of the same name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Range(NamedTuple):
    """Offsets `[first, last]`, both inclusive, of one topic partition in one generation."""

    topic: str
    partition: int
    first: int
    last: int
    generation: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the offsets belong to."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.first}..{self.last}]"


class Header(NamedTuple):
    """One header of a record; the same key may occur more than once."""

    key: str
    value: bytes | None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A view of one row of a batch: what a per-record map function is given.

    `timestamp_type` is 0 for the producer's clock, 1 for the broker's (KIP-32).
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    timestamp_type: int
    headers: tuple[Header, ...] = ()

    @property
    def timestamp(self) -> datetime:
        """The record's time, in UTC."""
        return datetime.fromtimestamp(self.timestamp_us / 1e6, UTC)

    @property
    def timestamp_ms(self) -> int:
        """The record's time in milliseconds since 1970, as Kafka stores it."""
        return self.timestamp_us // 1000


class Batch:
    """Consecutive records of one topic partition, as Arrow columns, with their offset range.

    The range `[first, last]` is inclusive and says what was *read*: offsets in it that have no row
    (compaction, transaction markers, aborted records) need no delivery. The columns are decoded when
    `records` is first asked for, by whichever thread asks.
    """

    __slots__ = (
        "_load",
        "_records",
        "first",
        "last",
        "max_timestamp_ms",
        "nbytes",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        first: int,
        last: int,
        *,
        nbytes: int,
        load: Callable[[], pa.RecordBatch],
        max_timestamp_ms: int = -1,
    ) -> None:
        """`nbytes` is what the batch counts for in the in-flight budget; `load` decodes the columns."""
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last
        self.nbytes = nbytes
        self.max_timestamp_ms = max_timestamp_ms
        self._load: Callable[[], pa.RecordBatch] | None = load
        self._records: pa.RecordBatch | None = None

    @classmethod
    def of(cls, records: pa.RecordBatch) -> Batch:
        """A batch of columns that are already there; they must be of `SCHEMA` and not empty."""
        offsets = records.column("offset")
        batch = cls(
            records.column("topic")[0].as_py(),
            records.column("partition")[0].as_py(),
            offsets[0].as_py(),
            offsets[-1].as_py(),
            nbytes=records.nbytes,
            load=lambda: records,
        )
        batch._records = records
        return batch

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the records came from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def records(self) -> pa.RecordBatch:
        """The records, one row each, with the columns of `SCHEMA`; offsets ascend."""
        records = self._records
        if records is None:
            load = self._load
            # Two threads may decode the same batch; both results are equal, and either may win.
            records = self._records = load() if load is not None else self.records
            self._load = None
        return records

    def split(self, last: int) -> tuple[Batch, Batch]:
        """Divide after offset `last`, which is in the range but not its end; nothing is decoded yet."""
        share = (last + 1 - self.first) / (self.last + 1 - self.first)
        head_bytes = int(self.nbytes * share)
        return (
            self._part(self.first, last, head_bytes),
            self._part(last + 1, self.last, self.nbytes - head_bytes),
        )

    def _part(self, first: int, last: int, nbytes: int) -> Batch:
        def load() -> pa.RecordBatch:
            start, stop = np.searchsorted(self.offsets(), [first, last + 1])
            return self.records.slice(int(start), int(stop - start))

        return Batch(
            self.topic,
            self.partition,
            first,
            last,
            nbytes=nbytes,
            load=load,
            max_timestamp_ms=self.max_timestamp_ms,
        )

    def offsets(self) -> NDArray[np.int64]:
        """The offset of every row."""
        return _int64(self.records.column("offset"))

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}-{self.partition}[{self.first}..{self.last}] {self.nbytes} bytes>"
        )


def to_records(columns: pa.RecordBatch) -> list[Record]:
    """The rows of a batch, all of one partition, as `Record` objects, for per-record user code."""
    if len(columns) == 0:
        return []
    headers = columns.column("headers")
    per_record_headers = (
        repeat(())
        if headers.null_count == len(headers)
        else [
            tuple(Header(pair["key"], pair["value"]) for pair in pairs or ())
            for pairs in headers.to_pylist()
        ]
    )
    return list(
        map(
            Record,
            repeat(columns.column("topic")[0].as_py()),
            repeat(columns.column("partition")[0].as_py()),
            columns.column("offset").to_pylist(),
            columns.column("key").to_pylist(),
            columns.column("value").to_pylist(),
            columns.column("timestamp").cast(pa.int64()).to_pylist(),
            columns.column("timestampType").to_pylist(),
            per_record_headers,
        )
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """What a map, or a reducer's flush, made: columns of any schema, and the offsets they stand for.

    Attributes:
        table: the rows.
        ranges: the offsets that settle when these rows are delivered. They include the offsets of
            records that were filtered, and leave out those that failed.
        offsets: the offset that each row came from, ascending; None when a reducer made the rows and
            they belong to no single record.
        sources: the batches that the rows came from, for an error sink that wants the original records.
    """

    table: pa.Table
    ranges: tuple[Range, ...]
    offsets: NDArray[np.int64] | None = None
    sources: tuple[Batch, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes, counting only the part of a buffer that these rows use."""
        return int(self.table.nbytes)

    def cut(self, rows: int) -> tuple[Rows, Rows | None]:
        """Divide into at most `rows` rows and the rest; the rows of one record stay together.

        The first part has at least one record, even if that is more than `rows` rows. The rest is None
        if there is none, or if the rows belong to no single record.
        """
        if self.offsets is None or len(self) <= rows:
            return self, None
        offsets = self.offsets
        at = int(np.searchsorted(offsets, offsets[rows], side="left"))
        if at == 0:
            at = int(np.searchsorted(offsets, offsets[0], side="right"))
        if at >= len(self):
            return self, None
        boundary = int(offsets[at])
        head = tuple(
            r._replace(last=min(r.last, boundary - 1)) for r in self.ranges if r.first < boundary
        )
        tail = tuple(
            r._replace(first=max(r.first, boundary)) for r in self.ranges if r.last >= boundary
        )
        return (
            replace(self, table=self.table.slice(0, at), ranges=head, offsets=offsets[:at]),
            replace(self, table=self.table.slice(at), ranges=tail, offsets=offsets[at:]),
        )


class Cut:
    """A mark among the rows of one partition: what came before it belongs to one announced range.

    Each stage flushes what it has when the mark comes by, and hands it on.
    """

    __slots__ = ()


def _int64(column: pa.Array[Any]) -> NDArray[np.int64]:
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
