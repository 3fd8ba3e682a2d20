"""Logging: one stream of structured events on stderr, for our own code and for every library.

Only entry points call `setup_logs`; library code takes a logger (`structlog.get_logger`) and says what
happened: WARNING for what was unexpected and is mended without loss, ERROR for what the operator must
see to. Normal operation logs little.
"""

from __future__ import annotations

import logging
import logging.config
import math
import sys
import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structlog.typing import EventDict, Processor, WrappedLogger

    from framework.settings import LogSettings

__all__ = ["setup_logs"]

# What these libraries call information is either said by us already, or noise at our rates.
_QUIET: Final = ("aiohttp", "aiokafka", "asyncio", "clickhouse_connect", "numba", "py4j", "uvicorn")
_KAFKA_CLIENT: Final = "aiokafka"
_REPEAT_AFTER: Final = 10.0


def setup_logs(settings: LogSettings) -> None:
    """Send all logs of this process to stderr in one format.

    `json` writes one object a line (`timestamp`, `level`, `logger`, `event`, then the event's own keys,
    and `exception` as text); `console` is for people; `auto` is console when stderr is a terminal.
    May be called again; the last call counts.
    """
    as_json = settings.format == "json" or (settings.format == "auto" and not _is_terminal())
    shared = _shared_processors()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    quiet = level if level == logging.DEBUG else max(level, logging.WARNING)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "kmr": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "processors": _renderers(as_json=as_json),
                    "foreign_pre_chain": [structlog.stdlib.ExtraAdder(), *shared],
                }
            },
            "filters": {"kafka": {"()": _KafkaClient, "least": level}},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": "kmr",
                    "filters": ["kafka"],
                    "stream": "ext://sys.stderr",
                }
            },
            "root": {"level": level, "handlers": ["stderr"]},
            "loggers": {name: {"level": quiet} for name in _QUIET},
        }
    )
    logging.captureWarnings(capture=True)


class _KafkaClient(logging.Filter):
    """Calms the Kafka client, which retries by itself: what it cannot mend it raises, and we log.

    Its errors become warnings, which are left out if `least`, the least level to log, is above. What it
    repeats at every attempt (a broker that is down) is logged once in `_REPEAT_AFTER` seconds, with
    the number of those left out as `repeated`.
    """

    def __init__(
        self, least: int = logging.INFO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._least = least
        self._clock = clock
        self._last: dict[tuple[str, object], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_KAFKA_CLIENT):
            return True
        if record.levelno == logging.ERROR:
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        if record.levelno < self._least:
            return False
        # The text before its arguments: few in number, so the table stays small.
        text = (record.name, record.msg)
        now = self._clock()
        when, left_out = self._last.get(text, (-math.inf, 0))
        if now - when < _REPEAT_AFTER:
            self._last[text] = (when, left_out + 1)
            return False
        self._last[text] = (now, 0)
        if left_out:
            record.repeated = left_out
        return True


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _renderers(*, as_json: bool) -> Sequence[Processor]:
    remove: Processor = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if not as_json:
        # Plain tracebacks: rich ones show local variables, which may be records or passwords.
        plain = structlog.dev.plain_traceback
        return [
            remove,
            structlog.dev.ConsoleRenderer(colors=_is_terminal(), exception_formatter=plain),
        ]
    return [
        remove,
        structlog.processors.format_exc_info,
        _known_keys_first,
        structlog.processors.JSONRenderer(),
    ]


def _known_keys_first(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    known = {key: event.pop(key) for key in ("timestamp", "level", "logger", "event")}
    return {**known, **event}


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
