"""The worker engine: runs a strategy as one member of a consumer group, until a shutdown."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from ._extras import installed_version
from .archives.archive import Archive, ArchiveSource
from .archives.consumer import ArchiveConsumer
from .contact import BrokerContact
from .errors import DeadlineExceeded, Escaped, no_escape, reason_of
from .events import EventHandler, Shutdown, StageFailed
from .kafka.connection import connection_config, consumer_config
from .kafka.kafka_consumer import KafkaConsumer
from .kafka.subscription import Subscription
from .observe.backfill import BackfillWatch
from .observe.liveness import IdlePartition, Liveness
from .observe.metrics import Metrics
from .observe.progress import CatchUp, ProgressLog, RecentRate
from .observe.status import PartitionStatus, WorkerStatus
from .observe.waits import WaitLog
from .pipeline import Pipeline
from .record import TopicPartition
from .reducers.sink import with_large_flushes
from .service.deadline import Deadline, end_shields
from .sinks.kafka.letter_writer import DeadLetterWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from .kafka.consumer import Consumer
    from .observe.health import HealthServer
    from .settings import Settings
    from .strategy import Strategy

_OBSERVED_PER_SECOND: Final = 250  # partitions; observing 2,000 of them takes 30 ms
_MANY: Final = 0.1  # share of failed records above which the last line is a warning

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SupervisorLink:
    """What the supervisor of several workers hears of one, and decides for it.

    Attributes:
        name: `worker 1`, for messages.
        report: called when status and metrics can be asked for; there is no HTTP server of its own.
        admitted: returns when it may join the group. Until then it does everything that takes long.
        joined: called when it has joined the group.
        left: called when it uses the group no more: another may take its place.
        leaves: returns whether it leaves the group at its end, although it is a static member.
        failed: called with the reason of a failure, instead of printing it.
    """

    name: str
    report: Callable[[Callable[[], WorkerStatus], CollectorRegistry], None]
    admitted: Callable[[], Awaitable[None]]
    joined: Callable[[], None]
    left: Callable[[], None]
    leaves: Callable[[], bool]
    failed: Callable[[str], None]


class Worker:
    """Runs a strategy as a member of a consumer group.

    Args:
        strategy: how the records are processed.
        settings: the connection, the topics and the limits.
        metrics: the observer that all stages tell what they do; by default one of its own.
        consumer: the Kafka client; made from the settings by default.
        supervisor: of several workers; None if this is the only one.

    Raises:
        StrategyError: a stage writes to a topic that is read.

    Attributes:
        deadline: that of the shutdown.
        failure: the first error; None as long as there is none.
        health_url: the address of the health server; None without one.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        consumer: Consumer | None = None,
        supervisor: SupervisorLink | None = None,
    ) -> None:
        self._subscription = Subscription(settings.topics, settings.topic_pattern)
        for topic in settings.topics:
            strategy.of_topic(topic)
        strategy.refuse_loop(self._subscription, settings.bootstrap_servers)
        if settings.history:
            strategy = strategy.with_chains(
                lambda _branch, chain: [with_large_flushes(each) for each in chain]
            )
        self._strategy = strategy
        self._settings = settings
        self._supervisor = supervisor
        self.metrics = metrics or Metrics()
        self.metrics.begin(
            settings.group, settings.strategy or "", strategy.stages, settings.topics
        )
        self._consumer: Consumer = consumer or self._client()
        self._pipeline = Pipeline(
            strategy,
            self._consumer,
            settings,
            self.metrics,
            on_failure=self._fail,
        )
        self._committer = self._pipeline.committer
        self._events = EventHandler(
            self._pipeline,
            self._consumer,
            self._committer,
            revoke_deadline=settings.revoke_deadline,
            only_history=settings.history,
            metrics=self.metrics,
        )
        self._backfill: BackfillWatch | None = None
        if consumer is None and not settings.history:
            config = connection_config(settings)
            self._backfill = BackfillWatch(config, settings.group, self.metrics.observe_backfill)
        self._contact = BrokerContact(self._consumer, self.metrics, timeout=settings.broker_timeout)
        self._liveness = Liveness(settings.stall_timeout)
        self._shutdown = anyio.Event()
        self._starting = anyio.CancelScope()
        self._working = anyio.CancelScope()
        self._draining = anyio.CancelScope()
        self._timers: list[asyncio.TimerHandle] = []
        self._reason = ""
        self._loop = asyncio.get_running_loop()
        self._started = anyio.current_time()
        self.deadline = Deadline(settings.shutdown_deadline, self._loop.time)
        self.failure: BaseException | None = None
        self.health_url: str | None = None

    def _client(self) -> Consumer:
        config = consumer_config(self._settings)
        if self._settings.history and (source := ArchiveSource.of(self._settings)) is not None:
            return ArchiveConsumer(config, partial(Archive.open, source), on_skip=self._skip)
        return KafkaConsumer(config, on_skip=self._skip)

    def shutdown(self, reason: str) -> None:
        """Request a drain and return; `run` returns when it is done. Further calls have no effect.

        A worker that is still waiting for its sinks or its broker ends at once.
        """
        self._begin_end()
        self._drain(reason)

    def _drain(self, reason: str) -> None:
        if not self._shutdown.is_set():
            self._reason = reason
            self._starting.cancel()
            self._shutdown.set()

    @property
    def pipeline(self) -> Pipeline:
        """Its stages, with the intake, the budget and the ledgers."""
        return self._pipeline

    async def ready(self) -> None:
        """Return when the worker has joined its group and processes its partitions."""
        await self._events.assigned_once.wait()

    async def run(self) -> None:
        """Consume until `shutdown`, then drain, commit and leave the group.

        With `until_caught_up` the worker drains by itself; `shutdown_deadline` then begins when something is
        repeated or stands still: a flush may take as long as it takes.

        It returns within `shutdown_deadline` of `shutdown`, or of the first error: a plain function of the
        strategy that hangs is abandoned, in a daemon thread. A coroutine of the strategy that suppresses
        its cancellation is not: it delays the return.

        Raises:
            KmrError: the first error of any stage; watermarks reached before it are committed.
            DeadlineExceeded: the shutdown took longer than `shutdown_deadline`.
        """
        self._started = anyio.current_time()
        self.metrics.count_tasks_of(asyncio.get_running_loop())
        async with AsyncExitStack() as stack:
            server = self._server()
            if self._supervisor is not None:
                self._supervisor.report(self.status, self.metrics.registry)
            if server is not None:
                self.health_url = (await stack.enter_async_context(server)).url
            try:
                with self._working, no_escape():
                    await self._work()
                    if not self._shutdown.is_set():
                        raise Escaped(asyncio.CancelledError("a task of the worker was cancelled"))
            except BaseException as error:  # noqa: BLE001  raised below
                self._fail(error)
            await self._end()
        if self.failure is not None:
            raise self.failure
        self._events.stopped()
        took = round(self.deadline.seconds - self.deadline.left, 1)
        _log.info(
            "drained and stopped",
            settled=self._pipeline.intake.settled,
            failed=self.metrics.done.failed,
            seconds=took,
        )
        done, failures = self.metrics.done, self.metrics.failures.newest_first()
        if done.failed > done.read * _MANY:
            reasons = (each.reason for each in failures if each.kind == "record failed")
            _log.warning(str(done), latest_reason=next(reasons, None))
        else:
            _log.info(str(done))

    def _server(self) -> HealthServer | None:
        http = self._settings.http
        if http.port is None or self._supervisor is not None:
            return None
        from .observe.health import HealthServer  # takes time to import

        return HealthServer.of_worker(http.host, http.port, self.status, self.metrics)

    async def _work(self) -> None:
        """Start, process until everything is drained, and commit it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain_on_shutdown)
            with self._starting:
                await self._start()
            if not self._starting.cancelled_caught:
                if self._supervisor is not None:
                    tasks.start_soon(self._report_joined, self._supervisor)
                tasks.start_soon(self._committer.run)
                tasks.start_soon(self._observe)
                tasks.start_soon(self._contact.watch)
                tasks.start_soon(self._follow_backfill)
                await self._pipeline.run()
                await self._committer.commit()
            tasks.cancel_scope.cancel()

    async def _follow_backfill(self) -> None:
        """Follow a backfill, once a partition has a generation: the cut begins one."""
        while self._backfill is not None:
            if any(self._committer.generations.values()):
                await self._backfill.run()
                return
            await anyio.sleep(self._settings.commit_interval)

    def _skip(self, partition: TopicPartition, offset: int) -> None:
        self.metrics.offset_resets.labels(partition.topic).inc()
        self._pipeline.skip(partition, offset)

    async def _report_joined(self, supervisor: SupervisorLink) -> None:
        await self.ready()
        supervisor.joined()

    def _fail(self, error: BaseException) -> None:
        """Note an error, and stop everything if it is the first one: that has caused the others."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if self.failure is None:
            self.failure = error
            self._begin_end()
            self._working.cancel()

    def _begin_end(self) -> None:
        if self._timers:
            return
        self.deadline.begin()
        self._draining.deadline = self.deadline.drain_at
        self._timers = [
            self._loop.call_at(at, end_shields)
            for at in (self.deadline.drain_at, self.deadline.end_at)
        ]

    async def _start(self) -> None:
        settings = self._settings
        _log.info(
            "starting",
            version=installed_version(),
            strategy=settings.strategy,
            group=settings.group,
            topics=settings.topics or str(self._subscription),
            settings=settings.changed(),
        )
        await self._contact.until_answered(self._consumer.reach)
        await self._pipeline.open()
        await self._consumer.start(self._events, self._admitted)

    async def _admitted(self) -> None:
        """Return when this process may join the group: it ends what an earlier one may have left open."""
        if self._supervisor is not None:
            await self._supervisor.admitted()
        await self._contact.until_answered(self._committer.take_over)

    async def _drain_on_shutdown(self) -> None:
        """Wait for `shutdown`, then drain until the deadline or until cancelled: all is committed."""
        await self._shutdown.wait()
        with self._draining:
            await self._events.handle(Shutdown(self._reason))
            await anyio.sleep_forever()
        raise DeadlineExceeded(self.undone())

    def undone(self) -> str:
        """Describe what the shutdown has not finished, as a message."""
        busy = ", ".join(
            f"{stage.name} is {stage.activity} for {stage.seconds:.0f} s"
            for stage in self._pipeline.stages()
            if stage.activity != "idle"
        )
        return (
            f"not ended within shutdown_deadline ({self.deadline.seconds:g} s): "
            + self.in_flight()
            + (f" ({busy})" if busy else "")
        )

    def in_flight(self) -> str:
        """Describe the offsets that are not settled, as a part of a message; from any thread."""
        left = ", ".join(self._pipeline.offsets_in_flight())
        if not left:
            return "all records are drained"
        return f"{left} not drained: not committed, they will be delivered again"

    async def _end(self) -> None:
        """Commit after a failure, leave the group and close the sinks, until the deadline."""
        self._begin_end()
        with anyio.CancelScope(deadline=self.deadline.end_at, shield=True) as scope:
            if self.failure is not None:
                await self._attempt("commit", self._commit_reached)
            # After a failure keep the static membership: the worker will be started again.
            leaves = (
                self.failure is None and self._supervisor is not None and self._supervisor.leaves()
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._attempt, "leave the group", partial(self._leave, leaves))
                tasks.start_soon(self._attempt, "close the sinks", self._pipeline.close)
        for timer in self._timers:
            timer.cancel()
        if scope.cancelled_caught:
            self._failed_too("end", DeadlineExceeded(self.undone()))

    async def _leave(self, leaves: bool) -> None:
        await self._consumer.stop(leave=leaves)
        if self._supervisor is not None:
            self._supervisor.left()

    async def _commit_reached(self) -> None:
        """Commit the watermarks, so that fewer records are delivered again."""
        half = (self.deadline.end_at - anyio.current_time()) / 2
        with anyio.move_on_after(half):
            await self._events.handle(StageFailed())
            if self._contact.problem is None:
                await self._committer.commit()

    async def _attempt(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        try:
            await step()
        except Exception as error:  # noqa: BLE001  `run` raises the first one
            self._failed_too(what, error)

    def _failed_too(self, what: str, error: Exception) -> None:
        """Keep an error of the end, unless one came before it: that is the cause, and this is logged."""
        if self.failure is None:
            self.failure = error
        else:
            _log.warning(
                "the end of a failed worker failed too", step=what, reason=reason_of(error)
            )

    async def _observe(self) -> None:
        """Update gauges and liveness at every interval; less often for many partitions."""
        live = True
        progress = ProgressLog(
            self._settings.session_timeout,
            self._settings.rebalance_timeout,
            anyio.current_time(),
            self._settings.worker_count,
        )
        pace, waits = RecentRate(), WaitLog()
        catch_up = CatchUp() if self._settings.until_caught_up else None
        while True:
            seconds = len(self._pipeline.intake.inboxes) / _OBSERVED_PER_SECOND
            await anyio.sleep(max(self._settings.commit_interval, seconds))
            await self._consumer.look_up_ends()
            now = anyio.current_time()
            self._pipeline.intake.count_waiting()
            self._liveness.note(self._idle_partitions(), now)
            status = self.status()
            for partition in status.partitions:
                self.metrics.observe_lag(partition, self._oldest(partition))
                if self._strategy.window is not None:
                    self.metrics.observe_held(partition, self._oldest(partition, held=True))
            self.metrics.observe_retries(status.stages)
            progress.note(status, now)
            waits.note(status.stages, self._pipeline.intake.waited)
            pace.note(status.settled, now)
            lag = sum(partition.lag or 0 for partition in status.partitions)
            self.metrics.drain_seconds.set(pace.seconds_left(lag))
            if catch_up is not None and catch_up.is_reached(status):
                self._drain("caught up")
            if self._shutdown.is_set() and status.problem is not None:
                self._begin_end()
            if status.live != live:
                live = status.live
                report = _log.info if live else _log.error
                report("live again" if live else "not live", problem=status.problem)

    def _oldest(self, partition: PartitionStatus, *, held: bool = False) -> float | None:
        """Return when the oldest batch in flight was produced, in seconds since 1970; None without one.

        Of those that open windows hold, or of the others.
        """
        ledger = self._pipeline.ledgers.get(TopicPartition(partition.topic, partition.partition))
        found = None if ledger is None else ledger.oldest_timestamp_ms(held=held)
        return None if found is None else found / 1000

    def _idle_partitions(self) -> list[IdlePartition]:
        consumer, ledgers = self._consumer, self._pipeline.ledgers
        return [
            IdlePartition(
                partition,
                ledger.position,
                consumer.end_offset(partition),
                consumer.answered_at(partition),
            )
            for partition in self._pipeline.idle_partitions()
            if (ledger := ledgers.get(partition)) is not None
        ]

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
                end=consumer.end_offset(ledger.partition) if ledger.until is None else ledger.until,
                paused=self._pipeline.intake.inboxes.is_paused(ledger.partition),
                held=ledger.held,
            )
            for ledger in sorted(self._pipeline.ledgers, key=lambda ledger: ledger.partition)
        ]

    def status(self) -> WorkerStatus:
        """Return the worker's present status."""
        pipeline, state = self._pipeline, self._events.state
        stages, now = pipeline.stages(), anyio.current_time()
        stalled = self._liveness.problem(stages, now)
        retried = next((f"{s.name}: {s.reason}" for s in stages if s.reason is not None), None)
        tables = tuple(each.status() for each in pipeline.tables)
        late = next((str(t) for t in tables if t.problem is not None or not t.is_loaded), None)
        return WorkerStatus(
            backfill=None if self._backfill is None else self._backfill.status,
            state=state,
            live=stalled is None and state != "failed",
            ready=state in ("running", "suspended")
            and not pipeline.is_restoring
            and self._contact.problem is None,
            problem=stalled or self._contact.problem or retried or late,
            group=self._settings.group,
            topics=self._settings.topics or (str(self._subscription),),
            stages=stages,
            partitions=tuple(self._partitions()),
            inflight_bytes=pipeline.intake.budget.used,
            inflight_limit=pipeline.intake.budget.limit,
            consumed=pipeline.intake.consumed,
            settled=pipeline.intake.settled,
            uptime=now - self._started,
            failed=self.metrics.done.failed,
            repeated=self.metrics.repeated,
            failures=self.metrics.failures.newest_first(),
            letters=err.topic
            if isinstance(err := self._strategy.reduce_err, DeadLetterWriter)
            else None,
            tables=tables,
        )
