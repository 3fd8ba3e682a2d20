"""kafka-map-reduce: consume Kafka topics by map-reduce, in plain Python.

The names here are what a strategy is written with; `framework.sinks` has the writers. No name shadows a
module of the package.
"""

from framework.aggregate import Aggregate
from framework.collect import Batcher, Collect
from framework.errors import KmrError, SinkError, StrategyError
from framework.mapper import map_batch, map_record
from framework.record import SCHEMA, Batch, Header, Record, Rows
from framework.reducer import Context, Empty, Flushed, Poisoned, Reducer, Retry
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
