"""The driver's half of a micro-batch: what tasks report is counted, and failures reach the error sink."""

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
from framework.spark.chain import Chain
from framework.spark.client import event_loop
from framework.spark.report import read_failures, read_reports
from framework.spark.task import MAP_STAGE, reduce_stages

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    import pyarrow as pa

    from framework.record import Range, Rows
    from framework.reducer import Context
    from framework.spark.chain import Summary
    from framework.spark.report import TaskReport
    from framework.strategy import Strategy
    from framework.telemetry import Metrics

__all__ = ["Accounts"]

ERROR_STAGE = "reduce-err"

_log = structlog.get_logger(__name__)


class Accounts:
    """Counts what tasks report in the metrics of a worker, and runs `reduce_err`.

    Attributes:
        consumed: records read since the start.
        settled: offsets settled since the start.
    """

    def __init__(self, strategy: Strategy, context: Context, metrics: Metrics) -> None:
        self._strategy = strategy
        self._context = context
        self._metrics = metrics
        self._stages = [MAP_STAGE, *reduce_stages(strategy)]
        self._chain: Chain | None = None
        self._inbox: Any = None
        self.consumed = 0
        self.settled = 0
        self._port = ErrorPort(None, LimitWindow(strategy.err_limit), self._drop, metrics)

    def open(self) -> None:
        """Connect `reduce_err`; connect the reducers too, once, so that a mistake is told before the start.

        Raises:
            KmrError: what the user must mend.
        """
        self._run(self._open())

    async def _open(self) -> None:
        strategy = self._strategy
        trial = Chain(strategy.reduce, reduce_stages(strategy))
        try:
            await trial.open(self._context)
        finally:
            await trial.close()
        if strategy.reduce_err is not None:
            send, self._inbox = anyio.create_memory_object_stream["Rows"](float("inf"))
            window = LimitWindow(strategy.err_limit)
            self._port = ErrorPort(send, window, self._drop, self._metrics)
            self._chain = Chain([strategy.reduce_err], [ERROR_STAGE])
            await self._chain.open(replace(self._context, stage=ERROR_STAGE))

    def close(self) -> None:
        """Disconnect."""
        self._run(self._close())

    async def _close(self) -> None:
        self._port.close()
        if self._inbox is not None:
            self._inbox.close()
        if self._chain is not None:
            await self._chain.close()

    def settle(self, result: pa.Table) -> list[TaskReport]:
        """Take what the tasks of a micro-batch returned. When it returns, all failures are durable.

        Raises:
            KmrError: a task's error, or that of the error sink; the micro-batch is not complete.
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
        for report in reports:
            self._count(report)
        return reports

    async def _divert(self, rows: Rows, stage: str) -> None:
        await self._port.send(rows, stage)
        while self._chain is not None and self._inbox.statistics().current_buffer_used:
            refused, summary = await self._chain.deliver(self._inbox.receive_nowait(), "trigger")
            self._observe(summary)
            if refused:
                reason = refused[0].table.column("reason")[0].as_py()
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

    def _observe(self, what: TaskReport | Summary) -> None:
        metrics = self._metrics
        for flush in what.flushes:
            metrics.flushes.labels(flush.stage, flush.reason).inc()
            metrics.flush_records.labels(flush.stage).observe(flush.rows)
            metrics.flush_bytes.labels(flush.stage).observe(flush.bytes)
            metrics.flush_seconds.labels(flush.stage).observe(flush.seconds)
        for stage, count in what.retries.items():
            metrics.flush_retries.labels(stage).inc(count)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, event_loop()).result()
