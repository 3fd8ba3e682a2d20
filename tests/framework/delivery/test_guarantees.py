"""What a guarantee commits before a write; with a real committer, ledger and buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

from kmr.commit import Committer
from kmr.delivery.announcement import Announcement, Generation, read_announcement
from kmr.delivery.guarantees import AtMostOnce, ExactlyOnce
from kmr.delivery.ledger import Ledgers
from kmr.kafka.consumer import CommitOffset
from kmr.observe.metrics import Metrics
from kmr.record import Range, Rows, TopicPartition
from kmr.reducers.flushing import Buffer
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of

if TYPE_CHECKING:
    from kmr.testing import VirtualClock

P0 = TopicPartition("t", 0)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class AnnouncedWriter(MemoryWriter):
    """Remembers its announcements."""

    def __init__(self) -> None:
        super().__init__(Journal())
        self.announced: list[tuple[Announcement, bool]] = []

    def announce(self, announcement: Announcement, *, replayed: bool) -> None:
        self.announced.append((announcement, replayed))


class Bench:
    """A partition from offset 0 on, and a buffer of its rows."""

    def __init__(self) -> None:
        self.consumer = MemoryConsumer()
        self.ledgers = Ledgers()
        self.ledger = self.ledgers.open(P0, 0)
        self.committer = Committer(self.consumer, self.ledgers, interval=1.0, metrics=Metrics())
        self.committer.begin(P0, CommitOffset(0))
        self.waiting: list[bool] = []
        self.writer = AnnouncedWriter()
        self.buffer = Buffer(self.writer)

    def exactly_once(self, replayed: Announcement | None = None) -> ExactlyOnce:
        parts = (self.ledgers, self.committer, self.waiting.append, P0)
        return ExactlyOnce(*parts, "g", "writer", replayed)

    def at_most_once(self) -> AtMostOnce:
        return AtMostOnce(self.ledgers, self.committer, self.waiting.append, P0)

    def collect(self, count: int) -> None:
        position = self.ledger.position
        assert position is not None
        batch = batch_of("t", 0, position, [b"x"] * count)
        self.ledger.take_in(batch)
        offsets = np.arange(batch.first, batch.last + 1)
        whole = Range("t", 0, batch.first, batch.last, self.ledger.generation)
        self.buffer.add(Rows(pa.table({"o": offsets}), (whole,), offsets, (batch,)))

    async def committed(self) -> CommitOffset | None:
        return (await self.consumer.committed([P0]))[P0]


async def test_exactly_once_commits_the_announcement_and_tells_the_sink(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    bench.collect(5)
    assert await bench.exactly_once().before_write(bench.buffer) is None
    announcement = read_announcement(P0, await bench.committed())
    assert announcement == Announcement(0, 4, "g:t:0:0-4", "writer", rows=5)
    assert bench.writer.announced == [(announcement, False)]


async def test_the_generation_of_the_offsets_is_a_part_of_the_token_and_of_the_announcement(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    bench.committer.begin(P0, CommitOffset(0, Generation(7).metadata))
    bench.collect(5)
    assert await bench.exactly_once().before_write(bench.buffer) is None
    announcement = read_announcement(P0, await bench.committed())
    assert announcement == Announcement(0, 4, "g:t:0:0-4@7", "writer", rows=5, generation=7)


async def test_without_the_commit_nothing_may_be_written(clock: VirtualClock) -> None:
    bench = Bench()
    bench.collect(5)
    bench.consumer.fenced = True
    refusal = await bench.exactly_once().before_write(bench.buffer)
    assert refusal == "cannot announce t-0[0..4]: the commit was refused"
    assert bench.writer.announced == []


async def test_a_replayed_range_keeps_its_announcement_and_the_next_gets_its_own(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    before = Announcement(0, 4, "token of another process", "it", rows=5)
    guarantee = bench.exactly_once(before)
    bench.collect(5)
    assert await guarantee.before_write(bench.buffer) is None
    bench.ledgers.settle(bench.buffer.ranges())
    bench.buffer.clear()
    bench.collect(3)
    assert await guarantee.before_write(bench.buffer) is None
    after = Announcement(5, 7, "g:t:0:5-7", "writer", rows=3)
    assert bench.writer.announced == [(before, True), (after, False)]


async def test_a_flush_larger_than_a_block_announces_the_size_of_its_blocks(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    bench.writer.block_rows = 2
    bench.collect(5)
    await bench.exactly_once().before_write(bench.buffer)
    assert [announcement.chunk for announcement, _ in bench.writer.announced] == [2]


async def test_at_most_once_settles_and_commits_before_the_write(clock: VirtualClock) -> None:
    bench = Bench()
    bench.collect(5)
    assert await bench.at_most_once().before_write(bench.buffer) is None
    assert await bench.committed() == CommitOffset(5)
    bench.consumer.fenced = True
    bench.buffer.clear()
    bench.collect(5)
    assert await bench.at_most_once().before_write(bench.buffer) == (
        "cannot commit t-0[5..9] before it is written"
    )


async def test_a_range_waits_until_the_failed_records_below_it_are_settled(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    bench.collect(5)
    failed = bench.buffer.ranges()
    bench.buffer.clear()
    bench.collect(5)
    done = anyio.Event()

    async def wait() -> None:
        await bench.exactly_once().wait_turn(bench.buffer)
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.settle()
        assert bench.waiting == [True]
        assert not done.is_set()
        bench.ledgers.settle(failed)
    assert bench.waiting == [True, False]
