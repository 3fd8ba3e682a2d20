"""The worker engine: runs a strategy as one member of a consumer group, until a shutdown."""

from __future__ import annotations

import math
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog

from .errors import DeadlineExceeded, KmrError
from .events import EventHandler, Failed, Shutdown
from .kafka.connection import connection_config, consumer_config
from .kafka.kafka_consumer import KafkaConsumer
from .observe.health import HealthServer
from .observe.metrics import Metrics
from .observe.status import PartitionStatus, WorkerStatus
from .pipeline import Pipeline
from .reducers.reducer import Context
from .service.process import freeze_modules, keep_freed_memory

if TYPE_CHECKING:
    from .kafka.consumer import Consumer
    from .settings import Settings
    from .strategy import Strategy

__all__ = ["ExitCode", "Worker", "run_worker"]

_log = structlog.get_logger(__name__)

LEAVE_TIMEOUT = 5.0
SAME_SIGNAL = 0.5
"""Seconds in which a repeated signal counts as the same one: `timeout` and some init processes send each
signal to the process and to its group."""


class ExitCode:
    """Exit codes of the process; a second signal ends it with 128 plus its number."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    DEADLINE_EXCEEDED = 3


class Worker:
    """Runs a strategy as a member of a consumer group.

    Args:
        strategy: how the records are processed.
        settings: the connection, the topics and the limits.
        metrics: the metrics to record in; with a registry of their own by default.
        consumer: the Kafka client; made from the settings by default.

    Attributes:
        health_url: the address of the health server; None without one.
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
        self._pipeline = Pipeline(strategy, self._consumer, settings, self.metrics)
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
        """Request a drain and return; `run` returns when it is done. Further calls have no effect."""
        if not self._shutdown.is_set():
            self._reason = reason
            self._shutdown.set()

    async def ready(self) -> None:
        """Return when the worker has joined its group and processes its partitions."""
        await self._events.assigned_once.wait()

    async def run(self) -> None:
        """Consume until `shutdown`, then drain, commit and leave the group.

        Raises:
            KmrError: the first error of any stage; watermarks reached before it are committed.
            DeadlineExceeded: the drain took longer than `shutdown_deadline`.
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
                await self._fail()
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
        """Wait for `shutdown`, then drain until the deadline."""
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

    async def _fail(self) -> None:
        """Commit the watermarks, so that fewer records are delivered again."""
        with anyio.move_on_after(LEAVE_TIMEOUT, shield=True):
            await self._events.handle(Failed())
            await self._committer.commit()

    async def _close(self) -> None:
        with anyio.move_on_after(2 * LEAVE_TIMEOUT, shield=True):
            await self._consumer.stop()
        with anyio.move_on_after(2 * LEAVE_TIMEOUT, shield=True):
            await self._pipeline.close()

    async def _observe(self) -> None:
        """Update the lag for `/metrics` at every interval."""
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
                position=ledger.position,
                start=consumer.start_offset(ledger.partition),
                end=consumer.end_offset(ledger.partition),
                paused=self._pipeline.intake.inboxes.is_paused(ledger.partition),
            )
            for ledger in self._pipeline.ledgers
        ]

    def status(self) -> WorkerStatus:
        """Return the worker's present status."""
        pipeline, state = self._pipeline, self._events.state
        stages = pipeline.stages()
        standing = anyio.current_time() - pipeline.intake.progress_at
        stalled = pipeline.intake.budget.used > 0 and standing > self._settings.stall_timeout
        problem = next((f"{s.name}: {s.reason}" for s in stages if s.reason is not None), None)
        if stalled:
            problem = f"no progress for {standing:.0f} s; {problem or 'no stage reports a reason'}"
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
    """Run a worker as a process: the first SIGTERM or SIGINT drains it, a second one ends it.

    A `KmrError` is printed as one message on stderr.

    Returns:
        The exit code (`ExitCode`).
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
    """Return the first error in nested groups: it caused the others."""
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return group
