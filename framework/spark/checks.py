"""What a strategy can and cannot do on Spark, stage by stage, without starting it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from framework.aggregate import Aggregate
from framework.collect import Batcher, Collect
from framework.errors import StrategyError
from framework.sinks.clickhouse import ClickHouseWriter
from framework.sinks.kafka import KafkaWriter
from framework.sinks.spark import SparkWriter
from framework.sinks.stream import StreamWriter
from framework.spark.chain import NAMES_RANGES
from framework.spark.chunks import CHUNK_BYTES, GRID

if TYPE_CHECKING:
    from framework.reducer import Reducer
    from framework.strategy import Strategy

__all__ = ["Finding", "findings", "require_possible"]

Level = Literal["guarantee", "difference", "error"]

_AT_LEAST_ONCE = "at least once: a task or micro-batch that is repeated writes its rows again"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a stage: what it guarantees, what differs from the worker, what cannot be."""

    stage: str
    level: Level
    text: str


def findings(strategy: Strategy) -> list[Finding]:
    """Everything to know about running a strategy on Spark."""
    found: list[Finding] = []
    last = len(strategy.reduce)
    for number, reducer in enumerate(strategy.reduce, start=1):
        stage = f"reduce-{number}"
        found.append(_of_reducer(stage, reducer, is_last=number == last))
        if isinstance(reducer, SparkWriter) and reducer.path is None:
            found.append(
                Finding(stage, "error", "tasks have no Spark session: give SparkWriter a path")
            )
        elif isinstance(reducer, SparkWriter) and (
            reducer.transform is not None or reducer.format != "parquet" or reducer.options
        ):
            found.append(
                Finding(
                    stage,
                    "error",
                    "tasks have no Spark session: SparkWriter can only write Parquet to a path here, "
                    "without transform= and options=",
                )
            )
        if reducer.when_full == "backpressure":
            found.append(
                Finding(
                    stage, "difference", "when_full='backpressure' has no effect: nothing waits"
                )
            )
    limits = (
        "" if isinstance(strategy.reduce[0], NAMES_RANGES) else ", and at max_rows and max_bytes"
    )
    found.append(
        Finding(
            "reduce-1",
            "difference",
            f"flushes every {GRID:,} offsets of a partition, at {CHUNK_BYTES >> 20} MiB, at the end of a "
            f"micro-batch{limits}; never at max_age",
        )
    )
    found.append(_of_errors(strategy.reduce_err))
    return found


def _of_reducer(stage: str, reducer: Reducer, *, is_last: bool) -> Finding:
    name = type(reducer).__name__
    if isinstance(reducer, ClickHouseWriter):
        return Finding(
            stage, "guarantee", f"{name}: exactly once, by one token per range of offsets"
        )
    if isinstance(reducer, SparkWriter):
        return Finding(
            stage, "guarantee", f"{name}: exactly once, by one file per range of offsets"
        )
    if isinstance(reducer, StreamWriter):
        return Finding(
            stage,
            "difference",
            f"{name}: writes where its task runs: to the logs, or the disk, of an executor; {_AT_LEAST_ONCE}",
        )
    if isinstance(reducer, KafkaWriter):
        return Finding(stage, "guarantee", f"{name}: {_AT_LEAST_ONCE}")
    if isinstance(reducer, Aggregate | Batcher):
        return Finding(
            stage,
            "difference",
            f"{name}: one result for each chunk of a task, as for each flush of a worker",
        )
    if isinstance(reducer, Collect) and not is_last:
        return Finding(stage, "difference", f"{name}: called for each chunk of a task")
    return Finding(
        stage,
        "guarantee",
        f"{name}: {_AT_LEAST_ONCE}; each task has a copy, so nothing it remembers is shared",
    )


def _of_errors(reducer: Reducer | None) -> Finding:
    stage = "reduce-err"
    if reducer is None:
        return Finding(stage, "difference", "none: the first record that fails stops the query")
    name = type(reducer).__name__
    if isinstance(reducer, SparkWriter):
        return Finding(
            stage, "guarantee", f"{name}: runs in the driver, before the micro-batch is complete"
        )
    how = "exactly once" if isinstance(reducer, ClickHouseWriter) else "at least once"
    return Finding(
        stage,
        "guarantee",
        f"{name}: {how}; runs in the driver, and is durable before the micro-batch is complete",
    )


def require_possible(strategy: Strategy) -> None:
    """Raise StrategyError for the first thing that a strategy cannot do on Spark."""
    for finding in findings(strategy):
        if finding.level == "error":
            raise StrategyError(f"{finding.stage} cannot run on Spark: {finding.text}")
