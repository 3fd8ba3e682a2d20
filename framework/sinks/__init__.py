"""Where a reducer writes: ClickHouse, Spark, a Kafka topic, a stream of text."""

from framework.sinks.clickhouse import ClickHouseWriter
from framework.sinks.kafka import DeadLetterWriter, KafkaWriter
from framework.sinks.spark import SparkWriter
from framework.sinks.stream import StreamWriter

__all__ = ["ClickHouseWriter", "DeadLetterWriter", "KafkaWriter", "SparkWriter", "StreamWriter"]
