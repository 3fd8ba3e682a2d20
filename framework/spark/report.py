"""What tasks tell the driver: failed records as rows of their own, and a report, in one schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framework.failures import FAILED_SCHEMA
from framework.ranges import ranges_of
from framework.record import Batch, Range, Rows
from framework.spark.chain import Flush  # noqa: TC001  msgspec reads the annotations
from framework.spark.rows import COLUMNS, HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "REPORT_SCHEMA",
    "TaskReport",
    "failure_rows",
    "read_failures",
    "read_reports",
    "report_row",
]

REPORT_SCHEMA = f"{COLUMNS}, {HEADERS}, reason string, stage string, attempt int, report binary"
"""As DDL: the columns of a failed record; or `report`, and all others null."""


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
    columns: list[Any] = [pa.nulls(1, field.type) for field in list(schema)[:-1]]
    columns.append(pa.array([msgspec.json.encode(report)], schema.field(len(schema) - 1).type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def failure_rows(rows: Rows, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Failed records as rows for the driver."""
    table = rows.table.append_column("report", pa.nulls(len(rows), pa.binary()))
    return [batch for batch in table.cast(schema).combine_chunks().to_batches() if batch.num_rows]


def read_reports(table: pa.Table) -> list[TaskReport]:
    """The reports of a micro-batch."""
    reports: list[Any] = table.column("report").drop_null().to_pylist()
    return [msgspec.json.decode(report, type=TaskReport) for report in reports]


def read_failures(table: pa.Table, stage: str) -> Iterable[Rows]:
    """The records of a micro-batch that failed in a stage, by partition, in order of offset."""
    failed = table.filter(pc.is_null(table.column("report"))).drop_columns(["report"])
    failed = failed.filter(pc.field("stage") == stage).cast(FAILED_SCHEMA)
    failed = failed.sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )
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


def _rows(part: pa.Table, source: Batch) -> Rows:
    offsets = part.column("offset").to_numpy()
    whole = Range(source.topic, source.partition, source.first, source.last)
    return Rows(part, ranges_of(np.unique(offsets), whole), offsets, (source,))
