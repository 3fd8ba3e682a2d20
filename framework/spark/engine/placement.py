"""Where each reducer of a strategy runs on Spark, and what that guarantees; without starting Spark.

Reducers run in tasks, up to the first one that wants the rows of the whole micro-batch (`Aggregate`) or
writes with the session (`Capabilities.needs_session`). From there on the driver runs the strategy, once for
each micro-batch; its first reducer gets the rows of all tasks, so they must fit into the driver's memory.

Spark repeats a task, or a whole micro-batch, after a crash, a lost executor or by speculation. A
micro-batch is repeated with the same ranges of offsets: the checkpoint has them. "Exactly once" needs a
map that returns the same rows for the same record.

The README has a table of all sinks. Each sink states its own guarantee (`Capabilities.on_spark`); this
module knows none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ...errors import StrategyError
from ...memory.window import Window
from ...reducers.aggregate import Aggregate
from ...reducers.reducer import ERROR_STAGE
from ...reducers.sink import Sink, capabilities_of
from .aggregation import FinalAggregate, PartialAggregate
from .chunks import CHUNK_BYTES, GRID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...reducers.reducer import Reducer
    from ...strategy import Strategy


_MEMORY: Final = (
    "one task for each partition; its memory is a file in the checkpoint for each micro-batch, and one that "
    "is repeated begins with the same"
)


class Placement(NamedTuple):
    """Reducers by stage name, as in the worker; an aggregate has a part in each half.

    Attributes:
        tasks: run on each chunk of a task.
        driver: run on the tasks' rows of a micro-batch; empty if tasks do everything.
    """

    tasks: dict[str, Reducer]
    driver: dict[str, Reducer]


def place_reducers(stages: Mapping[str, Reducer]) -> Placement:
    """Divide the reducers of a strategy (`Strategy.stages`) between tasks and driver."""
    for at, (stage, reducer) in enumerate(stages.items()):
        tasks = dict(list(stages.items())[:at])
        driver = dict(list(stages.items())[at:])
        if isinstance(reducer, Aggregate):
            tasks[stage] = PartialAggregate(reducer)
            driver[stage] = FinalAggregate(reducer)
            return Placement(tasks, driver)
        if capabilities_of(reducer).needs_session:
            return Placement(tasks, driver)
    return Placement(dict(stages), {})


Level = Literal["guarantee", "difference", "error"]


@dataclass(frozen=True, slots=True)
class PlacementNote:
    """A statement about one stage on Spark: a guarantee, a difference to the worker, or an error."""

    stage: str
    level: Level
    text: str


def examine_strategy(strategy: Strategy) -> list[PlacementNote]:
    """Return what a strategy guarantees on Spark, what differs from the worker, and what prevents it."""
    return [*_of_strategy(strategy), *_of_reducers(strategy), _of_errors(strategy.reduce_err)]


def require_runnable(strategy: Strategy) -> None:
    """Raise StrategyError for the first finding that prevents a strategy from running on Spark."""
    for finding in examine_strategy(strategy):
        if finding.level == "error":
            raise StrategyError(f"{finding.stage} cannot run on Spark: {finding.text}")


def _of_strategy(strategy: Strategy) -> Iterator[PlacementNote]:
    if strategy.delivery == "at-most-once":
        yield PlacementNote(
            "strategy",
            "error",
            "delivery='at-most-once': the checkpoint goes past records when they are written, not before",
        )
    if strategy.tables:
        yield PlacementNote(
            "strategy",
            "difference",
            "tables=: each Python process of the executors has all of them in its memory; a task begins with "
            "what their topics had when it began",
        )
    for branch, distinct in strategy.distincts.items():
        yield PlacementNote("strategy", "guarantee", f"{branch} {distinct}: {_MEMORY}".strip())
    for stage, writer in strategy.writers.items():
        if capabilities_of(writer).in_order:
            yield PlacementNote(
                stage,
                "error",
                f"{type(writer).__name__}(changes=True) needs changes in their order, and Spark's tasks keep "
                "none; use ClickHouseWriter(changes=True), whose rows have versions, write change rows, or "
                "run a worker",
            )
    if strategy.window is not None:
        yield from _of_window(strategy.window)
    if strategy.is_transactional:
        name = type(strategy.reducers[-1]).__name__
        yield PlacementNote(
            "strategy",
            "error",
            f"delivery='exactly-once' of {name}: its transactions commit a group's offsets, and Spark's are "
            "in the checkpoint; set Strategy(delivery='at-least-once'), or run a worker",
        )


def _of_window(window: Window) -> Iterator[PlacementNote]:
    yield PlacementNote("strategy", "guarantee", f"Window {window.definition}: {_MEMORY}")
    if window.idle is not None:
        yield PlacementNote(
            "strategy",
            "difference",
            "Window(idle=...): the wall clock closes windows between micro-batches, in steps of at least a "
            "twentieth of the time that a window holds; with the trigger available-now it closes none",
        )


def _of_reducers(strategy: Strategy) -> Iterator[PlacementNote]:
    placement = place_reducers(strategy.stages)
    for stage, reducer in strategy.stages.items():
        name = type(reducer).__name__
        if isinstance(reducer, Window):
            continue
        if isinstance(reducer, Sink) or reducer is strategy.reducers[-1]:
            yield PlacementNote(stage, "guarantee", f"{name}: {capabilities_of(reducer).on_spark}")
        if difference := _difference(reducer, in_task=stage in placement.tasks):
            yield PlacementNote(stage, "difference", f"{name}: {difference}")
        if reducer.when_full == "backpressure":
            yield PlacementNote(
                stage, "difference", "when_full='backpressure' has no effect: nothing waits"
            )
    yield from _of_flushes(placement)


def _difference(reducer: Reducer, *, in_task: bool) -> str:
    if isinstance(reducer, Sink):
        return reducer.capabilities.difference_on_spark
    if isinstance(reducer, Aggregate):
        return (
            "one result for each micro-batch, with all of its partitions; limits have no effect. Tasks "
            "aggregate, the driver merges their results and runs the reducers after it"
        )
    if in_task:
        return (
            "one result for each chunk of a task, or less at its limits; each task has a copy with its own "
            "state"
        )
    return "one result for each micro-batch, or less at its limits"


def _of_flushes(placement: Placement) -> Iterator[PlacementNote]:
    """Say when the first stage of the tasks flushes, and that the driver's first stage holds all rows."""
    for stage, first in list(placement.tasks.items())[:1]:
        if not isinstance(first, PartialAggregate | Window):
            limits = (
                "" if capabilities_of(first).names_ranges else ", and at max_rows and max_bytes"
            )
            yield PlacementNote(
                stage,
                "difference",
                f"flushes every {GRID:,} offsets of a partition, at {CHUNK_BYTES >> 20} MiB, at the end of "
                f"a micro-batch{limits}; never at max_age",
            )
    for stage, first in list(placement.driver.items())[:1]:
        if not isinstance(first, FinalAggregate):
            yield PlacementNote(
                stage,
                "difference",
                "from here on the driver runs the strategy, once for each micro-batch, whose rows it "
                "holds: give it memory (spark.driver.memory, spark.driver.maxResultSize), or lower "
                "--max-offsets-per-trigger",
            )


def _of_errors(reducer: Reducer | None) -> PlacementNote:
    if reducer is None:
        return PlacementNote(
            ERROR_STAGE, "difference", "none: the first record that fails stops the query"
        )
    name, guarantee = type(reducer).__name__, capabilities_of(reducer).errors_on_spark
    return PlacementNote(
        ERROR_STAGE,
        "guarantee",
        f"{name}: {guarantee}; runs in the driver, and is durable before the micro-batch is complete",
    )
