"""Logging: one stream of structured events on stderr, for our own code and for every library.

Only entry points call this; library code takes a logger (`structlog.get_logger`) and says what happened:
WARNING for what was unexpected and is mended without loss of data, ERROR for what the operator must see
to. Normal operation logs little.
"""

from __future__ import annotations

import logging
import logging.config
import sys
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["LogFormat", "LogLevel", "log_to_stderr"]

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]


def log_to_stderr(
    level: LogLevel,
    form: LogFormat,
    *,
    quiet: Sequence[str],
    calmed_by: Sequence[logging.Filter] = (),
) -> None:
    """Send all logs of this process to stderr in one format. The last call counts.

    Args:
        level: the least that is logged.
        form: `json` writes one object a line (`timestamp`, `level`, `logger`, `event`, then the event's
            own keys, and `exception` as text); `console` is for people; `auto` is console when stderr is
            a terminal.
        quiet: libraries whose information is noise.
        calmed_by: filters of every record.
    """
    shared: list[Processor] = [
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
                    "processors": _renderers(
                        as_json=form == "json" or (form == "auto" and not _is_terminal())
                    ),
                    "foreign_pre_chain": [structlog.stdlib.ExtraAdder(), *shared],
                }
            },
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": "kmr",
                    "filters": list(calmed_by),
                    "stream": "ext://sys.stderr",
                }
            },
            "root": {"level": least, "handlers": ["stderr"]},
            "loggers": {name: {"level": quietest} for name in quiet},
        }
    )
    logging.captureWarnings(capture=True)


def _renderers(*, as_json: bool) -> Sequence[Processor]:
    """With plain tracebacks: others show local variables, which may be records or passwords."""
    remove: Processor = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if not as_json:
        console = structlog.dev.ConsoleRenderer(
            colors=_is_terminal(), exception_formatter=structlog.dev.plain_traceback
        )
        return [remove, console]
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
