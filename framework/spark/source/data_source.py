"""Kafka as a data source of Spark in Python: `spark.readStream.format("kmr-kafka")`.

It has the options, the schema and the checkpoint offsets of Spark's own Kafka source, but needs no JAR:
tasks speak Kafka's protocol and hand Spark whole Arrow batches.

Planner processes import this module, so it imports no reader, client or decoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from .reader import KafkaBatchReader, KafkaStreamReader

__all__ = ["COLUMNS", "FORMAT", "HEADERS", "KafkaDataSource", "arrow_schema", "register"]

FORMAT = "kmr-kafka"

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int"
)
"""The schema of Spark's Kafka source, as DDL."""

HEADERS = "headers array<struct<key string, value binary>>"
"""The column that the option `includeHeaders` adds."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, including nullability, that Spark expects of batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    expected: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return expected


class KafkaDataSource(DataSource):
    """Reads topics, as a stream or as a batch.

    Options have the names of Spark's Kafka integration guide, in any case:

    - `kafka.bootstrap.servers`, and other client properties `kafka.*`: security, isolation level, fetch
      sizes. With `kafka.group.id`, offsets are committed to that group after each micro-batch, for lag
      tools.
    - exactly one of `subscribe` (topics), `subscribePattern`, `assign`
    - `startingOffsets` (default: latest for a stream, earliest for a batch), `startingTimestamp`,
      `startingOffsetsByTimestamp`, `startingOffsetsByTimestampStrategy`; a stream with a checkpoint
      ignores them. A batch also has `endingOffsets`, `endingTimestamp`, `endingOffsetsByTimestamp`.
    - `maxOffsetsPerTrigger`, `minPartitions`, `failOnDataLoss`, `includeHeaders`
    - `groupIdPrefix`: the group for lag tools is this prefix and the subscription
    - `kafkaConsumer.pollTimeoutMs`: how long a task waits for records of its range

    A partition that is added while a stream runs is read from its first record.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of Spark's own Kafka source."""
        headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return f"{COLUMNS}, {HEADERS}" if headers else COLUMNS

    def reader(self, schema: StructType) -> KafkaBatchReader:
        """Return the reader for `spark.read`."""
        from .reader import KafkaBatchReader

        options = SourceOptions.parse(self.options, streaming=False)
        return KafkaBatchReader(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802  Spark's name
        """Return the reader for `spark.readStream`."""
        from .reader import KafkaStreamReader

        options = SourceOptions.parse(self.options, streaming=True)
        return KafkaStreamReader(options, arrow_schema(schema))


def register(spark: SparkSession) -> None:
    """Register the source with a session, as the format `kmr-kafka`."""
    spark.dataSource.register(KafkaDataSource)
