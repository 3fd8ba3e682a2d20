"""What a strategy guarantees on Spark, what differs from the worker, and what cannot be: without starting it.

What holds for each sink when a task, or a whole micro-batch, is repeated (a crash, a lost executor,
speculation). A micro-batch is repeated with the same ranges of offsets: the checkpoint has them. "Exactly
once" needs a map that returns the same rows for the same record.

    sink                                        runs in   guarantee
    ClickHouseWriter                            tasks     exactly once: one token per range of offsets
    SparkWriter(path=), Parquet                 tasks     exactly once: one file per range, by its name
    SparkWriter(path=, format=), other files    driver    exactly once: one directory per micro-batch
    SparkWriter(table=), made of Parquet files  driver    exactly once: one file per micro-batch
    SparkWriter, Delta                          driver    exactly once: txnAppId and txnVersion; but rows
                                                          of an Aggregate at least once
    SparkWriter, Iceberg and other formats      driver    at least once
    SparkWriter(transform=)                     driver    as where its result is written to; at least once
                                                          if it writes by itself
    KafkaWriter, StreamWriter, your reducers    tasks     at least once
    any of them behind an Aggregate             driver    the same, one token or file per micro-batch
    any of them as reduce_err                   driver    at least once, but exactly once by ClickHouse;
                                                          durable before the micro-batch is complete

"Per micro-batch" is per topic partition where rows belong to one. What runs in the driver is given the
rows (or the groups) of the whole micro-batch: they must fit into its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from framework.errors import StrategyError
from framework.reducers.aggregate import Aggregate
from framework.reducers.collect import Batcher, Collect
from framework.sinks.clickhouse.writer import ClickHouseWriter
from framework.sinks.kafka.writer import KafkaWriter
from framework.sinks.spark.destinations import FILE_FORMATS
from framework.sinks.spark.writer import SparkWriter
from framework.sinks.stream import StreamWriter
from framework.spark.chain import NAMES_RANGES
from framework.spark.chunks import CHUNK_BYTES, GRID
from framework.spark.division import divide_reducers
from framework.spark.partials import FinalAggregate, PartialAggregate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from framework.reducer import Reducer
    from framework.spark.division import Division
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
    return [*_of_strategy(strategy), *_of_reducers(strategy), _of_errors(strategy.reduce_err)]


def require_possible(strategy: Strategy) -> None:
    """Raise StrategyError for the first thing that a strategy cannot do on Spark."""
    for finding in findings(strategy):
        if finding.level == "error":
            raise StrategyError(f"{finding.stage} cannot run on Spark: {finding.text}")


def _of_strategy(strategy: Strategy) -> Iterator[Finding]:
    if strategy.delivery == "at-most-once":
        yield Finding(
            "strategy",
            "error",
            "delivery='at-most-once': the checkpoint goes past records when they are written, not before",
        )


def _of_reducers(strategy: Strategy) -> Iterator[Finding]:
    division = divide_reducers(strategy.reduce)
    stages = dict.fromkeys([*division.tasks, *division.driver])
    for number, (stage, reducer) in enumerate(zip(stages, strategy.reduce, strict=True), start=1):
        in_driver = stage in division.driver
        is_last = number == len(strategy.reduce)
        yield _of_reducer(stage, reducer, in_driver=in_driver, is_last=is_last)
        if isinstance(reducer, SparkWriter) and in_driver:
            yield Finding(
                stage,
                "difference",
                "master= and settings= have no effect: the engine's session writes",
            )
        if reducer.when_full == "backpressure":
            yield Finding(
                stage, "difference", "when_full='backpressure' has no effect: nothing waits"
            )
    yield from _of_flushes(division)


def _of_flushes(division: Division) -> Iterator[Finding]:
    """When the first stage flushes, and what the driver holds."""
    for stage, first in list(division.tasks.items())[:1]:
        if not isinstance(first, PartialAggregate):
            limits = "" if isinstance(first, NAMES_RANGES) else ", and at max_rows and max_bytes"
            yield Finding(
                stage,
                "difference",
                f"flushes every {GRID:,} offsets of a partition, at {CHUNK_BYTES >> 20} MiB, at the end of "
                f"a micro-batch{limits}; never at max_age",
            )
    for stage, first in list(division.driver.items())[:1]:
        if not isinstance(first, FinalAggregate):
            yield Finding(
                stage,
                "difference",
                "from here on the driver runs the strategy, once for each micro-batch, whose rows it "
                "holds: give it memory (spark.driver.memory, spark.driver.maxResultSize), or lower "
                "--max-offsets-per-trigger",
            )


def _of_reducer(stage: str, reducer: Reducer, *, in_driver: bool, is_last: bool) -> Finding:
    name = type(reducer).__name__
    if isinstance(reducer, ClickHouseWriter):
        each = "micro-batch" if in_driver else "range of offsets"
        return Finding(stage, "guarantee", f"{name}: exactly once, by one token per {each}")
    if isinstance(reducer, SparkWriter):
        return Finding(stage, "guarantee", f"{name}: {_of_spark_writer(reducer)}")
    if isinstance(reducer, StreamWriter) and not in_driver:
        return Finding(
            stage,
            "difference",
            f"{name}: writes where its task runs: to the logs, or the disk, of an executor; {_AT_LEAST_ONCE}",
        )
    if isinstance(reducer, StreamWriter | KafkaWriter):
        return Finding(stage, "guarantee", f"{name}: {_AT_LEAST_ONCE}")
    if isinstance(reducer, Aggregate):
        return Finding(
            stage,
            "difference",
            f"{name}: one result for each micro-batch, with all of its partitions, whatever its limits: "
            "tasks aggregate, the driver puts that together, and runs what follows",
        )
    if isinstance(reducer, Batcher) or (isinstance(reducer, Collect) and not is_last):
        each = "micro-batch" if in_driver else "chunk of a task"
        return Finding(
            stage, "difference", f"{name}: one result for each {each}, or less at its limits"
        )
    copies = "" if in_driver else "; each task has a copy, so nothing that it remembers is shared"
    return Finding(stage, "guarantee", f"{name}: {_AT_LEAST_ONCE}{copies}")


def _of_spark_writer(writer: SparkWriter) -> str:
    if not writer.needs_session:
        return "exactly once, by one file per range of offsets"
    if writer.table is not None:
        return (
            "exactly once if the table is made of Parquet files that the driver can write, or is Delta; "
            "else at least once, which the log says at start"
        )
    if writer.path is None:
        return f"the transform writes by itself, {_AT_LEAST_ONCE}"
    if writer.format == "delta":
        return "exactly once, by txnAppId and txnVersion"
    if writer.format in FILE_FORMATS:
        return "exactly once, by files or a directory per micro-batch, which are replaced"
    return f"Spark appends to {writer.format}, {_AT_LEAST_ONCE}"


def _of_errors(reducer: Reducer | None) -> Finding:
    stage = "reduce-err"
    if reducer is None:
        return Finding(stage, "difference", "none: the first record that fails stops the query")
    name = type(reducer).__name__
    how = "exactly once" if isinstance(reducer, ClickHouseWriter) else "at least once"
    return Finding(
        stage,
        "guarantee",
        f"{name}: {how}; runs in the driver, and is durable before the micro-batch is complete",
    )
