"""The data that moves through a pipeline: batches of records, and the rows that a map makes of them.

Both are columnar: a `Batch` holds the records of one topic partition as Arrow columns, a `Rows` the output
of user code. Both carry ranges of offsets, so that the ledger never has to look at single records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from .tagged_rows import is_tagged, tagged_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

OFFSET_MARK: dict[bytes | str, bytes | str] = {b"kmr": b"the record's offset"}
"""Metadata of the column `offset` of a batch. Pyarrow keeps it where rows are selected or sorted, so
a column of that name that the user made is not taken for it."""

RECORD_OFFSET = "kmr_offset"
"""The column of per-batch maps that names the record of each row. Data has no column of this name."""

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

OFFSET_COLUMNS: Final = ("topic", "partition", "offset")
"""The columns that name a record."""

COORDINATES = pa.schema([SCHEMA.field(name) for name in (*OFFSET_COLUMNS, "timestamp")])
"""The columns that say which record a row is of: a sink fills them where its table has them."""


PLACED: Final = {b"kmr": b"has the coordinates of its records"}
"""Metadata of a table whose columns topic, partition and offset are known to be those of the records."""

TIME_COLUMNS: Final = ("offset", "timestamp", "timestampType")
"""The columns that tell the times of records."""

_OF_RECORDS = {b"kmr": b"each row is of one record"}


def of_records(schema: pa.Schema) -> pa.Schema:
    """Mark the columns of rows that come with the coordinates of their records."""
    return schema.with_metadata(_OF_RECORDS)


def filled(schema: pa.Schema, names: Iterable[str]) -> list[pa.Field[Any]]:
    """Return those of the named columns of `COORDINATES` that a sink fills for rows with these columns."""
    if schema.metadata != _OF_RECORDS:
        return []
    lacking = [COORDINATES.field(name) for name in names if name not in schema.names]
    return [field.with_nullable(nullable=False) for field in lacking]


def with_offset_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a new table for rows with these columns: before them topic, partition, offset."""
    return pa.schema([*filled(schema, OFFSET_COLUMNS), *schema])


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

    @property
    def flags(self) -> str:
        """The flags of `kmr` that choose it."""
        return f"--topic {self.topic} --partition {self.partition}"


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

    `timestamp_type` is 0 for the producer's clock, 1 for the broker's (KIP-32), -1 for none.
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

    Attributes:
        gathered: seconds for which its fetch was held back, so that records gather at the brokers.
    """

    __slots__ = (
        "_load",
        "_records",
        "_times",
        "first",
        "gathered",
        "last",
        "max_timestamp_ms",
        "nbytes",
        "part",
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
        part: object = None,
    ) -> None:
        """`nbytes` is the batch's share of the in-flight budget; `load` decodes the columns.

        `part` is what `kmr.formats.batch_decoder.decode_together` needs; None: it uses `records`.
        """
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last
        self.nbytes = nbytes
        self.max_timestamp_ms = max_timestamp_ms
        self.part = part
        self.gathered = 0.0
        self._load: Callable[[], pa.RecordBatch] | None = load
        self._records: pa.RecordBatch | None = None
        self._times: pa.RecordBatch | None = None

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
            self._load = self.part = None  # they keep the response in memory
        return records

    @property
    def times(self) -> pa.RecordBatch:
        """The records, or only their `TIME_COLUMNS`."""
        return self.records if self._times is None else self._times

    def keep_times(self, times: pa.RecordBatch) -> None:
        """Keep `times` of records that were decoded with those of other batches, and not here."""
        self._times = times

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
        column = self.times.column("offset")
        return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}-{self.partition}[{self.first}..{self.last}] {self.nbytes} bytes>"
        )


def decoded_bytes(records: pa.RecordBatch) -> int:
    """Return the size of decoded columns: a batch's `nbytes` is an estimate if it was compressed."""
    pieces = sum(records.column(name).nbytes for name in ("key", "value", "headers"))
    return int(pieces) + ROW_OVERHEAD * len(records)


def to_records(columns: pa.RecordBatch, values: list[bytes | None] | None = None) -> list[Record]:
    """Convert the rows of a batch, or of several batches of one topic, to `Record` objects.

    Args:
        values: those of the column, if their objects are made already.
    """
    if len(columns) == 0:
        return []
    headers, keys = columns.column("headers"), columns.column("key")
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
            _numbers(columns.column("partition")),
            columns.column("offset").to_pylist(),
            repeat(None) if keys.null_count == len(keys) else keys.to_pylist(),
            columns.column("value").to_pylist() if values is None else values,
            columns.column("timestamp").view(pa.int64()).to_pylist(),
            _numbers(columns.column("timestampType")),
            per_record_headers,
        )
    )


def _numbers(column: pa.Array[Any]) -> Iterable[int]:
    """Return the numbers of a column, which are often all the same."""
    if column.null_count:
        some: list[Any] = column.to_pylist()
        return some
    numbers = column.to_numpy()
    same = bool((numbers == numbers[0]).all())
    return repeat(int(numbers[0])) if same else numbers.tolist()


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
        places: the columns of `COORDINATES` for each row, where they do not follow from `offsets`: rows of
            several partitions, or of dead letters, whose records are others.
        closes: of rows of windows: the event times from and up to which windows close, in microseconds of the
            epoch. Rows of later windows may have the same offsets.
        refused: of rows that a reducer made of many records: those that go to `reduce_err` as they are, by
            number, and why.
    """

    table: pa.Table
    ranges: tuple[Range, ...]
    offsets: NDArray[np.int64] | None = None
    sources: tuple[Batch, ...] = field(default=(), repr=False)
    places: pa.Table | None = field(default=None, repr=False)
    closes: tuple[int, int] | None = None
    refused: Mapping[int, str] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def nbytes(self) -> int:
        """The size of the columns in bytes, counting only the part of a buffer that these rows use."""
        return int(tagged_nbytes(self.table) if is_tagged(self.table.schema) else self.table.nbytes)

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
            replace(self.slice(0, at), ranges=head),
            replace(self.slice(at, len(self)), ranges=tail),
        )

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows `[start, stop)`, with the ranges of all."""
        return self._with(
            lambda table: table.slice(start, stop - start),
            lambda offsets: offsets[start:stop],
        )

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Rows:
        """Return the rows of these numbers, with the ranges of all."""
        return self._with(
            lambda table: table.take(pa.array(rows, pa.int64())), lambda offsets: offsets[rows]
        )

    def filter(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the chosen rows, with the ranges of all."""
        return self._with(
            lambda table: table.filter(pa.array(chosen)), lambda offsets: offsets[chosen]
        )

    def _with(
        self,
        of_table: Callable[[pa.Table], pa.Table],
        of_offsets: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    ) -> Rows:
        return replace(
            self,
            table=of_table(self.table),
            offsets=None if self.offsets is None else of_offsets(self.offsets),
            places=None if self.places is None else of_table(self.places),
        )

    def with_coordinates(self, names: Iterable[str]) -> pa.Table:
        """Return the rows with those of the named columns that they lack and `COORDINATES` has.

        Without them, if the rows belong to no single record: a reducer made them.
        """
        table = self.table
        known = COORDINATES.names
        lacking = [name for name in names if name in known and name not in table.column_names]
        for name in lacking if self.offsets is not None or self.places is not None else ():
            table = table.append_column(COORDINATES.field(name), self._coordinate(name))
        return table

    @property
    def coordinates(self) -> pa.Table | None:
        """The columns of `COORDINATES` for each row; None if a row belongs to no single record."""
        if self.places is not None:
            return self.places
        if self.offsets is None:
            return None
        columns = [self._coordinate(name) for name in COORDINATES.names]
        return pa.Table.from_arrays(columns, schema=COORDINATES)

    def _coordinate(self, name: str) -> pa.Array[Any] | pa.ChunkedArray[Any]:
        if self.places is not None:
            return self.places.column(name)
        assert self.offsets is not None  # noqa: S101  the callers have looked
        match name:
            case "topic":
                return pa.repeat(self.ranges[0].topic, len(self))
            case "partition":
                return pa.repeat(pa.scalar(self.ranges[0].partition, pa.int32()), len(self))
            case "offset":
                return pa.array(self.offsets, pa.int64())
            case _:
                return self.record_times()

    def record_times(self) -> pa.ChunkedArray[Any]:
        """Return the timestamp of each row's record. Only of rows with `offsets` and `sources`."""
        return pa.chunked_array([_times_of([self], [len(self)])])


def with_coordinates(parts: Iterable[Rows], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the tables of `Rows.with_coordinates`, in order; neighbours with the same columns are one.

    There may be thousands of parts with a row each: what is paid for a table is paid for them together.
    """
    for (schema, belongs), some in groupby(parts, key=_likeness):
        alike = list(some)
        if not belongs or len(alike) == 1:
            yield from (rows.with_coordinates(names) for rows in alike)
            continue
        table = pa.concat_tables([rows.table for rows in alike])
        lengths = [len(rows) for rows in alike]
        for name in names:
            if name in COORDINATES.names and name not in schema.names:
                table = table.append_column(
                    COORDINATES.field(name), _coordinate_of(alike, lengths, name)
                )
        yield table


def _likeness(rows: Rows) -> tuple[pa.Schema, bool]:
    """Return the columns of rows, and whether each is of a record and names it by its offset."""
    return rows.table.schema, rows.offsets is not None and rows.places is None


def _coordinate_of(parts: Sequence[Rows], lengths: Sequence[int], name: str) -> pa.Array[Any]:
    match name:
        case "topic":
            topics = pa.array([rows.ranges[0].topic for rows in parts])
            return topics.take(pa.array(np.repeat(np.arange(len(parts)), lengths), pa.int64()))
        case "partition":
            partitions = [rows.ranges[0].partition for rows in parts]
            return pa.array(np.repeat(np.array(partitions, dtype=np.int32), lengths))
        case "offset":
            return pa.array(_offsets_of(parts))
        case _:
            return _times_of(parts, lengths)


def _offsets_of(parts: Sequence[Rows]) -> NDArray[np.int64]:
    return np.concatenate([rows.offsets for rows in parts if rows.offsets is not None])


def _times_of(parts: Sequence[Rows], lengths: Sequence[int]) -> pa.Array[Any]:
    """Return the timestamp of each row's record, which is in the sources of the row's part."""
    records = [batch.times for rows in parts for batch in rows.sources]
    part_of = np.repeat(np.arange(len(parts)), [len(rows.sources) for rows in parts])
    sizes = np.array([each.num_rows for each in records])
    keys = pa.chunked_array([each.column("offset") for each in records]).to_numpy()
    ends = np.cumsum(sizes)
    first, last = np.full(len(parts), np.iinfo(np.int64).max), np.zeros(len(parts), np.int64)
    np.minimum.at(first, part_of, keys[ends - sizes])
    np.maximum.at(last, part_of, keys[ends - 1])
    # Offsets of the parts one behind the other, so that none is in two of them.
    shift = np.concatenate([[0], np.cumsum(last - first + 1)[:-1]]) - first
    keys = keys + np.repeat(shift[part_of], sizes)
    wanted = _offsets_of(parts) + np.repeat(shift, lengths)
    order = np.argsort(keys, kind="stable")
    times = pa.chunked_array([each.column("timestamp") for each in records]).combine_chunks()
    found = order[np.searchsorted(keys, wanted, sorter=order)]
    return times.take(pa.array(found, pa.int64()))


class ReplayEnd:
    """The end of a replayed range in a lane's queue: the rows before it are written as one range.

    Each stage flushes its rows when it receives the mark, and then sends the mark on.
    """

    __slots__ = ()
