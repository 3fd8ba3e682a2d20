"""Turns: few lanes never wait, many share them, the oldest and largest first; time is virtual."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest

from kmr.record import Range, Rows, TopicPartition
from kmr.reducers.buffer import Buffer
from kmr.reducers.turns import Turns
from kmr.sinks import RangeRows, RangeWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop

from ..workers import locate, put, running, until_settled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class Lane:
    """A lane that begins to collect with some rows. When it is woken it notes the time."""

    def __init__(self, turns: Turns, rows: int, *, max_age: float = 4.0) -> None:
        self.turns = turns
        self.buffer = Buffer(MemoryWriter(Journal(), max_rows=100, max_age=max_age))
        self.buffer.add_unlimited(Rows(pa.table({"n": range(rows)}), (Range("t", 0, 0, rows - 1),)))
        self.at: float | None = None

    def collect(self) -> None:
        self.turns.collect(self, self.buffer)

    def look(self) -> None:
        if self.at is None and self.turns.take_given(self):
            self.at = asyncio.get_running_loop().time()


async def pass_time(clock: VirtualClock, seconds: float) -> None:
    """Advance the time in small steps, so that each timer is called about when it is due."""
    for _ in range(round(seconds * 100)):
        await clock.advance(0.01)


def collecting(turns: Turns, *rows: int, max_age: float = 4.0) -> list[Lane]:
    lanes = [Lane(turns, number, max_age=max_age) for number in rows]
    for lane in lanes:
        lane.collect()
    return lanes


async def test_few_lanes_never_wait(clock: VirtualClock) -> None:
    turns = Turns(4)
    for _ in range(20):
        begin = anyio.current_time()
        lanes = collecting(turns, 1, 1, 1, 1)
        await clock.advance(3.9)
        assert [lane.at for lane in lanes] == [None] * 4
        await pass_time(clock, 0.2)
        assert [lane.at for lane in lanes] == pytest.approx([begin + 4.0] * 4, abs=0.02)


async def test_many_lanes_share_the_turns_some_at_a_time(clock: VirtualClock) -> None:
    told: list[float] = []
    turns = Turns(4, told.append)
    begin = anyio.current_time()
    lanes = collecting(turns, *[1] * 40)
    for _ in range(16):
        await clock.advance(1.0)
    times = sorted(lane.at - begin - 4.0 for lane in lanes if lane.at is not None)
    assert times == pytest.approx([float(number // 4) for number in range(40)], abs=0.01)
    assert max(told) == pytest.approx(9.0, abs=0.01)
    assert told[-1] == turns.late == 0.0


async def test_without_a_limit_all_lanes_have_their_turn_at_once(clock: VirtualClock) -> None:
    lanes = collecting(Turns(None), *[1] * 40)
    begin = anyio.current_time()
    await clock.advance(3.9)
    await pass_time(clock, 0.2)
    assert [lane.at for lane in lanes] == pytest.approx([begin + 4.0] * 40, abs=0.02)


async def test_lanes_whose_rows_are_soon_old_enough_have_their_turn_together(
    clock: VirtualClock,
) -> None:
    turns = Turns(4, joins=10)
    begin = anyio.current_time()
    first = collecting(turns, 1, 1)
    await clock.advance(0.09)
    first += collecting(turns, 1, 1)
    await clock.advance(0.05)
    second = collecting(turns, 1, 1)
    await clock.advance(3.8)
    await pass_time(clock, 0.3)
    assert [lane.at for lane in first] == pytest.approx([begin + 4.0] * 4, abs=0.02)
    assert [lane.at for lane in second] == pytest.approx([begin + 4.14] * 2, abs=0.02)
    assert len({lane.buffer.turn for lane in first}) == 1
    assert first[0].buffer.turn is not second[0].buffer.turn


async def test_the_oldest_and_largest_come_first(clock: VirtualClock) -> None:
    turns = Turns(0.25)
    first, old = collecting(turns, 1, 1)
    await clock.advance(2.0)
    small, large = collecting(turns, 1, 90)
    for _ in range(16):
        await clock.advance(1.0)
    order = sorted((first, old, small, large), key=lambda lane: lane.at or 0.0)
    assert order == [first, large, old, small]


async def test_a_lane_that_leaves_gives_its_turn_to_others(clock: VirtualClock) -> None:
    class Deaf(Lane):
        def look(self) -> None:
            """Be told, and do nothing."""

    turns = Turns(1)
    first, deaf, last = Lane(turns, 60), Deaf(turns, 50), Lane(turns, 1)
    for lane in (first, deaf, last):
        lane.collect()
    await clock.advance(4.1)
    assert first.at is not None
    await clock.advance(1.0)
    assert last.at is None
    turns.leave(deaf, deaf.buffer)
    turns.leave(deaf, deaf.buffer)
    await clock.advance(0.5)
    assert last.at is not None


async def test_a_lane_that_leaves_before_its_age_has_no_turn(clock: VirtualClock) -> None:
    turns = Turns(4)
    gone, stays = collecting(turns, 1, 1)
    turns.leave(gone, gone.buffer)
    await clock.advance(4.1)
    assert (gone.at is None, stays.at is None) == (True, False)


class Counting(RangeWriter):
    """Notes when ranges are written."""

    def __init__(self, times: list[float], rows: list[int], **options: Any) -> None:
        super().__init__(**options)
        self.times, self.written = times, rows

    def __deepcopy__(self, memo: object) -> Counting:
        return Counting(self.times, self.written, max_age=self.max_age, inserts_per_second=2)

    async def has(self, rows: RangeRows) -> bool:
        return False

    async def write(self, rows: RangeRows) -> None:
        self.times.append(anyio.current_time())
        self.written.append(len(rows))


async def test_lanes_of_many_partitions_write_larger_ranges_and_announce_together(
    clock: VirtualClock,
) -> None:
    times: list[float] = []
    written: list[int] = []
    consumer = MemoryConsumer()
    partitions = [TopicPartition("t", number) for number in range(12)]
    strategy = Strategy(locate, [Counting(times, written, max_age=1.0, inserts_per_second=2)])
    async with running(strategy, consumer) as worker:
        await consumer.rebalance(partitions)
        for second in range(20):
            for number in range(12):
                put(consumer, number, second, b"x")
            await clock.advance(1.0)
        writes, commits = len(times), len(consumer.commits)
        assert writes <= 20 * 2 + 2
        assert max(written) >= 5
        assert commits <= 20 + writes // 2 + 3
        late = worker.metrics.registry.get_sample_value("kmr_reduce_flush_late_seconds")
        assert late is not None
        assert late > 1.0
        waiting = [stage for stage in worker.status().stages if stage.waits_for is not None]
        assert {stage.waits_for for stage in waiting} == {
            "its turn to be written (inserts_per_second)"
        }
        worker.shutdown("the drain does not wait for turns")
        before = anyio.current_time()
        while worker.status().state != "stopped":
            await clock.advance(0.1)
        assert anyio.current_time() - before < 1.0
    assert sum(written) == 12 * 20


async def test_full_ranges_do_not_wait(clock: VirtualClock) -> None:
    times: list[float] = []
    consumer, partitions = MemoryConsumer(), [TopicPartition("t", number) for number in range(12)]
    strategy = Strategy(locate, [Counting(times, [], max_age=60.0, inserts_per_second=2)])
    async with running(strategy, consumer) as worker:
        await consumer.rebalance(partitions)
        for number in range(12):
            put(consumer, number, 0, *[b"x"] * 32_768)
        for partition in partitions:
            await until_settled(worker, partition, 32_768)
    assert len(times) == 12
    assert max(times) - min(times) < 1.0


class Joining(Counting):
    """Takes the ranges of several partitions at once."""

    def __init__(self, times: list[float], rows: list[int], **options: Any) -> None:
        super().__init__(times, rows, **options)
        self.capabilities = replace(self.capabilities, joins_rows=50)
        self.together: list[int] = []

    def __deepcopy__(self, memo: object) -> Joining:
        made = Joining(
            self.times,
            self.written,
            max_age=self.max_age,
            max_rows=self.max_rows,
            inserts_per_second=2,
        )
        made.together = self.together
        return made

    def may_join(self) -> bool:
        return True

    async def write_together(self, ranges: Sequence[RangeRows]) -> Sequence[Mapping[int, str]]:
        self.together.append(len(ranges))
        for rows in ranges:
            await self.write(rows)
        return [{} for _ in ranges]


async def test_small_flushes_of_many_partitions_have_one_turn_one_commit_and_one_write(
    clock: VirtualClock,
) -> None:
    writer, consumer = Joining([], [], max_age=1.0, inserts_per_second=2), MemoryConsumer()
    partitions = [TopicPartition("t", number) for number in range(100)]
    async with running(Strategy(locate, [writer]), consumer) as worker:
        await consumer.rebalance(partitions)
        for second in range(10):
            for number in range(100):
                put(consumer, number, second, b"x")
            await clock.advance(1.0)
        await clock.advance(1.0)
        late = worker.metrics.registry.get_sample_value("kmr_reduce_flush_late_seconds")
        assert late is not None
        assert late < 1.0
        assert len(consumer.commits) <= 12 + 2 * (len(writer.together) + 30)
    assert sum(writer.written) == 100 * 10
    assert len(writer.together) <= 10 * 2 + 2
    assert max(writer.together) >= 90


async def test_what_a_drain_leaves_of_many_partitions_is_written_at_once(
    clock: VirtualClock,
) -> None:
    writer, consumer = Joining([], [], max_age=60.0), MemoryConsumer()
    partitions = [TopicPartition("t", number) for number in range(30)]
    async with running(Strategy(locate, [writer]), consumer) as worker:
        await consumer.rebalance(partitions)
        for number in range(30):
            put(consumer, number, 0, *[b"x"] * (60 if number == 7 else 2))
        await clock.advance(1.0)
        commits = len(consumer.commits)
        worker.shutdown("done")
        before = anyio.current_time()
        while worker.status().state != "stopped":
            await clock.advance(0.1)
        assert anyio.current_time() - before < 1.0
        assert len(consumer.commits) <= commits + 5
    assert sum(writer.written) == 29 * 2 + 60
    assert writer.together == [29], "and one has too many rows"


async def test_lanes_that_have_as_much_as_a_large_write_together_do_not_wait_for_their_age(
    clock: VirtualClock,
) -> None:
    turns = Turns(4, joins=100)
    lanes = [Lane(turns, 79) for _ in range(6)]
    begin = anyio.current_time()
    for lane in lanes[:5]:
        turns.collect(lane, lane.buffer)
    assert [lane.at for lane in lanes] == [None] * 6, "of 400 rows"
    turns.leave(lanes[0], lanes[0].buffer)
    turns.collect(lanes[5], lanes[5].buffer)
    assert [lane.at for lane in lanes] == [None] * 6, "one has left"
    turns.collect(lanes[0], lanes[0].buffer)
    assert [lane.at for lane in lanes] == [begin] * 6
    assert len({lane.buffer.turn for lane in lanes} - {None}) == 1
    turns.collect(lanes[0], Lane(turns, 79).buffer)
    assert not turns.take_given(lanes[0]), "what was given counts no more"


async def test_bytes_make_a_large_write_too(clock: VirtualClock) -> None:
    turns = Turns(4, joins=100)
    lanes = [Lane(turns, 2) for _ in range(3)]
    for lane in lanes:
        lane.buffer.reducer.max_bytes = 2 * lane.buffer.bytes
        turns.collect(lane, lane.buffer)
    assert [lane.at is None for lane in lanes] == [False, False, True]


async def test_no_turn_has_more_rows_than_a_sink_writes_at_once(clock: VirtualClock) -> None:
    turns = Turns(4, joins=100_000)
    lanes = [Lane(turns, 90_000) for _ in range(7)]
    for lane in lanes:
        lane.buffer.reducer.max_rows = 1_000_000
        turns.collect(lane, lane.buffer)
    assert [lane.at is None for lane in lanes] == [False] * 6 + [True]


async def test_lanes_with_too_many_rows_or_of_a_sink_that_joins_none_wait_for_their_age(
    clock: VirtualClock,
) -> None:
    for turns in (Turns(4, joins=40), Turns(4)):
        lanes = [Lane(turns, 50) for _ in range(20)]
        for lane in lanes:
            turns.collect(lane, lane.buffer)
        assert [lane.at for lane in lanes] == [None] * 20


async def test_the_backlog_of_many_partitions_is_written_together_before_its_age(
    clock: VirtualClock,
) -> None:
    writer, consumer = Joining([], [], max_age=60.0, max_rows=25), MemoryConsumer()
    partitions = [TopicPartition("t", number) for number in range(50)]
    begin = anyio.current_time()
    async with running(Strategy(locate, [writer]), consumer) as worker:
        await consumer.rebalance(partitions)
        for number in range(50):
            put(consumer, number, 0, *[b"x"] * 20)
        for partition in partitions:
            await until_settled(worker, partition, 20)
        assert anyio.current_time() - begin < 1.0
    assert sum(writer.written) == 50 * 20
    assert writer.together == [5] * 10


async def test_rows_that_use_up_the_budget_are_written_together(clock: VirtualClock) -> None:
    writer, consumer = Joining([], [], max_age=60.0), MemoryConsumer()
    partitions = [TopicPartition("t", number) for number in range(20)]
    strategy = Strategy(locate, [writer])
    async with running(strategy, consumer, inflight_bytes=1024 * 1024) as worker:
        await consumer.rebalance(partitions)
        for second in range(20):
            for number in range(20):
                put(consumer, number, second, b"x" * 10_000)
            await clock.advance(1.0)
        assert sum(writer.written) >= 300
        assert max(writer.together) >= 19, "of partitions whose rows used up the budget"
        worker.shutdown("done")
        while worker.status().state != "stopped":
            await clock.advance(0.1)


async def test_rows_beyond_the_largest_write_have_a_turn_of_their_own(clock: VirtualClock) -> None:
    turns = Turns(4, joins=400_000)
    first, second, third = (Lane(turns, rows).buffer for rows in (300_000, 100_000, 300_000))
    turn = turns.end(first)
    assert turns.end(second) is turn is not turns.end(third)


def test_turns_are_given_in_a_loop_that_anyio_has_not_started() -> None:
    """As that of a notebook is."""

    async def run() -> list[float | None]:
        lanes = collecting(Turns(20), *[1] * 30, max_age=0.1)
        await asyncio.sleep(1.0)
        return [lane.at for lane in lanes]

    assert None not in asyncio.run(run())
