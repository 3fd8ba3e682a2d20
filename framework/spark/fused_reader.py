"""The reader of the source that has the strategy inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.spark.chunks import GRID
from framework.spark.client import client_of
from framework.spark.reader import KafkaStreamReader, RangePartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from framework.spark.options import SourceOptions
    from framework.spark.plan import TaskPlan

__all__ = ["FusedReader"]


class FusedReader(KafkaStreamReader):
    """Plans as the source does, but its tasks run a strategy."""

    grid = GRID

    def __init__(self, options: SourceOptions, schema: pa.Schema, plan: TaskPlan) -> None:
        super().__init__(options, schema)
        self._plan = plan

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetch, map and write one range; yields failures and a report."""
        if not isinstance(partition, RangePartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        from framework.spark.fetching import read_range
        from framework.spark.task import run_task

        options = self._options
        batches = read_range(
            client_of(options.client),
            partition.range,
            fail_on_data_loss=options.fail_on_data_loss,
            timeout=options.poll_timeout,
        )
        return run_task(self._plan, partition.range, batches, self._schema)
