"""The logs of a worker: those of every process of ours (`service.logs`), with a calmer Kafka client."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from service.logs import log_to_stderr
from service.repetition import Repetition

if TYPE_CHECKING:
    from collections.abc import Callable

    from framework.settings import LogSettings

__all__ = ["setup_logs"]

# What these libraries call information is either said by us already, or noise at our rates.
_QUIET: Final = ("aiohttp", "aiokafka", "asyncio", "clickhouse_connect", "numba", "py4j", "uvicorn")
_KAFKA_CLIENT: Final = "aiokafka"


def setup_logs(settings: LogSettings) -> None:
    """Send all logs of a worker's process to stderr; see `service.logs`."""
    least = logging.getLevelNamesMapping()[settings.level.upper()]
    log_to_stderr(settings.level, settings.format, quiet=_QUIET, calmed_by=[_KafkaClient(least)])


class _KafkaClient(logging.Filter):
    """Calms the Kafka client, which retries by itself: what it cannot mend it raises, and we log.

    Its errors become warnings, which are left out if `least`, the least level to log, is above. What it
    repeats at every attempt (a broker that is down) is logged once in a while (`Repetition`), with the
    number of those left out as `repeated`.
    """

    def __init__(
        self, least: int = logging.INFO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._least = least
        self._repetition = Repetition(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_KAFKA_CLIENT):
            return True
        if record.levelno == logging.ERROR:
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        if record.levelno < self._least:
            return False
        # The text before its arguments: few in number, so the table stays small.
        times = self._repetition.times((record.name, record.msg))
        if times > 1:
            record.repeated = times - 1
        return times > 0
