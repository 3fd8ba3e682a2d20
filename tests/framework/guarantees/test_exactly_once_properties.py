"""Kills, late writes, lost answers, refused commits, rebalances: each row is in the sink exactly once.

The sink recognises tokens, and is asked for them as a `RangeWriter` is. The group's other member is always
prompt: it writes what is announced with the announced token, then the rest, and commits. A reset begins a
generation of offsets, which every commit keeps, and each row that it reads again is in the sink once more.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr.delivery.announcement import Generation, read_announcement, read_metadata
from kmr.errors import CommitFenced
from kmr.kafka.consumer import CommitOffset
from kmr.mapping.functions import map_record
from kmr.record import Record, TopicPartition
from kmr.reducers.reducer import Retry
from kmr.service.threads import without_threads
from kmr.settings import Settings
from kmr.sinks import RangeWriter
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kmr.sinks import RangeRows

Shape = Literal["single", "chained", "branched"]
"""A writer; a chain of reducers; a writer and a chain as two branches."""

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
GENERATIONS = {PARTITIONS[0]: 5, PARTITIONS[1]: 0}  # at first

puts = st.tuples(
    st.just("put"),
    st.integers(0, 1),
    st.lists(st.sampled_from([b"row", b"row", b"row", b"skip", b"poison"]), min_size=1, max_size=6),
)
rebalances = st.tuples(
    st.sampled_from(["rebalance", "drain"]),
    st.sets(st.sampled_from(PARTITIONS)),
    st.booleans(),  # whether the sink recovers before the rebalance stops to wait for it
)
passes = st.tuples(st.just("pass"), st.sampled_from([0.0, 0.5, 1.0, 4.0, 30.0]))
troubles = st.tuples(
    st.just("trouble"), st.sampled_from(["retry", "raise", "unanswered", "hold", "errors", "fence"])
)
crashes = st.tuples(st.just("crash"), st.none() | st.sampled_from(PARTITIONS))  # to be reset
lates = st.tuples(st.just("late"))
DRAIN_THAT_OUTLASTS_A_REBALANCE: list[tuple[Any, ...]] = [
    ("trouble", "hold"),
    ("put", 0, [b"row"] * 12),
    ("put", 1, [b"row"] * 12),
    ("drain", {PARTITIONS[0]}, False),
]
schedules = st.lists(
    st.one_of(puts, puts, rebalances, passes, troubles, crashes, lates), max_size=30
)


@map_record
def locate(record: Record) -> list[dict[str, int]] | None:
    if record.value == b"poison":
        raise ValueError("poisoned")
    if record.value == b"skip":
        return None
    return [{"p": record.partition, "o": record.offset, "n": n} for n in range(2)]


@map_record
def divide(record: Record) -> list[tuple[dict[str, int], str]] | None:
    rows = locate(record)
    return None if rows is None else [(row, BRANCHES[row["n"]]) for row in rows]


BRANCHES = ("even", "odd")


class Sink:
    """A table that remembers the tokens of its inserts."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[int, int, int]] = Counter()
        self.tokens: set[str] = set()
        self.troubles: list[str] = []
        self.hold: anyio.Event | None = None
        self.under_way: list[tuple[str, list[tuple[int, int, int]]]] = []

    def write(self, token: str, rows: list[tuple[int, int, int]]) -> None:
        if token not in self.tokens:
            self.tokens.add(token)
            self.rows.update(rows)

    def write_elsewhere(self, token: str, rows: list[tuple[int, int, int]]) -> None:
        """Write as another member does."""
        self.write(token, rows)

    def finish_late_writes(self) -> None:
        for token, rows in self.under_way:
            self.write(token, rows)
        self.under_way = []

    def release(self) -> None:
        if self.hold is not None:
            self.hold.set()
            self.hold = None


class BranchedSink(Sink):
    """The tables of two branches; the rows of a record are in both."""

    def write_elsewhere(self, token: str, rows: list[tuple[int, int, int]]) -> None:
        for n, name in enumerate(BRANCHES):
            self.write(f"{token}+{name}", [row for row in rows if row[2] == n])


class TokenWriter(RangeWriter):
    """Writes announced ranges with their tokens."""

    def __init__(self, sink: Sink, **limits: Any) -> None:
        super().__init__(**limits)
        self.sink = sink

    def __deepcopy__(self, memo: object) -> Self:
        return type(self)(self.sink, max_rows=self.max_rows, max_age=self.max_age)

    async def has(self, rows: RangeRows) -> bool:
        return rows.token in self.sink.tokens

    async def write(self, rows: RangeRows) -> None:
        assert rows.write.announcement is not None, "written without an announcement"
        sink, token = self.sink, rows.token
        found = [(row["p"], row["o"], row["n"]) for row in rows.table.to_pylist()]
        trouble = sink.troubles.pop() if sink.troubles else None
        if trouble == "retry":
            raise Retry("busy", after=1.0)
        if trouble == "raise":
            raise OSError("gone")
        if sink.hold is not None:
            write = (token, found)
            sink.under_way.append(write)
            await sink.hold.wait()
            if write in sink.under_way:
                sink.under_way.remove(write)
        sink.write(token, found)
        if trouble == "unanswered":
            raise OSError("written, but the answer was lost")


class Group:
    """What outlives a worker: the log, the committed offsets, and another member."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.log: dict[TopicPartition, list[Any]] = defaultdict(list)
        self.committed = {
            partition: CommitOffset(0, Generation(generation).metadata)
            for partition, generation in GENERATIONS.items()
        }
        self.generations = dict(GENERATIONS)
        self.again: Counter[tuple[int, int]] = Counter()  # offsets that a reset reads again
        self.values: dict[tuple[int, int], bytes] = {}
        self.ends: dict[int, int] = defaultdict(int)
        self.dead_letters: Counter[tuple[int, int]] = Counter()
        self.refused_commits = 0

    def settled(self, partition: int, offset: int) -> bool:
        match self.values[partition, offset]:
            case b"row":
                return (partition, offset, 0) in self.sink.rows
            case b"poison":
                return (partition, offset) in self.dead_letters
            case _:
                return True

    def write_elsewhere(self, partition: TopicPartition) -> None:
        """The other member has the partition for a while."""
        entry = self.committed.get(partition)
        start, end = entry.offset if entry is not None else 0, self.ends[partition.partition]
        if (announcement := read_announcement(partition, entry)) is not None:
            self._write(partition, announcement.token, start, announcement.last + 1)
            start = announcement.last + 1
        if start < end:
            at = self.generations[partition]
            self._write(partition, f"elsewhere:{partition}:{start}-{end}@{at}", start, end)
        generation = Generation(read_metadata(partition, entry).generation)
        self.committed[partition] = CommitOffset(end, generation.metadata)

    def reset(self, partition: TopicPartition) -> None:
        """Reset to the first offset, if it is certain what was written; no worker runs."""
        entry = self.committed[partition]
        if read_announcement(partition, entry) is None:
            self.again.update((partition.partition, offset) for offset in range(entry.offset))
            self.generations[partition] += 1
            generation = Generation(self.generations[partition])
            self.committed[partition] = CommitOffset(0, generation.metadata)

    def _write(self, partition: TopicPartition, token: str, start: int, end: int) -> None:
        number = partition.partition
        rows = []
        for offset in range(start, end):
            match self.values[number, offset]:
                case b"row":
                    rows += [(number, offset, n) for n in range(2)]
                case b"poison":
                    self.dead_letters[number, offset] += 1
        self.sink.write_elsewhere(token, rows)


class Member(MemoryConsumer):
    """The worker's consumer; of a killed worker, it does nothing any more."""

    def __init__(self, group: Group, errors: Journal) -> None:
        super().__init__()
        self.group = group
        self.errors = errors
        self.log = group.log
        self._committed = group.committed
        self.killed = False

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        group = self.group
        if self.killed:
            raise CommitFenced("killed")
        if group.refused_commits:
            group.refused_commits -= 1
            raise CommitFenced("the group has moved on")
        self.keep_dead_letters()
        for partition, entry in offsets.items():
            before = group.committed.get(partition)
            assert before is None or entry.offset >= before.offset, "a commit moved back"
            assert read_metadata(partition, entry).generation == group.generations[partition]
            for offset in range(entry.offset):
                assert group.settled(partition.partition, offset), f"{partition}[{offset}] is lost"
        await super().commit(offsets)

    def keep_dead_letters(self) -> None:
        for row in self.errors.rows():
            self.group.dead_letters[row["partition"], row["offset"]] += 1
        self.errors.written.clear()


class Life:
    """One process after the other runs the strategy."""

    def __init__(self, group: Group, sink: Sink, shape: Shape) -> None:
        self.group = group
        self.sink = sink
        self.shape = shape
        self.clock = _clock()

    async def begin(self, tasks: anyio.abc.TaskGroup) -> None:
        self.errors = Journal()
        self.member = Member(self.group, self.errors)
        options: dict[str, Any] = {"topics": ("t",), "group": "g", "executor": "inline"}
        # longer than the longest backoff
        options |= {"revoke_deadline": 50.0, "shutdown_deadline": 1_000.0}
        self.worker = Worker(self.strategy(), Settings(**options), consumer=self.member)
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        tasks.start_soon(_run, self.worker, self.scope, self.ended)
        await self.member.started.wait()
        await self.member.rebalance(PARTITIONS)

    def strategy(self) -> Strategy:
        writer = TokenWriter(self.sink, max_rows=6, max_age=4.0)
        batcher = MemoryWriter(Journal(), forward=True, max_rows=4, max_age=2.0)
        shapes: dict[Shape, Any] = {
            "single": [writer],
            "chained": [batcher, writer],
            "branched": {"even": writer, "odd": [batcher, copy.deepcopy(writer)]},
        }
        return Strategy(
            divide if self.shape == "branched" else locate,
            shapes[self.shape],
            reduce_err=MemoryWriter(self.errors, max_rows=2, max_age=1.0),
        )

    async def act(self, action: tuple[Any, ...], tasks: anyio.abc.TaskGroup) -> None:
        sink, group = self.sink, self.group
        match action:
            case "put", number, values:
                self.put(number, values)
            case "rebalance", ours, recovers:
                await self.rebalance(ours, recovers=recovers)
            case "drain", ours, recovers:
                await self.drain(ours, tasks, recovers=recovers)
            case "pass", seconds:
                await self.clock.advance(seconds)
            case "crash", reset:
                await self.crash(tasks, reset)
            case ("late",):
                if sink.hold is None:
                    sink.finish_late_writes()
            case "trouble", "hold":
                sink.hold = sink.hold or anyio.Event()
            case "trouble", "errors":
                self.errors.outcomes.append(Retry("busy"))
            case "trouble", "fence":
                group.refused_commits += 1
            case "trouble", trouble:
                sink.troubles.append(trouble)

    def put(self, number: int, values: list[bytes]) -> None:
        first = self.group.ends[number]
        self.group.values.update({(number, first + n): value for n, value in enumerate(values)})
        self.group.ends[number] = first + len(values)
        self.member.put(batch_of("t", number, first, values))

    async def crash(self, tasks: anyio.abc.TaskGroup, reset: TopicPartition | None) -> None:
        """Nothing more is committed; writes under way may still arrive later."""
        self.member.keep_dead_letters()
        self.member.killed = True
        self.scope.cancel()
        await self.clock.advance(60.0)
        self.sink.hold = None
        self.sink.troubles.clear()
        self.group.refused_commits = 0
        if reset is not None:
            self.group.reset(reset)
        await self.begin(tasks)

    async def drain(
        self, ours: set[TopicPartition], tasks: anyio.abc.TaskGroup, *, recovers: bool
    ) -> None:
        """Shut down, with a rebalance meanwhile, and begin again."""
        self.worker.shutdown("drain")
        await self.clock.settle()
        await self.rebalance(ours, recovers=recovers)
        self.recover()
        while not self.ended.is_set():
            await self.clock.advance(1.0)
        self.member.keep_dead_letters()
        await self.begin(tasks)

    async def rebalance(self, ours: set[TopicPartition], *, recovers: bool = True) -> None:
        async with anyio.create_task_group() as tasks:
            revoked = anyio.Event()

            async def revoke() -> None:
                await self.member.revoke()
                revoked.set()

            tasks.start_soon(revoke)
            await self.clock.settle()
            if recovers:
                self.recover()
            while not revoked.is_set():
                await self.clock.advance(1.0 if recovers else 10.0)
        self.member.keep_dead_letters()
        for partition in set(PARTITIONS) - ours:
            self.group.write_elsewhere(partition)
        await self.member.assign(ours)

    def recover(self) -> None:
        self.sink.release()
        self.sink.troubles.clear()
        self.errors.outcomes.clear()
        self.group.refused_commits = 0


async def _run(worker: Worker, scope: anyio.CancelScope, ended: anyio.Event) -> None:
    """Run one worker; if it was killed, it may end after the next one has begun."""
    with scope:
        await worker.run()
    ended.set()


def _clock() -> VirtualClock:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualTimeLoop)
    return VirtualClock(running)


async def run(schedule: list[tuple[Any, ...]], shape: Shape) -> None:
    sink = BranchedSink() if shape == "branched" else Sink()
    group = Group(sink)
    life = Life(group, sink, shape)
    # The virtual clock would not wait for a thread.
    with without_threads():
        await live(life, schedule)


async def live(
    life: Life,
    schedule: list[tuple[Any, ...]],
    passed: Callable[[], Iterable[tuple[int, int]]] | None = None,
) -> None:
    """Run a schedule and compare; `passed`: the records that reach the sink, by default each `row`."""
    sink, group = life.sink, life.group
    async with anyio.create_task_group() as tasks:
        await life.begin(tasks)
        for action in schedule:
            await life.act(action, tasks)
            await life.clock.settle()
        life.recover()
        await life.rebalance(set(PARTITIONS))
        for _ in range(60):
            await life.clock.advance(5.0)
        sink.finish_late_writes()
        life.member.keep_dead_letters()
        assert life.worker.status().inflight_bytes == 0, "something is stuck"
        every = [at for at, value in group.values.items() if value == b"row"]
        rows = every if passed is None else passed()
        times = {(*at, n): 1 + group.again[at] for at in rows for n in range(2)}
        assert sink.rows == Counter(times)
        poisoned = {at for at, value in group.values.items() if value == b"poison"}
        assert set(group.dead_letters) == poisoned
        committed = {p.partition: e.offset for p, e in group.committed.items() if e.offset}
        assert committed == {number: end for number, end in group.ends.items() if end}
        life.worker.shutdown("done")


@pytest.mark.parametrize("shape", get_args(Shape))
@settings(max_examples=examples(200), deadline=None)
@given(schedule=schedules)
@example(schedule=DRAIN_THAT_OUTLASTS_A_REBALANCE)
def test_every_row_is_in_the_sink_once_through_any_schedule(
    shape: Shape, schedule: list[tuple[Any, ...]]
) -> None:
    anyio.run(partial(run, schedule, shape), backend_options={"loop_factory": VirtualTimeLoop})
