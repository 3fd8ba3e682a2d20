"""Logging of `kmr broker serve`: one stream of structured events on stderr, for its libraries too.

Normal operation logs little. WARNING is what was unexpected and is mended without loss of data, ERROR what
the operator must see to.
"""

from __future__ import annotations

import logging
import logging.config
import sys
from typing import TYPE_CHECKING, Final, Literal

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["LogFormat", "LogLevel", "set_up_logs"]

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]

_QUIET: Final = ("asyncio", "uvicorn")
"""What these libraries call information is noise."""


def set_up_logs(level: LogLevel, form: LogFormat) -> None:
    """Send all logs of this process to stderr in one format.

    `json` writes one object a line (`timestamp`, `level`, `logger`, `event`, then the event's own keys,
    and `exception` as text); `console` is for people; `auto` is console when stderr is a terminal.
    """
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "processors": _renderers(as_json=as_json),
        "foreign_pre_chain": shared,
    }
    least = logging.getLevelNamesMapping()[level.upper()]
    quiet = least if least == logging.DEBUG else max(least, logging.WARNING)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"kmr": formatter},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": "kmr",
                    "stream": "ext://sys.stderr",
                }
            },
            "root": {"level": least, "handlers": ["stderr"]},
            "loggers": {name: {"level": quiet} for name in _QUIET},
        }
    )
    logging.captureWarnings(capture=True)


def _renderers(*, as_json: bool) -> list[Processor]:
    """With plain tracebacks: others show local variables, and those of requests hold secrets."""
    remove: Processor = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if not as_json:
        console = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
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
