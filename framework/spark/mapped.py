"""The strategy behind somebody else's source: a function that maps and writes the rows that were read."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from framework.record import SCHEMA, Batch
from framework.spark.offsets import OffsetRange
from framework.spark.task import run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from framework.spark.plan import TaskPlan

__all__ = ["mapped_rows"]


def mapped_rows(
    plan: TaskPlan, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`; its rows are of `REPORT_SCHEMA`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _run_rows(plan, batches, schema)

    return run


def _run_rows(
    plan: TaskPlan, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """A Spark partition of the JVM source is one range."""
    consecutive = _consecutive(batches)
    first = next(consecutive, None)
    if first is None:
        return
    wanted = OffsetRange(first.topic, first.partition, first.first, first.last + 1)
    yield from run_task(plan, wanted, chain([first], consecutive), schema)


def _consecutive(batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    """Rows as batches whose ranges follow each other: offsets in between have no records."""
    following: int | None = None
    for records in batches:
        if len(records):
            batch = Batch.of(_as_batch(records))
            batch.first = batch.first if following is None else following
            following = batch.last + 1
            yield batch


def _as_batch(records: pa.RecordBatch) -> pa.RecordBatch:
    names: list[Any] = records.schema.names
    columns = [
        records.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(len(records), field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
