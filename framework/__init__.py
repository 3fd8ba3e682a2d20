"""kafka-map-reduce: consume Kafka topics by map-reduce, in plain Python.

The names here are what a strategy is written with; `framework.sinks` has the writers. No name shadows a
module of the package. A name is imported when it is first asked for: a process that only reads Kafka, as
those that Spark starts, does not pay for the worker and its HTTP server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from framework.errors import KmrError, SinkError, StrategyError
    from framework.mapper import map_batch, map_record
    from framework.record import SCHEMA, Batch, Header, Record, Rows
    from framework.reducer import Context, Empty, Flushed, Poisoned, Reducer, Retry
    from framework.reducers.aggregate import Aggregate
    from framework.reducers.collect import Batcher, Collect
    from framework.settings import Settings
    from framework.strategy import ErrorLimit, Strategy
    from framework.worker import Worker, run_worker

__all__ = [
    "SCHEMA",
    "Aggregate",
    "Batch",
    "Batcher",
    "Collect",
    "Context",
    "Empty",
    "ErrorLimit",
    "Flushed",
    "Header",
    "KmrError",
    "Poisoned",
    "Record",
    "Reducer",
    "Retry",
    "Rows",
    "Settings",
    "SinkError",
    "Strategy",
    "StrategyError",
    "Worker",
    "map_batch",
    "map_record",
    "run_worker",
]

_MODULES: Final = {
    "reducers.aggregate": ("Aggregate",),
    "reducers.collect": ("Batcher", "Collect"),
    "errors": ("KmrError", "SinkError", "StrategyError"),
    "mapper": ("map_batch", "map_record"),
    "record": ("SCHEMA", "Batch", "Header", "Record", "Rows"),
    "reducer": ("Context", "Empty", "Flushed", "Poisoned", "Reducer", "Retry"),
    "settings": ("Settings",),
    "strategy": ("ErrorLimit", "Strategy"),
    "worker": ("Worker", "run_worker"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"framework.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
