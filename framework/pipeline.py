"""The stages and queues of one strategy, and how they start, stand still, drain and stop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
import structlog

from framework.backpressure import Gate
from framework.chains import build_chain
from framework.commit import Committer
from framework.executor import Executor
from framework.failures import ErrorPort, LimitWindow
from framework.intake import Intake
from framework.lanes import Lanes
from framework.map import MapStage
from framework.reduce import ReduceStage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from framework.announcement import Announcement
    from framework.consumer import Consumer
    from framework.executor import ExecutorKind
    from framework.promises import Promise
    from framework.record import Cut, Range, Rows, TopicPartition
    from framework.reducer import Context, Reducer
    from framework.status import StageStatus
    from framework.strategy import Strategy
    from framework.telemetry import Metrics

__all__ = ["Limits", "Pipeline"]

ERROR_STAGE = "reduce-err"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a pipeline.

    Attributes:
        inflight_bytes: bytes of records taken in and not yet settled, after which intake stands still.
        queue_batches: batches that wait for one partition's map before the partition is paused, and
            mapped batches that wait for each reducer.
        executor: where plain map functions run.
        executor_workers: batches mapped at a time; None is the number of processors.
        commit_interval: seconds between commits while watermarks move.
    """

    inflight_bytes: int = 128 * 1024 * 1024
    queue_batches: int = 4
    executor: ExecutorKind = "thread"
    executor_workers: int | None = None
    commit_interval: float = 1.0


class Pipeline:
    """Builds the stages of a strategy, and runs them until they are drained.

    The map stages come and go with their partitions. Where each record is delivered at least once, the
    reduce stages are shared by all partitions and live as long as the pipeline; for the other deliveries
    each partition has a lane of its own. Each stage holds its own end of the next one's inbox and closes
    it when it ends, so a drain runs from the intake to the error stage, which is the last to stop.
    """

    def __init__(
        self, strategy: Strategy, consumer: Consumer, limits: Limits, metrics: Metrics
    ) -> None:
        self._strategy = strategy
        self._consumer = consumer
        self._limits = limits
        self._metrics = metrics
        self._executor = Executor(limits.executor, limits.executor_workers)
        self._maps: dict[TopicPartition, MapStage] = {}
        self._tasks: TaskGroup | None = None
        self._taking_in = anyio.CancelScope()
        self._mapping = Gate()
        self._flushing = Gate()
        self.intake = Intake(
            consumer,
            inflight_bytes=limits.inflight_bytes,
            queue_batches=limits.queue_batches,
            metrics=metrics,
            make_room=self._make_room,
        )
        self.ledgers = self.intake.ledgers
        self.committer = Committer(
            consumer, self.ledgers, interval=limits.commit_interval, metrics=metrics
        )
        self.drained = anyio.Event()
        self._errors, self._error_stage = self._build_errors()
        self._rows: MemoryObjectSendStream[Rows | Cut] | None = None
        self._shared: list[ReduceStage] = []
        self._lanes: Lanes | None = None
        if strategy.promise == "at-least-once":
            self._rows, self._shared = build_chain(
                strategy.reduce, self._stage, limits.queue_batches
            )
        else:
            self._lanes = Lanes(
                strategy,
                self._stage,
                limits.queue_batches,
                ledgers=self.ledgers,
                committer=self.committer,
                awaited=self._await_errors,
            )

    def _build_errors(self) -> tuple[ErrorPort, ReduceStage | None]:
        window = LimitWindow(self._strategy.err_limit)
        if self._strategy.reduce_err is None:
            return ErrorPort(None, window, self.ledgers.settle, self._metrics), None
        send, receive = anyio.create_memory_object_stream["Rows | Cut"](self._limits.queue_batches)
        port = ErrorPort(send, window, self.ledgers.settle, self._metrics)
        return port, self._stage(
            ERROR_STAGE, self._strategy.reduce_err, receive, None, has_errors=False
        )

    def _stage(
        self,
        name: str,
        reducer: Reducer,
        inbox: MemoryObjectReceiveStream[Rows | Cut],
        out: MemoryObjectSendStream[Rows | Cut] | None,
        promise: Promise | None = None,
        *,
        partition: TopicPartition | None = None,
        replaying: bool = False,
        has_errors: bool = True,
    ) -> ReduceStage:
        return ReduceStage(
            name,
            reducer,
            inbox,
            out,
            self._errors.clone() if has_errors else None,
            ledgers=self.ledgers,
            gate=self._flushing,
            budget=self.intake.budget,
            metrics=self._metrics,
            on_stale=self._restart_lost,
            on_progress=self.intake.progress,
            promise=promise,
            partition=partition,
            replaying=replaying,
        )

    @property
    def _stages(self) -> list[ReduceStage]:
        """All reduce stages in the order of the flow; the error stage is the last."""
        errors = [self._error_stage] if self._error_stage is not None else []
        return [*self._shared, *(self._lanes.stages if self._lanes is not None else ()), *errors]

    async def open(self, context: Context) -> None:
        """Connect all reducers. Raises StrategyError for what the user must mend."""
        if self._lanes is not None:
            await self._lanes.open(context)
        for stage in self._stages:
            await stage.open(replace(context, stage=stage.name))

    async def close(self) -> None:
        """Disconnect all reducers, also after a failure."""
        self._close_inlets()
        for partition in list(self._maps):
            self.stop_partition(partition)
        for stage in self._stages:
            await stage.close()
        if self._lanes is not None:
            await self._lanes.close()

    def _close_inlets(self) -> None:
        if self._rows is not None:
            self._rows.close()
        self._errors.close()

    async def run(self) -> None:
        """Take in and process until `drain` is called and everything is through.

        Raises:
            KmrError: the first error of any stage.
        """
        try:
            async with anyio.create_task_group() as self._tasks:
                for stage in self._stages:
                    self._tasks.start_soon(stage.run)
                with self._taking_in:
                    await self.intake.run()
                self.intake.close()
                self._close_inlets()
        finally:
            self.drained.set()

    def resume(self) -> None:
        """Take in, map and flush: from the first assignment on, and after every rebalance."""
        self.intake.resume()
        self._mapping.open()
        self._flushing.open()

    def stop_flushing(self) -> None:
        """Let no flush begin any more."""
        self._flushing.close()

    async def suspend(self) -> None:
        """Take nothing in, map nothing new, and return when no flush is under way.

        What is collected stays collected, unless records after it are settled already (those of another
        stage, of another flush): then it is flushed too, because a partition that goes to another member
        is read again from the watermark. If the group has moved on without us, it is too late for that.
        Cancelled, it leaves the gates closed.
        """
        self.intake.is_open = False
        self._mapping.close()
        self._flushing.close()
        await self._flushing.wait_quiet()
        try:
            while self.ledgers.have_holes and not self.committer.is_fenced:
                self._flush_through(on=True)
                self._flushing.open()
                await self._wait_whole_or_fenced()
                self._flushing.close()
                await self._flushing.wait_quiet()
        finally:
            self._flush_through(on=False)
            self._flushing.close()

    async def _wait_whole_or_fenced(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def end_after(wait: Callable[[], Awaitable[None]]) -> None:
                await wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_after, self.ledgers.wait_whole)
            tasks.start_soon(end_after, self.committer.wait_fenced)

    def _make_room(self) -> None:
        for stage in self._stages:
            stage.make_room()

    def _flush_through(self, *, on: bool) -> None:
        for stage in self._stages:
            stage.flush_through(on=on)

    def drain(self) -> None:
        """Take nothing in any more; `run` returns when what is in flight has been flushed or dropped."""
        self.intake.is_open = False
        self._taking_in.cancel()
        for stage in self._stages:
            stage.drain()

    def abandon(self) -> None:
        """Drop everything in flight, unsettled, and end `run`."""
        for partition in list(self._maps):
            self.stop_partition(partition)
        self.resume()
        self.drain()

    def start_partition(
        self, partition: TopicPartition, start: int | None, announced: Announcement | None = None
    ) -> None:
        """Begin a new generation of a partition.

        Args:
            start: the first offset to read; None for where the broker says.
            announced: a range from `start` on that may have been written: it is read again as a whole.
                Only with `replays`.
        """
        if self._tasks is None or self._taking_in.cancel_called:
            return
        self.stop_partition(partition)
        ledger = self.ledgers.open(
            partition, start, replayed_to=announced.last if announced else -1
        )
        if self._rows is not None:
            inbox = self._rows.clone()
        else:
            assert self._lanes is not None  # noqa: S101  one of the two
            inbox = self._lanes.start(self._tasks, partition, announced)
        stage = MapStage(
            self._strategy,
            self._executor,
            ledger,
            self.ledgers,
            self.intake.add(partition),
            inbox,
            self._errors.clone(),
            self._mapping,
            self._metrics,
            on_taken=lambda: self.intake.taken(partition),
            replay_to=announced.last if announced is not None else None,
        )
        self._maps[partition] = stage
        self._tasks.start_soon(stage.run)

    @property
    def replays(self) -> bool:
        """Whether announced ranges are written again as they were announced."""
        return self._lanes is not None and self._lanes.delivery == "exactly-once"

    def _await_errors(self, on: bool) -> None:
        if self._error_stage is not None:
            self._error_stage.awaited(on)

    def stop_partition(self, partition: TopicPartition) -> None:
        """Drop a partition and all that is in flight of it, unsettled."""
        stage = self._maps.pop(partition, None)
        if stage is not None:
            stage.cancel()
            if self._lanes is not None:
                self._lanes.stop(partition)
            self.intake.remove(partition)
            self.ledgers.drop(partition)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are being processed."""
        return frozenset(self._maps)

    def _restart_lost(self, ranges: Iterable[Range]) -> None:
        """Rows were dropped with those of a partition that is gone: read what is still ours again."""
        for r in ranges:
            ledger = self.ledgers.get(r.topic_partition)
            if ledger is not None and ledger.generation == r.generation:
                _log.info("reading again from the watermark", partition=str(r.topic_partition))
                watermark = ledger.watermark
                self.start_partition(r.topic_partition, watermark)
                if watermark is not None:
                    self._consumer.seek(r.topic_partition, watermark)

    def stages(self) -> tuple[StageStatus, ...]:
        """What every stage does now, in the order of the flow."""
        maps = (stage.status() for stage in self._maps.values())
        return (*maps, *(stage.status() for stage in self._stages))

    def undrained(self) -> list[str]:
        """The offsets, by partition, that are in flight and not settled."""
        return [
            f"{ledger.partition}[{ledger.watermark}..{ledger.delivered - 1}]"
            for ledger in self.ledgers
            if ledger.unsettled and ledger.delivered is not None
        ]
