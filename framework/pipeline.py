"""The stages and queues of one strategy, and the intake that fills them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
import structlog

from framework.backpressure import Budget, Gate
from framework.executor import Executor
from framework.failures import ErrorPort, LimitWindow
from framework.ledger import Ledgers
from framework.map import MapStage
from framework.reduce import ReduceStage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from framework.consumer import Consumer
    from framework.executor import ExecutorKind
    from framework.ledger import Delivery, Ledger
    from framework.record import Batch, Range, Rows, TopicPartition
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
    """

    inflight_bytes: int = 128 * 1024 * 1024
    queue_batches: int = 4
    executor: ExecutorKind = "thread"
    executor_workers: int | None = None


@dataclass(slots=True)
class _Partition:
    """One assigned partition: its ledger, its map stage, and the way in."""

    ledger: Ledger
    stage: MapStage
    inbox: MemoryObjectSendStream[Batch]
    paused: bool = False


class Pipeline:
    """Builds the stages of a strategy, and runs them until they are drained.

    The map stages come and go with their partitions; the reduce stages live as long as the pipeline.
    Each stage holds its own end of the next one's inbox and closes it when it ends, so a drain runs
    from the intake to the error stage, which is the last to stop.
    """

    def __init__(
        self, strategy: Strategy, consumer: Consumer, limits: Limits, metrics: Metrics
    ) -> None:
        self._strategy = strategy
        self._consumer = consumer
        self._limits = limits
        self._metrics = metrics
        self._executor = Executor(limits.executor, limits.executor_workers)
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._tasks: TaskGroup | None = None
        self._intake = anyio.CancelScope()
        self.taking_in = False
        self.budget = Budget(limits.inflight_bytes)
        self._mapping = Gate()
        self._flushing = Gate()
        self.ledgers = Ledgers(self._on_settled, self._on_dropped)
        self.drained = anyio.Event()
        self.consumed = 0
        self.settled = 0
        self.progress_at = anyio.current_time()
        self._errors, error_stage = self._build_errors()
        self._rows, reduce_stages = self._build_reducers()
        self._stages = [*reduce_stages, *error_stage]

    def _build_errors(self) -> tuple[ErrorPort, list[ReduceStage]]:
        window = LimitWindow(self._strategy.err_limit)
        if self._strategy.reduce_err is None:
            return ErrorPort(None, window, self.ledgers.settle, self._metrics), []
        send, receive = anyio.create_memory_object_stream["Rows"](self._limits.queue_batches)
        port = ErrorPort(send, window, self.ledgers.settle, self._metrics)
        return port, [self._stage(ERROR_STAGE, self._strategy.reduce_err, receive, None, None)]

    def _build_reducers(self) -> tuple[MemoryObjectSendStream[Rows], list[ReduceStage]]:
        """The chain from its end to its beginning: each stage needs the inbox of the next."""
        stages: list[ReduceStage] = []
        out: MemoryObjectSendStream[Rows] | None = None
        for number, reducer in reversed(list(enumerate(self._strategy.reduce, start=1))):
            send, receive = anyio.create_memory_object_stream["Rows"](self._limits.queue_batches)
            stages.insert(
                0, self._stage(f"reduce-{number}", reducer, receive, out, self._errors.clone())
            )
            out = send
        return send, stages

    def _stage(
        self,
        name: str,
        reducer: Reducer,
        inbox: MemoryObjectReceiveStream[Rows],
        out: MemoryObjectSendStream[Rows] | None,
        errors: ErrorPort | None,
    ) -> ReduceStage:
        return ReduceStage(
            name,
            reducer,
            inbox,
            out,
            errors,
            ledgers=self.ledgers,
            gate=self._flushing,
            budget=self.budget,
            metrics=self._metrics,
            on_stale=self._restart_lost,
            on_progress=self._on_progress,
        )

    async def open(self, context: Context) -> None:
        """Connect all reducers. Raises StrategyError for what the user must mend."""
        for stage in self._stages:
            await stage.open(replace(context, stage=stage.name))

    async def close(self) -> None:
        """Disconnect all reducers, also after a failure."""
        self._rows.close()
        self._errors.close()
        for partition in list(self._partitions):
            self.stop_partition(partition)
        for stage in self._stages:
            await stage.close()

    async def run(self) -> None:
        """Take in and process until `drain` is called and everything is through.

        Raises:
            KmrError: the first error of any stage.
        """
        try:
            async with anyio.create_task_group() as self._tasks:
                for stage in self._stages:
                    self._tasks.start_soon(stage.run)
                with self._intake:
                    await self._take_in()
                for partition in self._partitions.values():
                    partition.inbox.close()
                self._rows.close()
                self._errors.close()
        finally:
            self.drained.set()

    def resume(self) -> None:
        """Take in, map and flush: from the first assignment on, and after every rebalance."""
        for name, partition in self._partitions.items():
            if partition.paused:
                self._consumer.pause([name])  # A rebalance forgets pauses.
        self.taking_in = True
        self._mapping.open()
        self._flushing.open()

    def stop_flushing(self) -> None:
        """Let no flush begin any more."""
        self._flushing.close()

    async def suspend(self) -> None:
        """Take nothing in, map nothing new, and return when no flush is under way.

        What is collected stays collected, unless records after it are settled already (those of another
        stage, of another flush): then it is flushed too, because a partition that goes to another member
        is read again from the watermark. Cancelled, it leaves the gates closed.
        """
        self.taking_in = False
        self._mapping.close()
        self._flushing.close()
        await self._flushing.wait_quiet()
        try:
            while self.ledgers.have_holes:
                self._flush_through(on=True)
                self._flushing.open()
                await self.ledgers.wait_whole()
                self._flushing.close()
                await self._flushing.wait_quiet()
        finally:
            self._flush_through(on=False)
            self._flushing.close()

    def _flush_through(self, *, on: bool) -> None:
        for stage in self._stages:
            stage.flush_through(on=on)

    def drain(self) -> None:
        """Take nothing in any more; `run` returns when what is in flight has been flushed or dropped."""
        self.taking_in = False
        self._intake.cancel()
        for stage in self._stages:
            stage.drain()

    def abandon(self) -> None:
        """Drop everything in flight, unsettled, and end `run`."""
        for partition in list(self._partitions):
            self.stop_partition(partition)
        self.resume()
        self.drain()

    def start_partition(self, partition: TopicPartition, start: int | None) -> None:
        """Begin a new generation of a partition at offset `start`, None for where the broker says."""
        if self._tasks is None or self._intake.cancel_called:
            return
        self.stop_partition(partition)
        send, receive = anyio.create_memory_object_stream["Batch"](math.inf)
        ledger = self.ledgers.open(partition, start)
        stage = MapStage(
            self._strategy,
            self._executor,
            ledger,
            self.ledgers,
            receive,
            self._rows.clone(),
            self._errors.clone(),
            self._mapping,
            self._metrics,
            on_taken=lambda: self._on_taken(partition),
        )
        self._partitions[partition] = _Partition(ledger, stage, send)
        self._tasks.start_soon(stage.run)

    def stop_partition(self, partition: TopicPartition) -> None:
        """Drop a partition and all that is in flight of it, unsettled."""
        gone = self._partitions.pop(partition, None)
        if gone is not None:
            gone.stage.cancel()
            gone.inbox.close()
            self.ledgers.drop(partition)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are being processed."""
        return frozenset(self._partitions)

    def is_paused(self, partition: TopicPartition) -> bool:
        """Whether intake of the partition waits for its map stage."""
        found = self._partitions.get(partition)
        return found is not None and found.paused

    async def _take_in(self) -> None:
        while True:
            if self.budget.exhausted:
                await self._wait_for_room()
            for batch in await self._consumer.poll():
                self._route(batch)

    async def _wait_for_room(self) -> None:
        since = anyio.current_time()
        for stage in self._stages:
            stage.make_room()
        await self.budget.wait()
        self._metrics.backpressure.labels("intake", "inflight_bytes").inc(
            anyio.current_time() - since
        )

    def _route(self, batch: Batch) -> None:
        """Hand a batch to the map stage of its partition; pauses the partition when its queue is full."""
        name = batch.topic_partition
        partition = self._partitions.get(name)
        if partition is None or not self.taking_in:
            return  # A rebalance is under way: where reading goes on is decided when it is over.
        if not partition.ledger.expects(batch):
            assert partition.ledger.delivered is not None  # noqa: S101  for the type checker
            _log.warning("records read twice are dropped", batch=repr(batch))
            self._consumer.seek(name, partition.ledger.delivered)
            return
        partition.ledger.deliver(batch)
        self.budget.take(batch.nbytes)
        self.consumed += batch.last - batch.first + 1
        self._metrics.inflight.set(self.budget.used)
        self._metrics.consumed.labels(batch.topic).inc(batch.last - batch.first + 1)
        self._on_progress()
        partition.inbox.send_nowait(batch)
        if partition.inbox.statistics().current_buffer_used >= self._limits.queue_batches:
            partition.paused = True
            self._consumer.pause([name])

    def _on_taken(self, name: TopicPartition) -> None:
        partition = self._partitions.get(name)
        if partition is not None and partition.paused:
            partition.paused = False
            self._consumer.resume([name])

    def _on_settled(self, partition: TopicPartition, delivery: Delivery) -> None:
        self._on_dropped(delivery.nbytes)
        offsets = delivery.last - delivery.first + 1
        self.settled += offsets
        self._metrics.settled.labels(partition.topic).inc(offsets)
        if delivery.timestamp_ms >= 0:
            self._metrics.latency.observe(max(0.0, time.time() - delivery.timestamp_ms / 1000))
        self._on_progress()

    def _on_dropped(self, nbytes: int) -> None:
        self.budget.give(nbytes)
        self._metrics.inflight.set(self.budget.used)

    def _on_progress(self) -> None:
        self.progress_at = anyio.current_time()

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
        maps = (partition.stage.status() for partition in self._partitions.values())
        return (*maps, *(stage.status() for stage in self._stages))

    def undrained(self) -> list[str]:
        """The offsets, by partition, that are in flight and not settled."""
        return [
            f"{ledger.partition}[{ledger.watermark}..{ledger.delivered - 1}]"
            for ledger in self.ledgers
            if ledger.unsettled and ledger.delivered is not None
        ]
