"""Which reducers run in tasks, each task by itself, and which in the driver, once for a micro-batch.

Everything runs in tasks, up to the first reducer that wants the rows of the whole micro-batch
(`Aggregate`) or the session (a `SparkWriter` that is not for Parquet files at a path). From there on the
driver runs the strategy; what its first reducer gets has been gathered from all tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from framework.reducers.aggregate import Aggregate
from framework.sinks.spark.writer import SparkWriter
from framework.spark.partials import FinalAggregate, PartialAggregate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from framework.reducer import Reducer

__all__ = ["Division", "divide_reducers", "stage_names"]


class Division(NamedTuple):
    """Reducers and the names of their stages, those of the worker; an aggregate is in both halves.

    Attributes:
        tasks: for the rows of each chunk.
        driver: for what the tasks of a micro-batch made of them; none if tasks do everything.
    """

    tasks: dict[str, Reducer]
    driver: dict[str, Reducer]


def divide_reducers(reducers: Sequence[Reducer]) -> Division:
    """Divide the reducers of a strategy; at least one half has some."""
    named = dict(zip(stage_names(reducers), reducers, strict=True))
    for at, (stage, reducer) in enumerate(named.items()):
        tasks = dict(list(named.items())[:at])
        driver = dict(list(named.items())[at:])
        if isinstance(reducer, Aggregate):
            tasks[stage] = PartialAggregate(reducer)
            driver[stage] = FinalAggregate(reducer)
            return Division(tasks, driver)
        if isinstance(reducer, SparkWriter) and reducer.needs_session:
            return Division(tasks, driver)
    return Division(named, {})


def stage_names(reducers: Sequence[Reducer]) -> list[str]:
    """The names of reducers, as in the worker's metrics and logs."""
    return [f"reduce-{number}" for number in range(1, len(reducers) + 1)]
