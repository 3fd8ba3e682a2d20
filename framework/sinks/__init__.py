"""Where a reducer writes: ClickHouse, a Kafka topic, a stream of text."""

from framework.sinks.clickhouse import ClickHouseWriter
from framework.sinks.kafka import DeadLetterWriter, KafkaWriter
from framework.sinks.stream import StreamWriter

__all__ = ["ClickHouseWriter", "DeadLetterWriter", "KafkaWriter", "StreamWriter"]
