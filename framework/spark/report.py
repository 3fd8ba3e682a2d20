"""What tasks tell the driver, in one schema: failed records, rows for the driver's reducers, and a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framework.failures import FAILED_SCHEMA
from framework.ranges import ranges_of
from framework.record import Batch, Range, Rows
from framework.spark.chain import Flush  # noqa: TC001  msgspec reads the annotations
from framework.spark.gathered import pack_rows, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from framework.spark.offsets import OffsetRange

__all__ = [
    "TaskReport",
    "failure_rows",
    "gathered_rows",
    "read_failures",
    "read_gathered",
    "read_reports",
    "report_row",
]

_IN_ORDER: Final[Any] = [
    ("topic", "ascending"),
    ("partition", "ascending"),
    ("offset", "ascending"),
]


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one task did with one range.

    Attributes:
        first, last: the offsets that it read, both inclusive; `last` is below `first` if it read none.
        records: how many records it read.
        rows: how many rows the map made of them.
        failed: records that failed, by stage.
        retries: flushes that had to be repeated, by stage.
        max_timestamp_ms: of the newest record, -1 if there was none.
        seconds: how long it took; map_seconds of it in the map function.
        error: what made it stop; the user's to mend, so no other task needs to try.
    """

    topic: str
    partition: int
    first: int
    last: int
    records: int = 0
    rows: int = 0
    failed: dict[str, int] = {}
    flushes: list[Flush] = []
    retries: dict[str, int] = {}
    max_timestamp_ms: int = -1
    seconds: float = 0.0
    map_seconds: float = 0.0
    error: tuple[str, str] | None = None


def report_row(report: TaskReport, schema: pa.Schema) -> pa.RecordBatch:
    """A report as the one row of a batch."""
    return _row(schema, report=msgspec.json.encode(report))


def gathered_rows(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows for the driver's reducers; each of these batches has one row that holds many."""
    topic, partition, first = rows.ranges[0][:3]
    for packed in pack_rows(rows):
        yield _row(schema, topic=topic, partition=partition, offset=first, rows=packed)


def _row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    columns: list[Any] = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def failure_rows(rows: Rows, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Failed records as rows for the driver."""
    table = rows.table
    for name in ("rows", "report"):
        table = table.append_column(name, pa.nulls(len(rows), pa.binary()))
    return [batch for batch in table.cast(schema).combine_chunks().to_batches() if batch.num_rows]


def read_reports(table: pa.Table) -> list[TaskReport]:
    """The reports of a micro-batch."""
    reports: list[Any] = table.column("report").drop_null().to_pylist()
    return [msgspec.json.decode(report, type=TaskReport) for report in reports]


def read_failures(table: pa.Table, stage: str) -> Iterable[Rows]:
    """The records of a micro-batch that failed in a stage, by partition, in order of offset."""
    failed = table.drop_columns(["rows", "report"]).filter(pc.field("stage") == stage)
    failed = failed.cast(FAILED_SCHEMA).sort_by(_IN_ORDER)
    groups = failed.group_by(["topic", "partition"], use_threads=False).aggregate(
        [([], "count_all")]
    )
    begin = 0
    counts: list[Any] = groups.column("count_all").to_pylist()
    for count in counts:
        part = failed.slice(begin, count).combine_chunks()
        begin += count
        source = Batch.of(part.drop_columns(["reason", "stage", "attempt"]).to_batches()[0])
        yield _rows(part, source)


def read_gathered(
    table: pa.Table, reread: Callable[[OffsetRange], pa.RecordBatch]
) -> Iterator[Rows]:
    """The rows of a micro-batch for the driver's reducers, by partition, in order of offset.

    Args:
        reread: reads the original records of a range, if they are ever asked for.
    """
    gathered = table.select(["topic", "partition", "offset", "rows"])
    gathered = gathered.filter(pc.is_valid(gathered.column("rows")))
    values = gathered.column("rows")
    order: list[Any] = pc.sort_indices(gathered.drop_columns(["rows"]), _IN_ORDER).to_pylist()
    for at in order:
        yield unpack_rows(values[at].as_buffer(), reread)


def _rows(part: pa.Table, source: Batch) -> Rows:
    offsets = part.column("offset").to_numpy()
    whole = Range(source.topic, source.partition, source.first, source.last)
    return Rows(part, ranges_of(np.unique(offsets), whole), offsets, (source,))
