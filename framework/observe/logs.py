"""The logs of a worker: those of `kmr.service.logs`, with fewer messages of the Kafka client."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from ..service.logs import Repetition, log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..record import TopicPartition
    from ..settings import LogSettings

# Information of these libraries repeats our own logs, or is too frequent to be useful.
_QUIET: Final = ("aiohttp", "aiokafka", "asyncio", "clickhouse_connect", "numba", "py4j", "uvicorn")
_KAFKA_CLIENT: Final = "aiokafka"
_T = TypeVar("_T")

_always: dict[str, object] = {}


def setup_logs(settings: LogSettings, **always: object) -> None:
    """Send all logs of a worker's process to stderr; see `kmr.service.logs.log_to_stderr`.

    Args:
        always: what every event has: `worker=1` says which of several workers logs.
    """
    _always.clear()
    _always.update(always)
    least = logging.getLevelNamesMapping()[settings.level.upper()]
    log_to_stderr(
        settings.level,
        settings.format,
        quiet=_QUIET,
        filters=[_KafkaClient(least)],
        always=always,
    )


def in_every_event() -> dict[str, object]:
    """Return what every event of this process has: processes that it starts log the same."""
    return dict(_always)


def joined_partitions(values: Mapping[TopicPartition, _T]) -> dict[str, _T]:
    """Return one entry for successive partitions of one value: `{"orders-0..511": 0}`."""
    runs: list[tuple[TopicPartition, TopicPartition, _T]] = []
    for partition, value in sorted(values.items(), key=lambda item: item[0]):
        if runs:
            first, last, common = runs[-1]
            if partition == (last.topic, last.partition + 1) and value == common:
                runs[-1] = (first, partition, common)
                continue
        runs.append((partition, partition, value))
    return {
        str(first) if first == last else f"{first}..{last.partition}": value
        for first, last, value in runs
    }


class _KafkaClient(logging.Filter):
    """Lowers the level and the rate of the Kafka client's messages.

    The client retries on its own, and raises the errors that it cannot handle, which we log. So its errors
    become warnings, which are left out if `least`, the lowest level to log, is above. A message that it
    repeats at every attempt (a broker that is down) is logged at intervals (`Repetition`), with the number
    of omitted messages as `repeated`.
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
        # The key is the text before its arguments: there are few, so the table stays small.
        times = self._repetition.times((record.name, record.msg))
        if times > 1:
            record.repeated = times - 1
        return times > 0
