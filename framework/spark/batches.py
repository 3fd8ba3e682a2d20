"""The driver's half of a micro-batch: its reducers, the error sink, and the counting of what tasks report."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import structlog

import framework.errors
from framework.errors import KmrError, SinkError
from framework.failures import ErrorPort, LimitWindow
from framework.ranges import merge_ranges
from framework.record import Range, Rows
from framework.reducers.tables import one_table
from framework.sinks.spark.writer import SparkWriter
from framework.spark.chain import Chain
from framework.spark.client import event_loop
from framework.spark.division import divide_reducers, stage_names
from framework.spark.partials import FinalAggregate
from framework.spark.report import read_failures, read_gathered, read_reports
from framework.spark.task import MAP_STAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from concurrent.futures import Future

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from framework.reducer import Context
    from framework.spark.chain import Outcome
    from framework.spark.offsets import OffsetRange
    from framework.spark.report import TaskReport
    from framework.strategy import Strategy
    from framework.telemetry import Metrics

__all__ = ["Accounts"]

ERROR_STAGE = "reduce-err"

_log = structlog.get_logger(__name__)


class Accounts:
    """Runs the reducers that are for the driver, and `reduce_err`; counts in the metrics of a worker.

    Args:
        reread: reads the original records of a range again: those behind rows that a reducer refused.

    Attributes:
        consumed: records read since the start.
        settled: offsets settled since the start.
    """

    def __init__(
        self,
        strategy: Strategy,
        context: Context,
        metrics: Metrics,
        reread: Callable[[OffsetRange], pa.RecordBatch],
    ) -> None:
        self._strategy = strategy
        self._context = context
        self._metrics = metrics
        self._reread = reread
        self._division = divide_reducers(strategy.reduce)
        self._stages = [MAP_STAGE, *stage_names(strategy.reduce)]
        self._reducers = Chain({})
        self._errors: Chain | None = None
        self._inbox: Any = None
        self._running: Future[Any] | None = None
        self._cancelled = False
        self.consumed = 0
        self.settled = 0
        self._port = ErrorPort(None, LimitWindow(strategy.err_limit), self._drop, metrics)

    def open(self, session: SparkSession, *, prepare: bool = False) -> None:
        """Connect; the tasks' reducers too, once, so that a mistake is told before the start.

        Args:
            session: what a `SparkWriter` in the driver writes with, whatever its own `master` says.
            prepare: as in `Context`.

        Raises:
            KmrError: what the user must mend.
        """
        for reducer in (*self._division.driver.values(), self._strategy.reduce_err):
            if isinstance(reducer, SparkWriter):
                reducer.session.use(session)
        self._run(self._open(replace(self._context, prepare=prepare)))

    async def _open(self, context: Context) -> None:
        strategy = self._strategy
        trial = Chain(self._division.tasks)
        try:
            await trial.open(context)
        finally:
            await trial.close()
        self._reducers = Chain(self._division.driver)
        await self._reducers.open(context)
        if strategy.reduce_err is not None:
            send, self._inbox = anyio.create_memory_object_stream["Rows"](float("inf"))
            window = LimitWindow(strategy.err_limit)
            self._port = ErrorPort(send, window, self._drop, self._metrics)
            self._errors = Chain({ERROR_STAGE: strategy.reduce_err})
            await self._errors.open(context)

    def close(self) -> None:
        """Disconnect."""
        self._cancelled = False
        self._run(self._close())

    def cancel(self) -> None:
        """Give up what is under way, such as a sink that refuses again and again: `settle` raises."""
        self._cancelled = True
        if self._running is not None:
            self._running.cancel()

    async def _close(self) -> None:
        self._port.close()
        if self._inbox is not None:
            self._inbox.close()
        if self._errors is not None:
            await self._errors.close()
        await self._reducers.close()

    def settle(self, result: pa.Table) -> list[TaskReport]:
        """Take what the tasks of a micro-batch returned. When it returns, all of it is durable.

        Raises:
            KmrError: an error of a task, of a reducer or of the error sink; the micro-batch is not
                complete.
        """
        reports = read_reports(result)
        for report in reports:
            if report.error is not None:
                name, message = report.error
                kind = getattr(framework.errors, name, KmrError)
                raise kind(message)
        for stage in self._stages:
            for rows in read_failures(result, stage):
                self._run(self._divert(rows, stage))
        if self._division.driver:
            self._run(self._reduce(list(read_gathered(result, self._reread)), reports))
        for report in reports:
            self._count(report)
        return reports

    async def _reduce(self, gathered: list[Rows], reports: Sequence[TaskReport]) -> None:
        """Run the driver's reducers on the rows of all tasks."""
        if isinstance(next(iter(self._division.driver.values())), FinalAggregate):
            gathered = _together(gathered, reports)
        outcome = await self._reducers.deliver(gathered, "trigger")
        self._observe(outcome)
        for rows in outcome.failed:
            await self._divert(rows, rows.table.column("stage")[0].as_py())

    async def _divert(self, rows: Rows, stage: str) -> None:
        await self._port.send(rows, stage)
        while self._errors is not None and self._inbox.statistics().current_buffer_used:
            outcome = await self._errors.deliver([self._inbox.receive_nowait()], "trigger")
            self._observe(outcome)
            if outcome.failed:
                reason = outcome.failed[0].table.column("reason")[0].as_py()
                raise SinkError(f"{ERROR_STAGE}: the error sink refused rows: {reason}")

    def _drop(self, ranges: Iterable[Range]) -> None:
        """Dropped failures need no settling: the checkpoint goes past them with the micro-batch."""

    def _count(self, report: TaskReport) -> None:
        metrics = self._metrics
        self.consumed += report.records
        self.settled += max(0, report.last - report.first + 1)
        metrics.consumed.labels(report.topic).inc(report.records)
        metrics.settled.labels(report.topic).inc(max(0, report.last - report.first + 1))
        metrics.map_seconds.observe(report.map_seconds)
        if report.max_timestamp_ms >= 0:
            metrics.latency.observe(max(0.0, time.time() - report.max_timestamp_ms / 1000))
        self._observe(report)

    def _observe(self, what: TaskReport | Outcome) -> None:
        metrics = self._metrics
        for flush in what.flushes:
            metrics.flushes.labels(flush.stage, flush.reason).inc()
            metrics.flush_records.labels(flush.stage).observe(flush.rows)
            metrics.flush_bytes.labels(flush.stage).observe(flush.bytes)
            metrics.flush_seconds.labels(flush.stage).observe(flush.seconds)
        for stage, count in what.retries.items():
            metrics.flush_retries.labels(stage).inc(count)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._running = asyncio.run_coroutine_threadsafe(coroutine, event_loop())
        if self._cancelled:
            self._running.cancel()
        self._running.result()


def _together(gathered: Sequence[Rows], reports: Sequence[TaskReport]) -> list[Rows]:
    """Rows that stand for everything that the micro-batch has read, whichever records made them.

    So what is written of them is named after the ranges of the micro-batch, which are the same when it
    is repeated, and after nothing else.
    """
    if not gathered:
        return []
    ranges = merge_ranges(
        Range(report.topic, report.partition, report.first, report.last)
        for report in reports
        if report.last >= report.first
    )
    sources = tuple(source for rows in gathered for source in rows.sources)
    return [Rows(one_table(gathered), ranges, None, sources)]
