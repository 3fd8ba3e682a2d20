"""The worker engine: one strategy, one member of a consumer group, until it is told to stop."""

from __future__ import annotations

import math
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog

from framework.errors import DeadlineExceeded, KmrError
from framework.events import EventHandler, Failed, Shutdown
from framework.health import HealthServer
from framework.kafka.clients import connection_config, consumer_config
from framework.kafka.consumer import KafkaConsumer
from framework.memory import freeze_modules, keep_freed_memory
from framework.pipeline import Limits, Pipeline
from framework.reducer import Context
from framework.status import PartitionStatus, WorkerStatus
from framework.telemetry import Metrics

if TYPE_CHECKING:
    from framework.consumer import Consumer
    from framework.settings import Settings
    from framework.strategy import Strategy

__all__ = ["ExitCode", "Worker", "run_worker"]

_log = structlog.get_logger(__name__)

LEAVE_TIMEOUT = 5.0
SAME_SIGNAL = 0.5
"""Seconds in which a signal that comes again is the same one: `timeout` and some init processes send it
to the process and to its group."""


class ExitCode:
    """What the process ends with; a second signal ends it with 128 plus its number."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    DEADLINE_EXCEEDED = 3


class Worker:
    """Runs a strategy as a member of a consumer group.

    Args:
        strategy: what to do with the records.
        settings: where they come from, and the limits.
        metrics: where to count; a registry of its own by default.
        consumer: the Kafka client; made from the settings by default.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        consumer: Consumer | None = None,
    ) -> None:
        self._settings = settings
        self.metrics = metrics or Metrics()
        self._consumer: Consumer = consumer or KafkaConsumer(
            consumer_config(settings),
            on_skip=lambda partition: self.metrics.offset_resets.labels(partition.topic).inc(),
        )
        limits = Limits(
            settings.inflight_bytes,
            settings.queue_batches,
            settings.executor,
            settings.executor_workers,
            settings.commit_interval,
        )
        self._pipeline = Pipeline(strategy, self._consumer, limits, self.metrics)
        self._committer = self._pipeline.committer
        self._events = EventHandler(
            self._pipeline,
            self._consumer,
            self._committer,
            revoke_deadline=settings.revoke_deadline,
            metrics=self.metrics,
        )
        self._shutdown = anyio.Event()
        self._reason = ""
        self._started = anyio.current_time()
        self.health_url: str | None = None

    def shutdown(self, reason: str) -> None:
        """Ask for a drain; returns at once, and `run` returns when it is done. May be repeated."""
        if not self._shutdown.is_set():
            self._reason = reason
            self._shutdown.set()

    async def ready(self) -> None:
        """Return when the worker has joined its group and works on what it was assigned."""
        await self._events.assigned_once.wait()

    async def run(self) -> None:
        """Consume until `shutdown`, then drain, commit and leave the group.

        Raises:
            KmrError: the first error of any stage; what was settled before is committed.
            DeadlineExceeded: the drain took longer than `shutdown_deadline`; names what was left.
        """
        settings = self._settings
        self._started = anyio.current_time()
        async with AsyncExitStack() as stack:
            if settings.http.port is not None:
                server = HealthServer(
                    settings.http.host, settings.http.port, self.status, self.metrics
                )
                self.health_url = (await stack.enter_async_context(server)).url
            stack.push_async_callback(self._close)
            await self._pipeline.open(
                Context(
                    group=settings.group,
                    bootstrap_servers=settings.bootstrap_servers,
                    stage="",
                    client=connection_config(settings).client_options(),
                    prepare=settings.prepare_table,
                )
            )
            try:
                await self._consume()
            except BaseException as error:
                await self._fail(error)
                if isinstance(error, BaseExceptionGroup):
                    raise _first(error) from None
                raise
            self._events.stopped()

    async def _consume(self) -> None:
        await self._consumer.start(self._events)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._committer.run)
            tasks.start_soon(self._observe)
            tasks.start_soon(self._drain_on_shutdown)
            await self._pipeline.run()
            tasks.cancel_scope.cancel()
        await self._committer.commit()

    async def _drain_on_shutdown(self) -> None:
        """Wait for the order to stop, then give the pipeline until the deadline."""
        await self._shutdown.wait()
        deadline = self._settings.shutdown_deadline
        with anyio.move_on_after(deadline - min(LEAVE_TIMEOUT, deadline / 5)):
            await self._events.handle(Shutdown(self._reason))
            await self._pipeline.drained.wait()
            return
        left = ", ".join(self._pipeline.undrained()) or "nothing"
        busy = ", ".join(f"{s.name} is {s.activity}" for s in self._pipeline.stages() if s.rows)
        raise DeadlineExceeded(
            f"not drained within shutdown_deadline ({deadline:g} s): {left} ({busy or 'all idle'}); "
            "these records are not committed and will be delivered again"
        )

    async def _fail(self, error: BaseException) -> None:
        """Commit what was settled before the failure: the less is delivered again."""
        with anyio.move_on_after(LEAVE_TIMEOUT, shield=True):
            await self._events.handle(Failed(error))
            await self._committer.commit()

    async def _close(self) -> None:
        with anyio.move_on_after(2 * LEAVE_TIMEOUT, shield=True):
            await self._consumer.stop()
        with anyio.move_on_after(2 * LEAVE_TIMEOUT, shield=True):
            await self._pipeline.close()

    async def _observe(self) -> None:
        """Keep the lag up to date for `/metrics`."""
        while True:
            await anyio.sleep(self._settings.commit_interval)
            for partition in self._partitions():
                if partition.lag is not None:
                    lag = self.metrics.lag.labels(partition.topic, str(partition.partition))
                    lag.set(partition.lag)

    def _partitions(self) -> list[PartitionStatus]:
        consumer = self._consumer
        return [
            PartitionStatus(
                topic=ledger.partition.topic,
                partition=ledger.partition.partition,
                watermark=ledger.watermark,
                committed=self._committer.committed(ledger.partition),
                position=ledger.delivered,
                start=consumer.start_offset(ledger.partition),
                end=consumer.end_offset(ledger.partition),
                paused=self._pipeline.intake.is_paused(ledger.partition),
            )
            for ledger in self._pipeline.ledgers
        ]

    def status(self) -> WorkerStatus:
        """What the worker does at this moment."""
        pipeline, state = self._pipeline, self._events.state
        stages = pipeline.stages()
        standing = anyio.current_time() - pipeline.intake.progress_at
        stalled = pipeline.intake.budget.used > 0 and standing > self._settings.stall_timeout
        problem = next((f"{s.name}: {s.reason}" for s in stages if s.reason is not None), None)
        if stalled:
            problem = f"no progress for {standing:.0f} s; {problem or 'no stage says why'}"
        return WorkerStatus(
            state=state,
            live=not stalled and state != "failed",
            ready=state in ("running", "suspended"),
            problem=problem,
            group=self._settings.group,
            topics=self._settings.topics,
            stages=stages,
            partitions=tuple(self._partitions()),
            inflight_bytes=pipeline.intake.budget.used,
            inflight_limit=pipeline.intake.budget.limit,
            consumed=pipeline.intake.consumed,
            settled=pipeline.intake.settled,
            uptime=anyio.current_time() - self._started,
        )


def run_worker(strategy: Strategy, settings: Settings) -> int:
    """Run a worker as a whole process: the first SIGTERM or SIGINT drains it, a second one ends it.

    Returns the exit code (`ExitCode`). An error that the user can mend is one message on stderr.
    """
    keep_freed_memory()
    freeze_modules()
    return anyio.run(partial(_run_process, strategy, settings))


async def _run_process(strategy: Strategy, settings: Settings) -> int:
    codes: list[int] = []
    try:
        async with anyio.create_task_group() as tasks:
            worker = Worker(strategy, settings)
            tasks.start_soon(_obey_signals, worker, tasks.cancel_scope, codes)
            await worker.run()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = _first(group)
        if not isinstance(error, KmrError):
            raise error from None
        print(f"kmr: {error}", file=sys.stderr)  # noqa: T201  the user's message
        codes.append(
            ExitCode.DEADLINE_EXCEEDED if isinstance(error, DeadlineExceeded) else ExitCode.FAILED
        )
    return codes[0] if codes else ExitCode.CLEAN


async def _obey_signals(worker: Worker, scope: anyio.CancelScope, codes: list[int]) -> None:
    asked_at = math.inf
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            now = anyio.current_time()
            if asked_at == math.inf:
                asked_at = now
                worker.shutdown(signal.Signals(number).name)
            elif now - asked_at > SAME_SIGNAL:
                _log.warning(
                    "second signal: stopping without a drain", signal=signal.Signals(number).name
                )
                codes.append(128 + number)
                scope.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error in nested groups: the one that made the others stop."""
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return group
