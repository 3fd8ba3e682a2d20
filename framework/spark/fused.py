"""The strategy inside the source: tasks fetch, map and write, and only failures and reports reach Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.spark.options import SourceOptions
from framework.spark.rows import REPORT_SCHEMA, arrow_schema
from framework.spark.source import KafkaDataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from framework.spark.plan import TaskPlan
    from framework.spark.reader import KafkaStreamReader

__all__ = ["fused_source"]


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
            from framework.spark.fused_reader import FusedReader

            options = SourceOptions.parse(self.options, streaming=True)
            return FusedReader(options, arrow_schema(schema), plan)

    return FusedSource
