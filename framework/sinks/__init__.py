"""The writers: reducers that write to ClickHouse, PostgreSQL, Parquet files, Spark, Kafka or a stream; and
what a writer of your own extends.

Each is imported when it is first used, with its libraries.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_exports

if TYPE_CHECKING:
    from ..reducers.collect import Collecting as Collecting
    from ..reducers.collect import one_table as one_table
    from ..reducers.sink import Sink as Sink
    from .clickhouse.spark.clickhouse_source import ClickHouseSource as ClickHouseSource
    from .clickhouse.writer import ClickHouseWriter as ClickHouseWriter
    from .kafka.letter_writer import DeadLetterWriter as DeadLetterWriter
    from .kafka.writer import KafkaWriter as KafkaWriter
    from .parquet.writer import ParquetWriter as ParquetWriter
    from .planning import RangeRows as RangeRows
    from .postgres.writer import PostgresWriter as PostgresWriter
    from .ranges import RangeWriter as RangeWriter
    from .spark.writer import SparkWriter as SparkWriter
    from .stream import StreamWriter as StreamWriter

__getattr__, __dir__ = lazy_exports(__name__)
