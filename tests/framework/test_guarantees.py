"""What a guarantee commits before a write; with a real committer, ledger and buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

from kmr.commit import Committer
from kmr.delivery.announcement import (
    Announcement,
    Generation,
    JoinedAnnouncement,
    read_announcement,
)
from kmr.delivery.ledger import Ledgers
from kmr.guarantees import AtMostOnce, ExactlyOnce, Guarantee
from kmr.intake.backpressure import Gate
from kmr.kafka.consumer import CommitOffset
from kmr.observe.metrics import Metrics
from kmr.record import Range, Rows, TopicPartition
from kmr.reducers.buffer import Buffer
from kmr.reducers.flushing import FlushOutcome
from kmr.reducers.joined_turn import JoinedTurn
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import NEW, Capabilities, Write
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of

if TYPE_CHECKING:
    from kmr.testing import VirtualClock

P0 = TopicPartition("t", 0)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class Bench:
    """A partition from offset 0 on, and a buffer of its rows."""

    def __init__(self) -> None:
        self.consumer = MemoryConsumer()
        self.ledgers = Ledgers()
        self.ledger = self.ledgers.open(P0, 0)
        self.committer = Committer(
            self.consumer, self.ledgers, delivery="exactly-once", interval=1.0, metrics=Metrics()
        )
        self.committer.begin(P0, CommitOffset(0))
        self.waiting: list[bool] = []
        self.gate = Gate()
        self.gate.open()
        self.writer = MemoryWriter(Journal())
        self.buffer = Buffer(self.writer)
        self.written: list[Write] = []

    def exactly_once(self, replayed: Announcement | None = None) -> ExactlyOnce:
        parts = (self.ledgers, self.gate, self.waiting.append, self.committer)
        return ExactlyOnce(*parts, P0, "g", "writer", replayed)

    def at_most_once(self) -> AtMostOnce:
        return AtMostOnce(self.ledgers, self.gate, self.waiting.append, self.committer)

    async def deliver(self, guarantee: Guarantee) -> None:
        """Deliver the buffer, and clear it."""

        async def write(write: Write = NEW, *, may_repeat: bool = True) -> FlushOutcome:
            self.written.append(write)
            return FlushOutcome(None, self.buffer.ranges(), [])

        assert await guarantee.deliver(self.buffer, write) is not None
        self.buffer.clear()

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
    await bench.deliver(bench.exactly_once())
    announcement = read_announcement(P0, await bench.committed())
    assert announcement == Announcement(0, 4, "g:t:0:0-4", "writer", rows=5)
    assert bench.written == [Write(announcement)]


async def test_the_generation_of_the_offsets_is_a_part_of_the_token_and_of_the_announcement(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    bench.committer.begin(P0, CommitOffset(0, Generation(7).metadata))
    bench.collect(5)
    await bench.deliver(bench.exactly_once())
    announcement = read_announcement(P0, await bench.committed())
    assert announcement == Announcement(0, 4, "g:t:0:0-4@7", "writer", rows=5, generation=7)


async def test_without_the_commit_nothing_may_be_written(clock: VirtualClock) -> None:
    bench = Bench()
    bench.collect(5)
    bench.consumer.fenced = True
    with pytest.raises(Retry, match=r"cannot announce t-0\[0..4\]: the commit was refused"):
        await bench.deliver(bench.exactly_once())
    assert bench.written == []


async def test_a_range_that_is_tried_again_is_announced_again(clock: VirtualClock) -> None:
    """The process may have been suspended meanwhile, and its offsets reset by somebody else."""
    bench = Bench()
    bench.collect(5)
    guarantee = bench.exactly_once()
    tried: list[Write] = []

    async def fail(write: Write = NEW, *, may_repeat: bool = True) -> FlushOutcome:
        tried.append(write)
        raise Retry("busy")

    for _ in range(2):
        with pytest.raises(Retry, match="busy"):
            await guarantee.deliver(bench.buffer, fail)
    assert len(bench.consumer.commits) == 2
    bench.consumer.fenced = True
    with pytest.raises(Retry, match=r"cannot announce t-0\[0..4\]: the commit was refused"):
        await guarantee.deliver(bench.buffer, fail)
    assert len(tried) == 2, "nothing is written with an announcement that is not ours any more"


async def test_a_replayed_range_keeps_its_announcement_and_the_next_gets_its_own(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    before = Announcement(0, 4, "token of another process", "it", rows=5)
    guarantee = bench.exactly_once(before)
    bench.collect(5)
    await bench.deliver(guarantee)
    bench.collect(3)
    await bench.deliver(guarantee)
    after = Announcement(5, 7, "g:t:0:5-7", "writer", rows=3)
    assert bench.written == [Write(before, repeated=True), Write(after)]


async def test_a_flush_larger_than_a_block_announces_the_size_of_its_blocks(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    bench.writer.capabilities = Capabilities(block_rows=2)
    bench.collect(5)
    await bench.deliver(bench.exactly_once())
    assert [each.announcement and each.announcement.chunk for each in bench.written] == [2]


async def test_ranges_that_were_written_at_once_are_settled_after_one_more_commit(
    clock: VirtualClock,
) -> None:
    """Another owner of one of them may have taken the token: only the group knows."""
    bench = Bench()
    bench.writer.may_join = lambda: True  # type: ignore[method-assign]
    bench.writer.capabilities = Capabilities(shares_tokens=True)
    bench.collect(5)
    turn = bench.buffer.turn = JoinedTurn([bench.buffer])
    guarantee = bench.exactly_once()

    async def lose(write: Write = NEW, *, may_repeat: bool = True) -> FlushOutcome:
        bench.written.append(write)
        bench.consumer.fenced = True
        return FlushOutcome(None, bench.buffer.ranges(), [])

    with pytest.raises(Retry, match=r"t-0\[0..4\] may have another owner, who has written"):
        await guarantee.deliver(bench.buffer, lose)
    assert bench.ledger.watermark == 0
    announcement = JoinedAnnouncement(0, 4, "g:t:0:0-4", "writer", rows=5, joined=turn.token)
    assert read_announcement(P0, await bench.committed()) == announcement
    bench.consumer.fenced = False
    bench.committer.rejoined()
    await bench.deliver(guarantee)
    assert bench.ledger.watermark == 5
    assert bench.written == [Write(announcement, joined=turn), Write(announcement, repeated=True)]


async def test_ranges_that_keep_their_tokens_are_written_at_once_without_another_commit(
    clock: VirtualClock,
) -> None:
    bench = Bench()
    bench.writer.may_join = lambda: True  # type: ignore[method-assign]
    bench.collect(5)
    turn = bench.buffer.turn = JoinedTurn([bench.buffer])
    await bench.deliver(bench.exactly_once())
    announcement = Announcement(0, 4, "g:t:0:0-4", "writer", rows=5)
    assert bench.written == [Write(announcement, joined=turn)]
    assert bench.ledger.watermark == 5


async def test_rows_of_a_later_generation_are_announced_alone(clock: VirtualClock) -> None:
    bench = Bench()
    bench.writer.may_join = lambda: True  # type: ignore[method-assign]
    bench.writer.capabilities = Capabilities(shares_tokens=True)
    bench.committer.begin(P0, CommitOffset(0, Generation(7).metadata))
    bench.collect(5)
    bench.buffer.turn = JoinedTurn([bench.buffer])
    await bench.deliver(bench.exactly_once())
    assert [type(write.announcement) for write in bench.written] == [Announcement]


async def test_at_most_once_settles_and_commits_before_the_write(clock: VirtualClock) -> None:
    bench = Bench()
    bench.collect(5)
    await bench.deliver(bench.at_most_once())
    assert await bench.committed() == CommitOffset(5)
    bench.consumer.fenced = True
    bench.collect(5)
    with pytest.raises(Retry, match=r"cannot commit t-0\[5..9\] before it is written"):
        await bench.deliver(bench.at_most_once())
    assert bench.written == [NEW], "and without the commit nothing is written"


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
        await bench.deliver(bench.exactly_once())
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.settle()
        assert bench.waiting == [True]
        assert not done.is_set()
        bench.ledgers.settle(failed)
    assert bench.waiting == [True, False]
