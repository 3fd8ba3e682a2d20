"""Kafka as a data source of Spark in Python: `spark.readStream.format("kmr-kafka")`.

It has the options and the schema of Spark's own Kafka source, and its offsets in checkpoints, but needs
no JAR: tasks speak Kafka's protocol themselves, and hand Spark whole Arrow batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from framework.spark import dropin
from framework.spark.options import SourceOptions
from framework.spark.rows import COLUMNS, HEADERS, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from framework.spark.reader import KafkaBatchReader, KafkaStreamReader

__all__ = ["FORMAT", "KafkaDataSource", "register"]

FORMAT = "kmr-kafka"


class KafkaDataSource(DataSource):
    """Reads topics, as a stream or as a batch.

    Options, with Spark's own names (see its Kafka integration guide), in any case:

    - `kafka.bootstrap.servers`, and other properties `kafka.*` of the client: security, isolation level,
      fetch sizes. `kafka.group.id`: offsets are committed there after each micro-batch, for lag tools.
    - one of `subscribe` (topics), `subscribePattern`, `assign`
    - `startingOffsets` (streams: latest; batches: earliest), `startingTimestamp`,
      `startingOffsetsByTimestamp`, `startingOffsetsByTimestampStrategy`; only for a stream without a
      checkpoint. Batches have `endingOffsets`, `endingTimestamp`, `endingOffsetsByTimestamp` too.
    - `maxOffsetsPerTrigger`, `minPartitions`, `failOnDataLoss`, `includeHeaders`
    - `groupIdPrefix`: the group for lag tools is this and the subscription
    - `kafkaConsumer.pollTimeoutMs`: how long a task waits for records that should be there

    A partition that comes while a stream runs is read from its first record.
    """

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def schema(self) -> str:
        """The columns of Spark's own Kafka source."""
        headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return f"{COLUMNS}, {HEADERS}" if headers else COLUMNS

    def reader(self, schema: StructType) -> KafkaBatchReader:
        """For `spark.read`."""
        from framework.spark.reader import KafkaBatchReader

        options = SourceOptions.parse(self.options, streaming=False)
        return KafkaBatchReader(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802  Spark's name
        """For `spark.readStream`."""
        from framework.spark.reader import KafkaStreamReader

        options = SourceOptions.parse(self.options, streaming=True)
        return KafkaStreamReader(options, arrow_schema(schema))


def register(spark: SparkSession, name: str = FORMAT) -> None:
    """Make the source known to a session.

    Args:
        name: what `format` will be given; `kafka` where Spark's own source is not on the class path.

    Raises:
        KmrError: the name is `kafka`, and Spark's own source is there.
    """
    source = KafkaDataSource
    if name != FORMAT:

        class Renamed(KafkaDataSource):
            @classmethod
            def name(cls) -> str:
                return name

        source = Renamed
    if name == dropin.NAME:
        dropin.register_as_kafka(spark, source)
    else:
        spark.dataSource.register(source)
