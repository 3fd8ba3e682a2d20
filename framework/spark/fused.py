"""The strategy inside the source: tasks fetch, map and write, and only failures and reports reach Spark."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from framework.record import SCHEMA, Batch
from framework.spark.chunks import GRID
from framework.spark.client import client_of
from framework.spark.fetching import read_range
from framework.spark.offsets import OffsetRange
from framework.spark.options import SourceOptions
from framework.spark.reader import KafkaStreamReader, RangePartition
from framework.spark.report import REPORT_SCHEMA
from framework.spark.rows import arrow_schema
from framework.spark.source import KafkaDataSource
from framework.spark.task import TaskPlan, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

__all__ = ["fused_source", "mapped_rows"]


class _FusedReader(KafkaStreamReader):
    """Plans as the source does, but its tasks run a strategy."""

    grid = GRID

    def __init__(self, options: SourceOptions, schema: pa.Schema, plan: TaskPlan) -> None:
        super().__init__(options, schema)
        self._plan = plan

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetch, map and write one range; yields failures and a report."""
        if not isinstance(partition, RangePartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        options = self._options
        batches = read_range(
            client_of(options.client),
            partition.range,
            fail_on_data_loss=options.fail_on_data_loss,
            timeout=options.poll_timeout,
        )
        return run_task(self._plan, partition.range, batches, self._schema)


def fused_source(name: str, plan: TaskPlan) -> type[KafkaDataSource]:
    """A data source that reads Kafka and runs a strategy; its rows are of `REPORT_SCHEMA`."""

    class FusedSource(KafkaDataSource):
        """Pickled by value, with the strategy in it."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return REPORT_SCHEMA

        def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802
            options = SourceOptions.parse(self.options, streaming=True)
            return _FusedReader(options, arrow_schema(schema), plan)

    return FusedSource


def mapped_rows(
    plan: TaskPlan, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The same for rows that another source has read: a function for `mapInArrow`."""

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
