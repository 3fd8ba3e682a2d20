"""The rows from tasks to the driver, in `REPORT_SCHEMA`: failed records, rows for its reducers, reports.

Rows for the driver's reducers have schemas of their own, so they travel packed: one value of the column
`rows` is an Arrow stream of many rows, with the offsets that they stand for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...delivery.failures import FAILED_SCHEMA
from ...delivery.ranges import merge_ranges, ranges_of
from ...record import SCHEMA, Batch, Range, Rows
from .chain import StageFlush  # noqa: TC001  msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Approximate size of one value of the column `rows`; the JVM copies each value several times."""

_METADATA_KEY: Final = b"kmr"
_IPC_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class _PackedMetadata(msgspec.Struct, frozen=True):
    """The metadata of packed rows.

    Attributes:
        ranges: `Rows.ranges`.
        sources: the offsets of the batches that the rows came from.
        has_offsets: the last column is `Rows.offsets`.
    """

    ranges: tuple[Range, ...]
    sources: tuple[Range, ...]
    has_offsets: bool


def pack_rows(rows: Rows, *, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Pack rows into values of the column, in order; the rows of one record stay together."""
    rest: Rows | None = rows
    while rest is not None and len(rest):
        fitting = max(1, len(rest) * piece_bytes // max(1, rest.nbytes))
        piece, rest = rest.cut(fitting) if rest.offsets is not None else _halves(rest, fitting)
        yield _packed(piece)


def _halves(rows: Rows, fitting: int) -> tuple[Rows, Rows | None]:
    """Cut rows that belong to no single record: both halves stand for all of the offsets."""
    if len(rows) <= fitting:
        return rows, None
    head, tail = rows.table.slice(0, fitting), rows.table.slice(fitting)
    return Rows(head, rows.ranges, None, rows.sources), Rows(tail, rows.ranges, None, rows.sources)


def _packed(rows: Rows) -> bytes:
    sources = (Range(b.topic, b.partition, b.first, b.last) for b in rows.sources)
    about = _PackedMetadata(rows.ranges, merge_ranges(sources), rows.offsets is not None)
    table = rows.table
    if rows.offsets is not None:
        table = table.append_column("", pa.array(rows.offsets))
    table = table.replace_schema_metadata({_METADATA_KEY: msgspec.json.encode(about)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_IPC_OPTIONS) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def unpack_rows(value: Any, reread: Callable[[Range], pa.RecordBatch]) -> Rows:
    """Unpack the rows of one value.

    Args:
        reread: reads the original records of a range again; called only when they are needed.
    """
    table = pa.ipc.open_stream(value).read_all()
    about = msgspec.json.decode(table.schema.metadata[_METADATA_KEY], type=_PackedMetadata)
    table = table.replace_schema_metadata(None)
    offsets = None
    if about.has_offsets:
        last = table.num_columns - 1
        offsets = table.column(last).to_numpy()
        table = table.remove_column(last)
    return Rows(table, about.ranges, offsets, tuple(_source(r, reread) for r in about.sources))


def _source(source: Range, reread: Callable[[Range], pa.RecordBatch]) -> Batch:
    load = partial(reread, source)
    return Batch(source.topic, source.partition, source.first, source.last, nbytes=0, load=load)


_BY_OFFSET: Final[Any] = [
    ("topic", "ascending"),
    ("partition", "ascending"),
    ("offset", "ascending"),
]


class TaskReport(msgspec.Struct, omit_defaults=True):
    """The work of one task on one range; the task fills it.

    Attributes:
        first, last: the offsets that it read, both inclusive; `last` is below `first` if it read none.
        records: the number of records read.
        retries: the number of repeated flushes, by stage.
        max_timestamp_ms: the timestamp of the newest record, -1 without records.
        map_seconds: the time spent in the map function.
        map_retries: the number of its calls that were repeated.
        distinct: the rows that `Distinct` looked at, by result.
        late: the late rows of windows, by what happened to them.
        error: class and message of the KmrError that stopped the task.
    """

    topic: str
    partition: int
    first: int
    last: int
    records: int = 0
    flushes: list[StageFlush] = []
    retries: dict[str, int] = {}
    max_timestamp_ms: int = -1
    map_seconds: float = 0.0
    map_retries: int = 0
    distinct: dict[str, int] = {}
    late: dict[str, int] = {}
    error: tuple[str, str] | None = None


def report_row(report: TaskReport, schema: pa.Schema) -> pa.RecordBatch:
    """Make the row of a report."""
    return _row(schema, report=msgspec.json.encode(report))


def gathered_rows(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Make rows for the driver's reducers; each batch has one row, with many packed rows."""
    topic, partition, first = rows.ranges[0][:3]
    for packed in pack_rows(rows):
        yield _row(schema, topic=topic, partition=partition, offset=first, rows=packed)


def _row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    columns: list[Any] = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def failure_rows(rows: Rows, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Make rows of failed records."""
    table = rows.table
    for name in ("rows", "report"):
        table = table.append_column(name, pa.nulls(len(rows), pa.binary()))
    return [batch for batch in table.cast(schema).combine_chunks().to_batches() if batch.num_rows]


def read_reports(table: pa.Table) -> list[TaskReport]:
    """Read the reports of a micro-batch."""
    reports: list[Any] = table.column("report").drop_null().to_pylist()
    return [msgspec.json.decode(report, type=TaskReport) for report in reports]


def read_failures(table: pa.Table, stage: str) -> Iterable[Rows]:
    """Read the records that failed in a stage, by partition, in order of offset."""
    failed = table.drop_columns(["rows", "report"]).filter(pc.field("stage") == stage)
    failed = failed.cast(FAILED_SCHEMA).sort_by(_BY_OFFSET)
    groups = failed.group_by(["topic", "partition"], use_threads=False).aggregate(
        [([], "count_all")]
    )
    begin = 0
    counts: list[Any] = groups.column("count_all").to_pylist()
    for count in counts:
        part = failed.slice(begin, count).combine_chunks()
        begin += count
        source = Batch.of(part.select(SCHEMA.names).to_batches()[0])
        yield _rows(part, source)


def read_gathered(table: pa.Table, reread: Callable[[Range], pa.RecordBatch]) -> Iterator[Rows]:
    """Read the rows for the driver's reducers, by partition, in order of offset.

    Args:
        reread: as in `unpack_rows`.
    """
    gathered = table.select(["topic", "partition", "offset", "rows"])
    gathered = gathered.filter(pc.is_valid(gathered.column("rows")))
    values = gathered.column("rows")
    order: list[Any] = pc.sort_indices(gathered.drop_columns(["rows"]), _BY_OFFSET).to_pylist()
    for at in order:
        yield unpack_rows(values[at].as_buffer(), reread)


def _rows(part: pa.Table, source: Batch) -> Rows:
    offsets = part.column("offset").to_numpy()
    whole = Range(source.topic, source.partition, source.first, source.last)
    return Rows(part, ranges_of(np.unique(offsets), whole), offsets, (source,))
