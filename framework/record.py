"""The data that moves through a pipeline: batches of records, and the rows that a map makes of them.

Both are columnar: a `Batch` holds the records of one topic partition as Arrow columns, a `Rows` the output
of user code. Both carry ranges of offsets, so that the ledger never has to look at single records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "ROW_OVERHEAD",
    "SCHEMA",
    "Batch",
    "Header",
    "Range",
    "Record",
    "ReplayEnd",
    "Rows",
    "TopicPartition",
    "to_records",
    "with_schema",
]

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

ROW_OVERHEAD = 24
"""Bytes of a row's offset, timestamp and Arrow offsets; its other columns are shared constants."""

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
"""The columns of a batch. They are those of Spark's Kafka source, so that a map runs in both engines."""


def with_schema(records: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return the columns of a schema, cast to its types; a column that `records` does not have is null."""
    names: list[Any] = records.schema.names
    columns = [
        records.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(len(records), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TopicPartition(NamedTuple):
    """One partition of one topic. Compares equal to aiokafka's type of the same name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Range(NamedTuple):
    """Offsets `[first, last]`, both inclusive, of one topic partition in one generation of its assignment."""

    topic: str
    partition: int
    first: int
    last: int
    generation: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the offsets."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.first}..{self.last}]"


class Header(NamedTuple):
    """One header of a record; the same key may occur more than once."""

    key: str
    value: bytes | None


class Record(msgspec.Struct, frozen=True, gc=False):
    """One row of a batch: the argument of a per-record map function.

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
        """The record's timestamp, in UTC."""
        return datetime.fromtimestamp(self.timestamp_us / 1e6, UTC)

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp in milliseconds since 1970, as Kafka stores it."""
        return self.timestamp_us // 1000


class Batch:
    """Consecutive records of one topic partition, as Arrow columns, with their range of offsets.

    The range `[first, last]` is inclusive and covers every offset that was read: offsets without a row
    (compaction, transaction markers, aborted records) need no delivery. The first access to `records`
    decodes the columns, in the calling thread.
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
        """`nbytes` is the batch's share of the in-flight budget; `load` decodes the columns."""
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
        """Make a batch of decoded columns; they must be of `SCHEMA` and not empty."""
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
        """The partition of the records."""
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

    @property
    def decoded_bytes(self) -> int:
        """The size of the decoded columns: `nbytes` is an estimate if the records were compressed."""
        records = self.records
        pieces = sum(records.column(name).nbytes for name in ("key", "value", "headers"))
        return int(pieces) + ROW_OVERHEAD * len(records)

    def slice(self, first: int, last: int) -> Batch:
        """Return the part `[first, last]` of the range, both inclusive. It decodes nothing yet.

        Its `nbytes` is estimated from the number of offsets.
        """

        def load() -> pa.RecordBatch:
            start, stop = np.searchsorted(self.offsets(), [first, last + 1])
            return self.records.slice(int(start), int(stop - start))

        return Batch(
            self.topic,
            self.partition,
            first,
            last,
            nbytes=self.nbytes * (last + 1 - first) // (self.last + 1 - self.first),
            load=load,
            max_timestamp_ms=self.max_timestamp_ms,
        )

    def cut(self, most: int) -> tuple[Batch, Batch | None]:
        """Return a first part of at most `most` records, and the rest, if there is one.

        Parts that are cut one after the other are as equal as possible. It decodes the records, unless the
        range has no more offsets than that.
        """
        if self.last - self.first < most:
            return self, None
        offsets = self.offsets()
        parts = -(-len(offsets) // most)
        if parts <= 1:
            return self, None
        end = int(offsets[-(-len(offsets) // parts)])
        return self.slice(self.first, end - 1), self.slice(end, self.last)

    def offsets(self) -> NDArray[np.int64]:
        """Return the offset of every row."""
        column = self.records.column("offset")
        return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}-{self.partition}[{self.first}..{self.last}] {self.nbytes} bytes>"
        )


def to_records(columns: pa.RecordBatch) -> list[Record]:
    """Convert the rows of a batch, all of one partition, to `Record` objects."""
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
            columns.column("timestamp").view(pa.int64()).to_pylist(),
            columns.column("timestampType").to_pylist(),
            per_record_headers,
        )
    )


@dataclass(frozen=True)
class Rows:
    """The output of a map or of a reducer's flush: columns of any schema, and the offsets behind them.

    Attributes:
        table: the rows.
        ranges: the offsets that are settled when these rows are delivered. They include the offsets of
            filtered records, and exclude those of failed ones.
        offsets: the offset that each row came from, ascending; None if the rows belong to no single
            record, because a reducer made them.
        sources: the batches that the rows came from; the error sink gets its original records from them.
    """

    table: pa.Table
    ranges: tuple[Range, ...]
    offsets: NDArray[np.int64] | None = None
    sources: tuple[Batch, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
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


class ReplayEnd:
    """The end of a replayed range in a lane's queue: the rows before it are written as one range.

    Each stage flushes its rows when it receives the mark, and then sends the mark on.
    """

    __slots__ = ()
