"""The driver's half of a micro-batch: its reducers, the error sink, and the metrics of what tasks report."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import anyio

from ... import errors
from ...delivery.error_limit import LimitWindow
from ...delivery.failures import ErrorPort
from ...delivery.ranges import merge_ranges
from ...errors import KmrError, SinkError
from ...memory.distinct import STAGE as DISTINCT_STAGE
from ...memory.window import Window
from ...record import Range, Rows
from ...reducers.collect import one_table
from ...reducers.reducer import ERROR_STAGE
from ...service.threads import background_loop
from ...strategy import MAP_STAGE
from .aggregation import FinalAggregate
from .chain import Chain
from .placement import place_reducers
from .report import read_failures, read_gathered, read_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from concurrent.futures import Future

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ...observe.metrics import Metrics
    from ...reducers.reducer import Context
    from ...strategy import Strategy
    from .chain import ChainResult
    from .report import TaskReport


class DriverReducers:
    """Runs the reducers of the driver, and `reduce_err`; updates the metrics of a worker.

    Args:
        reread: reads the original records of a range again, for rows that a reducer refused.

    Attributes:
        consumed: records read since the start.
        settled: offsets settled since the start.
    """

    def __init__(
        self,
        strategy: Strategy,
        context: Context,
        metrics: Metrics,
        reread: Callable[[Range], pa.RecordBatch],
    ) -> None:
        self._strategy = strategy
        self._context = context
        self._metrics = metrics
        self._reread = reread
        self._placement = place_reducers(strategy.stages)
        self._stages = [MAP_STAGE, DISTINCT_STAGE, *strategy.stages]
        windows = [name for name, each in strategy.stages.items() if isinstance(each, Window)]
        self._window = next(iter(windows), "")
        self._reducers = Chain({})
        self._errors: Chain | None = None
        self._inbox: Any = None
        self._running: Future[Any] | None = None
        self._cancelled = False
        self._replayed = False
        self.consumed = 0
        self.settled = 0
        self._port = ErrorPort(None, LimitWindow(strategy.err_limit), self._drop, metrics)

    def open(self, session: SparkSession, *, prepare: bool = False) -> None:
        """Connect the driver's reducers; open and close the tasks' reducers, to find a mistake early.

        Args:
            session: `SinkContext.session` of the driver's reducers.
            prepare: as in `SinkContext`.

        Raises:
            KmrError: a reducer cannot open.
        """
        self._run(self._open(self._context.with_sinks(prepare=prepare), session))

    async def _open(self, context: Context, session: SparkSession) -> None:
        strategy = self._strategy
        trial = Chain(self._placement.tasks)
        try:
            await trial.open(context)
        finally:
            await trial.close()
        context = context.with_sinks(session=session)
        self._reducers = Chain(self._placement.driver)
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
        """Give up the flush in progress, such as one that is retried again and again: `settle` raises."""
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

    def settle(self, result: pa.Table, *, replayed: bool) -> None:
        """Process the tasks' rows of a micro-batch. All of it is durable when this returns.

        Args:
            replayed: an earlier query may have written results of this micro-batch.

        Raises:
            KmrError: an error of a task, a reducer or the error sink; the micro-batch is not complete.
        """
        self._replayed = replayed
        reports = read_reports(result)
        for report in reports:
            if report.error is not None:
                name, message = report.error
                kind = getattr(errors, name, KmrError)
                raise kind(message)
        for stage in self._stages:
            for rows in read_failures(result, stage):
                self._run(self._divert(rows, stage))
        if self._placement.driver:
            self._run(self._reduce(list(read_gathered(result, self._reread)), reports))
        for report in reports:
            self._count(report)

    async def _reduce(self, gathered: list[Rows], reports: Sequence[TaskReport]) -> None:
        """Run the driver's reducers on the rows of all tasks."""
        if isinstance(next(iter(self._placement.driver.values())), FinalAggregate):
            gathered = _merge_rows(gathered, reports)
        outcome = await self._reducers.deliver(gathered, "trigger", replayed=self._replayed)
        self._observe(outcome)
        for rows in outcome.failed:
            await self._divert(rows, rows.table.column("stage")[0].as_py())

    async def _divert(self, rows: Rows, stage: str) -> None:
        await self._port.send(rows, stage, is_limited=stage != DISTINCT_STAGE)
        while self._errors is not None and self._inbox.statistics().current_buffer_used:
            rows = self._inbox.receive_nowait()
            outcome = await self._errors.deliver([rows], "trigger", replayed=self._replayed)
            self._observe(outcome)
            if outcome.failed:
                reason = outcome.failed[0].table.column("reason")[0].as_py()
                raise SinkError(f"{ERROR_STAGE}: the error sink refused rows: {reason}")

    def _drop(self, ranges: Iterable[Range]) -> None:
        """Do nothing: the checkpoint passes dropped failures with the micro-batch."""

    def _count(self, report: TaskReport) -> None:
        metrics = self._metrics
        self.consumed += report.records
        self.settled += max(0, report.last - report.first + 1)
        metrics.consumed.labels(report.topic).inc(report.records)
        metrics.settled.labels(report.topic).inc(max(0, report.last - report.first + 1))
        metrics.map_seconds.observe(report.map_seconds)
        metrics.map_retries.inc(report.map_retries)
        for result, rows in report.distinct.items():
            metrics.distinct_rows.labels(result).inc(rows)
        for outcome, rows in report.late.items():
            metrics.count_late(self._window, outcome, rows)
        if report.max_timestamp_ms >= 0:
            metrics.latency.observe(max(0.0, time.time() - report.max_timestamp_ms / 1000))
        self._observe(report)

    def _observe(self, what: TaskReport | ChainResult) -> None:
        metrics = self._metrics
        for flush in what.flushes:
            metrics.count_flush(flush.stage, flush.reason, flush.rows, flush.bytes, flush.seconds)
        for stage, count in what.retries.items():
            metrics.count_retry(stage, "the log has the reason", count)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._running = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
        if self._cancelled:
            self._running.cancel()
        self._running.result()


def _merge_rows(gathered: Sequence[Rows], reports: Sequence[TaskReport]) -> list[Rows]:
    """Join the rows of all tasks, with the full offset ranges of the micro-batch.

    A sink names the results of an aggregate after these ranges: they are the same when the micro-batch is
    repeated.
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
