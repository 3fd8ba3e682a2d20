"""Logging: one stream of structured events on stderr, for our own code and for every library.

Only entry points call `log_to_stderr`; library code uses `structlog.get_logger`. Levels: WARNING for
unexpected events that are recovered from without loss of data, ERROR for those that need an operator.
Normal operation logs little.
"""

from __future__ import annotations

import logging
import logging.config
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from .log_handler import LogHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from structlog.typing import EventDict, Processor, WrappedLogger

    from . import LogFormat, LogLevel

_INTERVAL: Final = 10.0  # seconds
_OURS: Final = str(Path(__file__).parents[1])
_PATH: Final = structlog.processors.CallsiteParameter.PATHNAME
_CALLER: Final = structlog.processors.CallsiteParameterAdder([_PATH], [__name__])


class Repetition:
    """Limits repeated log messages to one every 10 seconds; for a bounded number of different ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._said: dict[Hashable, float] = {}
        self._unsaid: dict[Hashable, int] = {}

    def times(self, what: Hashable) -> int:
        """Count a message; return how many occurred since the last one logged, or 0: do not log now."""
        now = self._clock()
        count = self._unsaid.get(what, 0) + 1
        if what in self._said and now - self._said[what] < _INTERVAL:
            self._unsaid[what] = count
            return 0
        self._said[what] = now
        self._unsaid[what] = 0
        return count


def log_to_stderr(
    level: LogLevel,
    form: LogFormat,
    *,
    quiet: Sequence[str],
    filters: Sequence[logging.Filter] = (),
    always: Mapping[str, object] | None = None,
) -> None:
    """Send all logs of this process to stderr in one format; a later call replaces an earlier one.

    Args:
        level: the lowest level that is logged.
        form: `json` writes one object a line (`timestamp`, `level`, `logger`, `event`, then the event's
            own keys, and `exception` as text); `console` writes text, in colours on a terminal.
        quiet: libraries that log from WARNING up, unless `level` is debug.
        filters: applied to every record.
        always: keys and values that every event has.
    """
    shared: list[Processor] = [
        partial(_add, dict(always or {})),
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
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
    least = logging.getLevelNamesMapping()[level.upper()]
    quietest = least if least == logging.DEBUG else max(least, logging.WARNING)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "kmr": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "processors": _renderers(as_json=form == "json"),
                    "foreign_pre_chain": [structlog.stdlib.ExtraAdder(), *shared],
                }
            },
            "handlers": {
                "stderr": {
                    "()": LogHandler,
                    "formatter": "kmr",
                    "filters": list(filters),
                    "stream": "ext://sys.stderr",
                }
            },
            "root": {"level": least, "handlers": ["stderr"]},
            "loggers": {name: {"level": quietest} for name in quiet},
        }
    )
    logging.captureWarnings(capture=True)


@contextmanager
def only_warnings() -> Iterator[None]:
    """Leave out what our own code logs below WARNING, however logs are configured."""
    processors = structlog.get_config()["processors"]
    if not isinstance(processors, list):
        yield
        return
    # In place, as `structlog.testing` does: bound loggers have this list.
    processors.insert(0, _drop_ours)
    try:
        yield
    finally:
        processors.remove(_drop_ours)


def _drop_ours(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if method in ("debug", "info") and _CALLER(logger, method, {})[_PATH.value].startswith(_OURS):
        raise structlog.DropEvent
    return event


def _renderers(*, as_json: bool) -> Sequence[Processor]:
    # Plain tracebacks: others show local variables, which may be records or passwords.
    remove: Processor = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if not as_json:
        console = structlog.dev.ConsoleRenderer(
            colors=sys.stderr is not None and sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
        )
        return [remove, console]
    return [
        remove,
        structlog.processors.format_exc_info,
        _known_keys_first,
        structlog.processors.JSONRenderer(),
    ]


def _add(always: Mapping[str, object], _: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**event, **always}


def _known_keys_first(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    known = {key: event.pop(key) for key in ("timestamp", "level", "logger", "event")}
    return {**known, **event}
