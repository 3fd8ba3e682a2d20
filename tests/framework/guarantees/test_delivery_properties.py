"""Any order of records, rebalances, sink failures and time: no loss, no duplicate, no commit too far.

A second member of the group is modelled: it reads its partitions from the committed offset, writes, and
commits at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr.record import TopicPartition
from kmr.reducers.reducer import Retry
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
    from collections.abc import Mapping

    from kmr.kafka.consumer import CommitOffset

PARTITIONS = [TopicPartition("t", number) for number in range(3)]

puts = st.tuples(
    st.just("put"),
    st.integers(0, 2),
    st.lists(st.sampled_from([b"row", b"row", b"row", b"skip", b"poison"]), min_size=1, max_size=6),
)
rebalances = st.tuples(st.just("rebalance"), st.sets(st.sampled_from(PARTITIONS)))
revokes = st.tuples(st.just("revoke"))
passes = st.tuples(st.just("pass"), st.sampled_from([0.0, 0.5, 1.0, 4.0, 30.0]))
troubles = st.tuples(st.just("trouble"), st.sampled_from(["retry", "raise", "hold", "errors"]))
schedules = st.lists(st.one_of(puts, puts, rebalances, revokes, passes, troubles), max_size=30)
endings = st.lists(st.one_of(rebalances, revokes, passes, troubles), max_size=6)


class Group(MemoryConsumer):
    """A group of two: the worker under test, and the member that is modelled."""

    def __init__(self, journal: Journal, errors: Journal) -> None:
        super().__init__()
        self.journal = journal
        self.errors = errors
        self.values: dict[tuple[int, int], bytes] = {}
        self.ends: dict[int, int] = defaultdict(int)
        self.elsewhere: Counter[tuple[int, int]] = Counter()
        self.highest: dict[TopicPartition, int] = {}

    def append(self, partition: int, values: list[bytes]) -> None:
        first = self.ends[partition]
        self.put(batch_of("t", partition, first, values))
        self.values.update({(partition, first + n): value for n, value in enumerate(values)})
        self.ends[partition] = first + len(values)

    def delivered(self) -> Counter[tuple[int, int]]:
        """Count the writes of each record by both members; failed records count in the error sink."""
        here = Counter((row["p"], row["o"]) for row in self.journal.rows())
        failed = Counter((row["partition"], row["offset"]) for row in self.errors.rows())
        return here + failed + self.elsewhere

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        delivered = self.delivered()
        for partition, entry in offsets.items():
            assert entry.offset >= self.highest.get(partition, 0), "a commit moved back"
            self.highest[partition] = entry.offset
            for offset in range(entry.offset):
                at = (partition.partition, offset)
                assert self.values[at] == b"skip" or delivered[at], f"{at} committed, not settled"
        await super().commit(offsets)

    async def assign_rest_elsewhere(self, ours: set[TopicPartition]) -> None:
        for partition in set(PARTITIONS) - ours:
            committed = (await self.committed([partition]))[partition]
            start = committed.offset if committed is not None else 0
            end = self.ends[partition.partition]
            for offset in range(start, end):
                at = (partition.partition, offset)
                if self.values[at] != b"skip":
                    self.elsewhere[at] += 1
            self.highest[partition] = end
            self.commit_elsewhere(partition, end)


async def run(
    schedule: list[tuple[Any, ...]], ending: list[tuple[Any, ...]] | None = None, *, chained: bool
) -> None:
    """Run a worker through a schedule, then until it is idle, or until a drain with rebalances has ended."""
    journal, errors = Journal(), Journal()
    group = Group(journal, errors)
    writer = MemoryWriter(journal, max_rows=4, max_age=4.0)
    reduce = (
        [MemoryWriter(Journal(), forward=True, max_rows=3, max_age=2.0), writer]
        if chained
        else [writer]
    )
    strategy = Strategy(locate, reduce, reduce_err=MemoryWriter(errors, max_rows=2, max_age=1.0))
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualTimeLoop)
    clock = VirtualClock(running)
    options: dict[str, Any] = {"topics": ("t",), "group": "g", "executor": "inline"}
    # longer than the longest backoff, so that the sink recovers in time
    options |= {"revoke_deadline": 50.0, "shutdown_deadline": 1_000.0}
    worker = Worker(strategy, Settings(**options), consumer=group)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await group.started.wait()
        await group.rebalance(PARTITIONS)
        for action in schedule:
            await act(group, clock, action)
        if ending is not None:
            worker.shutdown("done")
            for action in ending:
                await act(group, clock, action)
        release(journal)
        if ending is None:
            await rebalance(group, clock, set(PARTITIONS))
        for _ in range(60):
            await clock.advance(5.0)
        if ending is not None:
            assert worker.status().state == "stopped"
            await group.assign_rest_elsewhere(set())
        assert worker.status().inflight_bytes == 0, "something is stuck"
        expected = Counter({at: 1 for at, value in group.values.items() if value != b"skip"})
        assert group.delivered() == expected
        assert {p.partition: group.highest.get(p, 0) for p in PARTITIONS} == {
            n: group.ends[n] for n in range(3)
        }
        worker.shutdown("done")


async def act(group: Group, clock: VirtualClock, action: tuple[Any, ...]) -> None:
    journal, errors = group.journal, group.errors
    match action:
        case "put", partition, values:
            group.append(partition, values)
        case "rebalance", ours:
            await rebalance(group, clock, ours)
        case ("revoke",):
            await rebalance(group, clock, set(PARTITIONS))
        case "pass", seconds:
            await clock.advance(seconds)
        case "trouble", "retry":
            journal.outcomes.append(Retry("busy", after=1.0))
        case "trouble", "raise":
            journal.outcomes.append(OSError("gone"))
        case "trouble", "errors":
            errors.outcomes.append(Retry("busy"))
        case "trouble", "hold":
            journal.hold = journal.hold or anyio.Event()  # a flush may wait for it already
    await clock.settle()


async def rebalance(group: Group, clock: VirtualClock, ours: set[TopicPartition]) -> None:
    """Revoke, let the other member process its partitions, assign; the sinks work again meanwhile."""
    async with anyio.create_task_group() as tasks:
        revoked = anyio.Event()

        async def revoke() -> None:
            await group.revoke()
            revoked.set()

        tasks.start_soon(revoke)
        await clock.settle()
        for sink in (group.journal, group.errors):
            release(sink)
            sink.outcomes.clear()
        while not revoked.is_set():
            await clock.advance(1.0)
    await group.assign_rest_elsewhere(ours)
    await group.assign(ours)


def release(journal: Journal) -> None:
    if journal.hold is not None:
        journal.hold.set()
        journal.hold = None


@settings(max_examples=examples(150), deadline=None)
@given(schedules)
def test_every_record_is_delivered_once_through_any_schedule(
    schedule: list[tuple[Any, ...]],
) -> None:
    anyio.run(
        partial(run, schedule, chained=False), backend_options={"loop_factory": VirtualTimeLoop}
    )


@settings(max_examples=examples(150), deadline=None)
@given(schedules)
@example(
    [  # rows of both partitions in one flush of the first reducer; then one of them is lost
        ("put", 1, [b"row"]),
        ("put", 0, [b"row", b"row", b"row"]),
        ("rebalance", {PARTITIONS[0]}),
        ("put", 0, [b"row", b"row"]),
    ]
)
def test_every_record_is_delivered_once_through_a_chain_of_reducers(
    schedule: list[tuple[Any, ...]],
) -> None:
    anyio.run(
        partial(run, schedule, chained=True), backend_options={"loop_factory": VirtualTimeLoop}
    )


@pytest.mark.parametrize("chained", [False, True])
def test_every_record_is_delivered_once_through_a_drain_with_rebalances(chained: bool) -> None:
    @settings(max_examples=examples(50), deadline=None)
    @given(schedules, endings)
    def delivers(schedule: list[tuple[Any, ...]], ending: list[tuple[Any, ...]]) -> None:
        anyio.run(
            partial(run, schedule, ending, chained=chained),
            backend_options={"loop_factory": VirtualTimeLoop},
        )

    delivers()
