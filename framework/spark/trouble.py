"""What goes wrong inside of Spark: told once, in a line, and not by Spark itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import structlog

from framework.errors import KmrError
from framework.spark.session import SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QueryFailed", "explained", "is_slow_start", "silence"]

_log = structlog.get_logger(__name__)

_NOISY: Final = (
    # Prints every failure with its whole Java stack; ours is told once, in one line.
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    # About adaptive execution, for every query.
    "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream",
)
_SLOW_START: Final = "Python worker failed to connect back"
_ERROR_LINE: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")


class QueryFailed(KmrError):
    """The query ended with an error that no part of a strategy has told about."""


def is_slow_start(error: BaseException) -> bool:
    """Whether a Python process took longer to start than the ten seconds that Spark gives it."""
    return _SLOW_START in str(error)


def silence(session: SparkSession) -> None:
    """Let Spark not log what is told here."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  the only way to Log4j
    log4j = jvm.org.apache.logging.log4j
    for name in _NOISY:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def explained(error: BaseException) -> KmrError:
    """What went wrong inside Spark, as far as it can be said in a line; our own errors as they are."""
    if isinstance(error, KmrError):
        return error
    text = str(error)
    if "KAFKA_DATA_SOURCE_NOT_ENABLED" in text:
        return SparkUnavailable(
            "--spark-source jvm needs Spark's Kafka connector on the class path: --spark-conf "
            "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION, or leave it out"
        )
    _log.debug("the query failed", error=text)
    # A Python error inside of Spark comes with its traceback: the last line says what it is.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, _, message = line.partition(": ")
        if name.startswith("framework.errors."):
            return KmrError(message)
        if _ERROR_LINE.match(line):
            return QueryFailed(f"a task of the query failed: {line}")
    return QueryFailed(f"the query failed: {lines[0] if lines else type(error).__name__}")
