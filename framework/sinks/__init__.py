"""The writers: reducers that write to ClickHouse, Spark, a Kafka topic or a stream.

Each is imported when it is first used, with its libraries.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_exports

if TYPE_CHECKING:
    from .clickhouse.writer import ClickHouseWriter as ClickHouseWriter
    from .kafka.writer import DeadLetterWriter as DeadLetterWriter
    from .kafka.writer import KafkaWriter as KafkaWriter
    from .spark.writer import SparkWriter as SparkWriter
    from .stream import StreamWriter as StreamWriter

__getattr__, __dir__ = lazy_exports(__name__)
