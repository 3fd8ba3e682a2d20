"""The stages and queues of one strategy: how they start, suspend, drain and stop."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from .columns.times import shown_time
from .commit import Committer, TransactionalCommitter
from .delivery.announcement import NOTHING_CLOSED
from .delivery.error_limit import LimitWindow
from .delivery.failures import ErrorPort
from .guarantees import AtLeastOnce
from .intake.backpressure import Gate
from .intake.intake import Intake
from .kafka.connection import connection_config
from .lanes import Lanes
from .map import MapStage
from .map_shared import SharedMap
from .mapping.executor import Executor
from .memory.remembering import Remembering
from .observe.logs import joined_partitions
from .parts import MapParts, MapPorts, ReducePorts, SharedParts, context_of
from .record import ReplayEnd, Rows
from .reduce import ReduceStage
from .reducers.reducer import ERROR_STAGE
from .reducers.sink import Sink
from .strategy import ERROR_DELIVERY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from .delivery.announcement import Announcement, LookBack
    from .kafka.consumer import Consumer
    from .lookups.follower import Follower
    from .observe.metrics import Metrics
    from .observe.status import StageStatus
    from .record import TopicPartition
    from .settings import Settings
    from .strategy import Strategy
    from .window_stage import WindowStage

_RESTORE_AT_ONCE: Final = 4  # partitions: each has a connection, and up to two fetches in memory

_log = structlog.get_logger(__name__)

_PATIENCE: Final = 3.0
"""Seconds: after them the log says why nothing is read yet."""

_ANSWERED: Final = 5.0
"""Seconds: a fetch of a partition without new records is answered more often (`fetch.max_wait`)."""


class Pipeline:
    """Builds the stages of a strategy, and runs them until they are drained.

    Map stages start and stop with their partitions, reduce stages with their lanes (`kmr.lanes`). Each
    stage closes its end of the next one's inbox when it ends, so a drain runs from the intake to the error
    stage, which ends last.

    Args:
        on_failure: called with the error of a stage, before any other stage notices that it has failed.
    """

    def __init__(
        self,
        strategy: Strategy,
        consumer: Consumer,
        settings: Settings,
        metrics: Metrics,
        *,
        on_failure: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._strategy = strategy
        self._consumer = consumer
        self._metrics = metrics
        self._connection = connection_config(settings)
        self._executor = Executor(settings.executor, settings.map_workers, settings.log)
        self._maps: dict[TopicPartition, MapStage] = {}
        self._tasks: TaskGroup | None = None
        self._restoring = anyio.Semaphore(_RESTORE_AT_ONCE)
        self._taking_in = anyio.CancelScope()
        self._mapping = Gate()
        self._flushing = Gate()
        self.intake = Intake(
            consumer,
            inflight_bytes=settings.budget,
            queue_batches=settings.queue_batches,
            metrics=metrics,
            make_room=self._make_room,
            rate=settings.rate_share,
            max_age=min(
                (each.max_age for each in strategy.reducers if each.max_age is not None),
                default=math.inf,
            ),
        )
        self.ledgers = self.intake.ledgers
        self._context = context_of(strategy, settings)
        self.committer = self._build_committer(settings.commit_interval)
        self.drained = anyio.Event()
        shared = SharedParts(
            self.ledgers,
            self._flushing,
            self.intake.budget,
            metrics,
            on_failure=on_failure,
            is_at_end=self._is_at_end,
        )
        self._map_parts = MapParts(
            replace(shared, gate=self._mapping), self._executor, settings.max_batch_records
        )
        self.shared_map = SharedMap(self.intake.inboxes, self._map_parts)
        self.intake.inboxes.shared = self.shared_map
        queue = settings.queue_batches
        self._errors, self._error_stage = self._build_error_stage(shared, queue)
        self._lanes = Lanes(
            strategy,
            shared,
            self._errors,
            queue,
            committer=self.committer,
            awaiting_errors=self._await_errors,
        )

    def _build_committer(self, interval: float) -> Committer:
        parts, last = (self._consumer, self.ledgers), self._strategy.reducers[-1]
        if self._strategy.is_transactional and isinstance(last, Sink):
            transactions = last.transactions(self._context)
            return TransactionalCommitter(
                *parts, transactions, interval=interval, metrics=self._metrics
            )
        return Committer(
            *parts,
            delivery=self._strategy.requested_delivery,
            interval=interval,
            metrics=self._metrics,
        )

    def _build_error_stage(
        self, shared: SharedParts, queue: int
    ) -> tuple[ErrorPort, ReduceStage | None]:
        window = LimitWindow(self._strategy.err_limit)
        if self._strategy.reduce_err is None:
            return ErrorPort(None, window, self.ledgers.settle, self._metrics), None
        send, receive = anyio.create_memory_object_stream[Rows | ReplayEnd](queue)
        port = ErrorPort(send, window, self.ledgers.settle, self._metrics)
        return port, ReduceStage(
            ERROR_STAGE,
            self._strategy.reduce_err,
            ReducePorts(receive),
            shared,
            AtLeastOnce(self.ledgers, self._flushing),
        )

    @property
    def reduce_stages(self) -> list[ReduceStage | WindowStage]:
        """All reduce stages in the order of the flow; the error stage is the last."""
        errors = [self._error_stage] if self._error_stage is not None else []
        return [*self._lanes.stages, *errors]

    async def open(self) -> None:
        """Connect all reducers, and do what the first batch would wait for.

        Raises:
            StrategyError: the strategy does not fit its sinks, or its map cannot be loaded.
        """
        context = self._context.with_sinks(
            generations=self.committer.generations, count_left_out=self._metrics.count_left_out
        )
        await self._executor.open(self._strategy, self._connection)
        for table in self.tables:
            self._metrics.watch_table(table)
        await self._lanes.open(context)
        self.committer.delivery = self._lanes.delivery
        if self._error_stage is not None:
            await self._error_stage.open(replace(context, stage=ERROR_STAGE))
            if self._lanes.delivery != ERROR_DELIVERY:
                _log.info(
                    "failed records have another guarantee than the others",
                    stage=ERROR_STAGE,
                    delivery=ERROR_DELIVERY,
                    others=self._lanes.delivery,
                )
        slow = asyncio.get_running_loop().call_later(
            _PATIENCE,
            _log.info,
            "loading the map and the decoder; the first start of a version compiles, for about 15 seconds",
        )
        try:
            await self._executor.warm_up(self._strategy)
        finally:
            slow.cancel()

    async def close(self) -> None:
        """Disconnect all reducers, also after a failure; raise the error of one after trying all."""
        self._finish()
        for partition in list(self._maps):
            self.stop_partition(partition)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.committer.close)
            stack.push_async_callback(self._executor.close)
            if self._error_stage is not None:
                stack.push_async_callback(self._error_stage.close)
            stack.push_async_callback(self._lanes.close)

    def _finish(self) -> None:
        """Close our own ends of the inboxes: those of the maps and stages remain."""
        self._lanes.finish()
        self._errors.close()

    async def run(self) -> None:
        """Process until `drain` is called and everything in flight is done.

        Raises:
            KmrError: the first error of any stage.
        """
        try:
            async with anyio.create_task_group() as self._tasks:
                self._lanes.run(self._tasks)
                if self._error_stage is not None:
                    self._tasks.start_soon(self._error_stage.run)
                self._tasks.start_soon(self.shared_map.run)
                with self._taking_in:
                    await self.intake.run()
                self.intake.inboxes.close_all()
                self._finish()
        finally:
            self.drained.set()

    def resume(self) -> None:
        """Take in, map and flush: after the first assignment and after every rebalance."""
        self.intake.resume()
        self._mapping.open()
        self._flushing.open()

    def stop_flushing(self) -> None:
        """Let no more flushes begin."""
        self._flushing.close()

    async def suspend(self) -> None:
        """Stop intake, maps and flushes; return when no flush is under way.

        Collected rows stay collected, unless offsets above them are settled already (by another stage, or
        by another flush): then they are flushed, because the next owner of the partition, or we
        (`keep_partitions`), read again from the watermark. If nothing can be committed any more, it is
        too late for that. When cancelled, the gates stay closed.
        """
        self.intake.is_open = False
        self._mapping.close()
        self._flushing.close()
        await self._flushing.wait_quiet()
        try:
            while self.ledgers.have_holes and self.committer.may_commit:
                self._flush_collected(on=True)
                self._flushing.open()
                await self._unless_fenced(self.ledgers.wait_whole)
                self._flushing.close()
                await self._flushing.wait_quiet()
        finally:
            self._flush_collected(on=False)
            self._flushing.close()

    async def suspend_drain(self) -> None:
        """Wait for the drain; if the group has fenced our commits, only for flushes under way."""
        await self._unless_fenced(self.drained.wait)
        self._flushing.close()
        await self._flushing.wait_quiet()

    async def _unless_fenced(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait, but not longer than until the group has fenced our commits."""
        async with anyio.create_task_group() as tasks:

            async def end_after(wait: Callable[[], Awaitable[object]]) -> None:
                await wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_after, wait)
            tasks.start_soon(end_after, self.committer.wait_fenced)

    def _flush_collected(self, *, on: bool) -> None:
        for stage in self.reduce_stages:
            stage.trigger.revoke(on=on)

    def _make_room(self) -> None:
        for stage in self.reduce_stages:
            stage.trigger.budget_exhausted()

    def _await_errors(self, on: bool) -> None:
        if self._error_stage is not None:
            self._error_stage.trigger.awaited(on=on)

    def drain(self) -> None:
        """Stop intake and maps; `run` returns when all rows are flushed or dropped.

        Records whose map has not begun are dropped, unsettled.
        """
        self.intake.is_open = False
        self._taking_in.cancel()
        for map_stage in self._maps.values():
            map_stage.drain()
        self.shared_map.drain()
        for stage in self.reduce_stages:
            stage.trigger.drain()

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset: those before it are gone. Log which windows lack their records."""
        ledger = self.ledgers.get(partition)
        if self._strategy.window is not None and ledger is not None:
            closed = self.committer.closed(partition) or NOTHING_CLOSED
            _log.error(
                "rows of windows are incomplete, their records are gone: of all windows that end after this "
                "time, and begin before the time of the next record",
                partition=str(partition),
                offsets=f"{ledger.position}..{offset - 1}",
                after=shown_time(closed.closed_to),
            )
        self.intake.skip(partition, offset)

    def abandon(self) -> None:
        """Drop everything in flight, unsettled, and end `run`."""
        for partition in list(self._maps):
            self.stop_partition(partition)
        self.resume()
        self.drain()

    def start_partition(
        self,
        partition: TopicPartition,
        start: int | None,
        announcement: Announcement | None = None,
        look_back: LookBack | None = None,
    ) -> None:
        """Begin a new generation of a partition.

        Args:
            start: the first offset to read; None if the broker decides.
            announcement: a range from `start` on that may have been written: it is read again as a
                whole. Only if `replays`.
            look_back: what has to be remembered of the records before `start`.
        """
        self.stop_partition(partition)
        if self._tasks is None or self._taking_in.cancel_called:
            return
        closed = self.committer.closed(partition)
        ledger = self.ledgers.open(
            partition,
            start,
            replayed_to=-1 if announcement is None else announcement.last,
            holds=self.has_windows,
        )
        if (history := self.committer.history(partition)) is not None:
            ledger.until = history.until
        memory: Remembering | None = None
        if self._strategy.distincts:
            memory = Remembering(
                self._strategy.distincts,
                ledger,
                look_back,
                self._consumer.read_range,
                self._restoring,
                self.intake.budget,
                self._metrics,
            )
        strategy = self._strategy.of_topic(partition.topic)
        lane = self._lanes.start(self._tasks, partition, announcement)
        inboxes = self.intake.inboxes
        ports = MapPorts(
            inboxes.open(partition, ended=ledger.has_ended),
            partial(inboxes.taken, partition),
            lane,
            self._lanes.first_stage(partition).accept,
            self._errors.clone(),
        )
        stage = self._maps[partition] = MapStage(
            strategy,
            ledger,
            ports,
            self._map_parts,
            memory=memory,
            failed_to=-1 if closed is None else closed.read_to,
        )
        if memory is None and not stage.waits_for_tables:
            self.shared_map.add(partition, stage)
        self._tasks.start_soon(stage.run)

    @property
    def is_restoring(self) -> bool:
        """Whether a partition has to read records again that it remembers, before its first new one."""
        return any(stage.is_restoring for stage in self._maps.values())

    @property
    def has_windows(self) -> bool:
        """Whether open windows hold records of a partition."""
        return self._strategy.window is not None

    def _is_at_end(self, partition: TopicPartition) -> bool:
        """Return whether everything that the broker has is mapped, as far as its last answers say."""
        consumer, stage = self._consumer, self._maps.get(partition)
        ledger = self.ledgers.get(partition)
        end, answered = consumer.end_offset(partition), consumer.answered_at(partition)
        if (
            not self.intake.is_open
            or stage is None
            or ledger is None
            or ledger.until is not None  # another group reads the records that close the windows
            or end is None
            or answered is None
        ):
            return False
        is_read = stage.is_idle and (ledger.position or 0) >= end
        return is_read and anyio.current_time() - answered < _ANSWERED

    @property
    def tables(self) -> Sequence[Follower]:
        """The look-up tables that are kept up to date, also while they are loaded."""
        tables = self._executor.tables
        return () if tables is None else tables.followers

    @property
    def replays(self) -> bool:
        """Whether announced ranges are written again as they were announced."""
        return self._lanes.replays

    def stop_partition(self, partition: TopicPartition) -> None:
        """Drop a partition and everything of it that is in flight, unsettled."""
        stage = self._maps.pop(partition, None)
        if stage is not None:
            stage.cancel()
            self.shared_map.remove(partition)
            self._lanes.stop(partition)
            self.intake.inboxes.close(partition)
            self.ledgers.drop(partition)

    def keep_partitions(self, kept: frozenset[TopicPartition]) -> None:
        """Drop all other partitions, and everything of them that is in flight, unsettled.

        Where a reducer may have mixed their rows with those of kept partitions, these begin again at their
        watermarks; in a drain, which reads nothing again, they are dropped. Call it after `suspend`, which
        leaves nothing settled above a watermark: else a record is delivered twice.
        """
        dropped = sorted(self.partitions - kept)
        for partition in dropped:
            self.stop_partition(partition)
        if dropped and self._maps and self._lanes.mix_partitions:
            _log.info(
                "partitions begin again: their rows were mixed with those of dropped ones",
                partitions=list(joined_partitions(dict.fromkeys(self._maps))),
            )
            for ledger in list(self.ledgers):
                mark = ledger.watermark
                back = None if mark is None else ledger.look_back(mark)
                self.start_partition(ledger.partition, mark, look_back=back)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are being processed."""
        return frozenset(self._maps)

    def idle_partitions(self) -> list[TopicPartition]:
        """Return the partitions that intake should fetch at once: there is room, and their maps are idle."""
        intake = self.intake
        if not intake.is_open or intake.budget.exhausted or intake.is_slowed:
            return []
        return [
            partition
            for partition, stage in self._maps.items()
            if stage.is_idle and not intake.inboxes.has_ended(partition)
        ]

    def stages(self) -> tuple[StageStatus, ...]:
        """Return the status of every stage, in the order of the flow."""
        now = anyio.current_time()
        maps = (stage.status(now) for _, stage in sorted(self._maps.items()))
        return (*maps, *(each for stage in self.reduce_stages for each in stage.statuses(now)))

    def offsets_in_flight(self) -> list[str]:
        """Return the offsets that are in flight and not settled, by partition."""
        return [
            f"{ledger.partition}[{ledger.watermark}..{ledger.position - 1}]"
            for ledger in self.ledgers
            if ledger.has_unsettled and ledger.position is not None
        ]
