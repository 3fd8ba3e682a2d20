"""Any order of records, pauses, rebalances and restarts: every partition that a worker owns moves to its end.

No rebalance follows the schedule, because it would end all pauses. Whether records are doubled is not
checked here: a sink may hang for longer than a rebalance waits.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr.record import TopicPartition
from kmr.reducers.sink import Capabilities
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.testing import (
    Journal,
    MemoryConsumer,
    MemoryWriter,
    VirtualClock,
    VirtualTimeLoop,
    batch_of,
)
from kmr.worker import Worker
from tests.examples import examples

from ..workers import locate

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kmr.kafka.consumer import CommitOffset
    from kmr.record import Batch
    from kmr.reducers.reducer import WhenFull
    from kmr.reducers.sink import Delivery

PARTITIONS = [TopicPartition("t", number) for number in range(3)]

values = st.sampled_from([b"row", b"row", b"row", b"skip", b"poison"])
puts = st.tuples(
    st.just("put"),
    st.sampled_from(PARTITIONS),
    st.lists(st.lists(values, min_size=1, max_size=3), min_size=1, max_size=8),
)
rebalances = st.tuples(
    st.sampled_from(["rebalance", "rebalance", "fenced"]), st.sets(st.sampled_from(PARTITIONS))
)
passes = st.tuples(st.just("pass"), st.sampled_from([0.0, 0.5, 2.0, 4.0, 30.0]))
others = st.sampled_from([("hold",), ("release",), ("crash",)])
schedules = st.lists(st.one_of(puts, puts, rebalances, passes, others), max_size=25)


class TokenWriter(MemoryWriter):
    """Claims to recognise tokens, so that it is offered exactly once."""

    capabilities = Capabilities(delivery="exactly-once")


class Group:
    """What outlives a worker: the log and the committed offsets."""

    def __init__(self) -> None:
        self.log: dict[TopicPartition, list[Batch]] = defaultdict(list)
        self.committed: dict[TopicPartition, CommitOffset] = {}

    def end(self, partition: TopicPartition) -> int:
        return self.log[partition][-1].last + 1 if self.log[partition] else 0


class Shape(NamedTuple):
    """What differs between the workers under test.

    Attributes:
        chained: another reducer comes before the writer.
        inflight_bytes: the budget; records have about 60 bytes.
    """

    delivery: Delivery
    chained: bool
    when_full: WhenFull
    inflight_bytes: int


class Life:
    """One worker after the other; one at a time."""

    def __init__(self, tasks: TaskGroup, shape: Shape) -> None:
        self.tasks = tasks
        self.shape = shape
        self.group = Group()
        running = asyncio.get_running_loop()
        assert isinstance(running, VirtualTimeLoop)
        self.clock = VirtualClock(running)

    async def begin(self) -> None:
        shape = self.shape
        self.journal, self.ended = Journal(), anyio.Event()
        self.consumer = MemoryConsumer()
        self.consumer.log, self.consumer._committed = self.group.log, self.group.committed
        limits: dict[str, Any] = {"when_full": shape.when_full}
        writer = TokenWriter(self.journal, max_rows=2, max_age=4.0, **limits)
        batcher = MemoryWriter(Journal(), forward=True, max_rows=4, max_age=2.0, **limits)
        strategy = Strategy(
            locate,
            [batcher, writer] if shape.chained else [writer],
            reduce_err=MemoryWriter(Journal(), max_rows=2, max_age=1.0, **limits),
            delivery=shape.delivery,
        )
        options: dict[str, Any] = {"topics": ("t",), "group": "g", "executor": "inline"}
        options |= {"queue_batches": 1, "revoke_deadline": 5.0, "shutdown_deadline": 1_000.0}
        self.worker = Worker(strategy, Settings(**options), consumer=self.consumer)
        self.worker.pipeline.intake.budget.limit = shape.inflight_bytes
        self.scope = anyio.CancelScope()
        self.tasks.start_soon(self._run)
        await self.consumer.started.wait()
        await self.consumer.rebalance(PARTITIONS)

    async def _run(self) -> None:
        with self.scope:
            await self.worker.run()
        self.ended.set()

    async def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case "put", partition, batches:
                for batch in batches:
                    first = self.group.end(partition)
                    self.consumer.put(batch_of("t", partition.partition, first, batch))
            case "rebalance", ours:
                await self.rebalance(ours)
            case "fenced", ours:
                self.consumer.fenced = True
                await self.clock.advance(2.0)
                await self.rebalance(ours)
            case "pass", seconds:
                await self.clock.advance(seconds)
            case ("hold",):
                self.journal.hold = self.journal.hold or anyio.Event()
            case ("release",):
                self.release()
            case ("crash",):
                self.scope.cancel()
                await self.pass_until(self.ended)
                await self.begin()
        await self.clock.settle()

    def release(self) -> None:
        if self.journal.hold is not None:
            self.journal.hold.set()
            self.journal.hold = None

    async def rebalance(self, ours: set[TopicPartition]) -> None:
        rebalanced = anyio.Event()

        async def rebalance() -> None:
            await self.consumer.revoke()
            self.consumer.fenced = False
            await self.consumer.assign(ours)
            rebalanced.set()

        self.tasks.start_soon(rebalance)
        await self.pass_until(rebalanced)

    def behind(self) -> dict[TopicPartition, tuple[int | None, int]]:
        """Return the committed offset and the end of each partition of the worker that is not at its end."""
        status = self.worker.status().partitions
        committed = {TopicPartition(p.topic, p.partition): p.committed for p in status}
        return {
            partition: (offset, self.group.end(partition))
            for partition, offset in committed.items()
            if offset != self.group.end(partition)
        }

    async def pass_until(self, event: anyio.Event) -> None:
        for _ in range(200):
            if event.is_set():
                return
            await self.clock.advance(1.0)
        raise AssertionError("something is stuck")


async def run(schedule: list[tuple[Any, ...]], shape: Shape) -> None:
    async with anyio.create_task_group() as tasks:
        life = Life(tasks, shape)
        await life.begin()
        for action in schedule:
            await life.act(action)
        life.release()
        for _ in range(200):
            await life.clock.advance(5.0)
            if not life.behind():
                break
        assert not life.behind()
        assert not life.consumer._paused
        assert life.worker.status().inflight_bytes == 0
        life.worker.shutdown("done")
        await life.pass_until(life.ended)


P0, P1 = PARTITIONS[:2]


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once", "at-most-once"])
def test_every_owned_partition_moves_to_its_end_through_any_schedule(
    delivery: Delivery, chained: bool
) -> None:
    @settings(max_examples=examples(75), deadline=None)
    @given(schedules, st.sampled_from(["flush", "backpressure"]), st.sampled_from([300, 1_000_000]))
    @example(
        [
            ("hold",),
            ("put", P1, [[b"row"]] * 20),
            ("put", P0, [[b"row"]] * 20),
            ("rebalance", {P0}),
            ("release",),
        ],
        "flush",
        1_000_000,
    )
    def moves(schedule: list[tuple[Any, ...]], when_full: WhenFull, inflight_bytes: int) -> None:
        anyio.run(
            partial(run, schedule, Shape(delivery, chained, when_full, inflight_bytes)),
            backend_options={"loop_factory": VirtualTimeLoop},
        )

    moves()
