"""Where a reducer writes: ClickHouse, Spark, a Kafka topic, a stream of text.

A writer is imported when it is first asked for: what one of them needs, the others do not pay for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from framework.sinks.clickhouse.writer import ClickHouseWriter
    from framework.sinks.kafka.writer import DeadLetterWriter, KafkaWriter
    from framework.sinks.spark.writer import SparkWriter
    from framework.sinks.stream import StreamWriter

__all__ = ["ClickHouseWriter", "DeadLetterWriter", "KafkaWriter", "SparkWriter", "StreamWriter"]

_MODULES: Final = {
    "ClickHouseWriter": "clickhouse.writer",
    "DeadLetterWriter": "kafka.writer",
    "KafkaWriter": "kafka.writer",
    "SparkWriter": "spark.writer",
    "StreamWriter": "stream",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
