"""Commits: when a worker commits, which commits it withholds, and announcements; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.commit import Committer
from kmr.delivery.announcement import Announcement, Generation, generation_of
from kmr.delivery.ledger import Ledgers
from kmr.errors import CommitRefused, ConsumerError
from kmr.kafka.consumer import CommitOffset
from kmr.observe.metrics import Metrics
from kmr.record import Range
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kmr.record import TopicPartition
    from kmr.reducers.sink import Delivery
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_a_start_is_committed_before_anything_is_read(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    async with running(Strategy(locate, [MemoryWriter(Journal())]), consumer):
        await consumer.rebalance([P0, P1])
        assert committed(consumer) == {P0: 0, P1: 0}


async def test_a_fenced_commit_is_survived_and_the_broker_decides_where_to_go_on(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer):
        await consumer.rebalance([P0])
        await journal.until(lambda j: len(j.written) == 2)
        consumer.fenced = True
        await consumer.revoke()
        consumer.fenced = False
        consumer.commit_elsewhere(P0, 1)
        await consumer.assign([P0])
        await journal.until(lambda j: len(j.written) == 3)
    assert written(journal, 0) == [0, 1, 1]
    assert committed(consumer) == {P0: 2}


class SlowToAnswer(MemoryConsumer):
    """Returns the committed offsets only while `answering` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answering = anyio.Event()
        self.answering.set()

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        await self.answering.wait()
        return await super().committed(partitions)


async def test_a_new_generation_never_gets_the_watermarks_of_the_last_one(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), SlowToAnswer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer):
        consumer.fenced = True  # thrown out, and not aware of it yet
        await consumer.rebalance([P0])
        await journal.until(lambda j: len(j.written) == 2)
        await consumer.revoke()
        consumer.commit_elsewhere(P0, 7)  # another member, which goes on meanwhile
        consumer.fenced = False  # a member again: its commits count
        consumer.answering = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.assign, [P0])
            await clock.advance(5.0)
            assert consumer.commits == []
            consumer.answering.set()
        await clock.advance(5.0)
    assert consumer.commits == [{P0: 7}]  # as the other member did, with a generation


def at(offset: int) -> CommitOffset:
    """A committed offset of generation 7."""
    return CommitOffset(offset, Generation(7).metadata)


def committer_of(
    consumer: MemoryConsumer, delivery: Delivery = "at-least-once"
) -> tuple[Committer, Ledgers]:
    """A committer of partition 0, of which ten records were taken in and nothing is settled."""
    ledgers = Ledgers()
    committer = Committer(consumer, ledgers, delivery=delivery, interval=1.0, metrics=Metrics())
    committer.begin(P0, at(0))
    ledgers.open(P0, 0).take_in(batch_of("t", 0, 0, [b"x"] * 10))
    return committer, ledgers


def settle(ledgers: Ledgers, first: int, last: int) -> None:
    ledger = ledgers.get(P0)
    assert ledger is not None
    ledgers.settle([Range("t", 0, first, last, ledger.generation)])


async def test_an_announced_range_stays_committed_until_the_watermark_is_beyond_it(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    committer, ledgers = committer_of(consumer)
    announcement = Announcement(0, 4, "token", "writer")
    assert await committer.announce(P0, announcement)
    assert await consumer.committed([P0]) == {P0: CommitOffset(0, announcement.metadata)}
    settle(ledgers, 0, 2)
    assert await committer.commit()
    assert await consumer.committed([P0]) == {P0: CommitOffset(0, announcement.metadata)}
    settle(ledgers, 3, 6)
    assert await committer.commit()
    assert await consumer.committed([P0]) == {P0: at(7)}


async def test_a_range_that_was_found_announced_is_written_after_one_commit_that_the_group_accepts(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    committer, _ = committer_of(consumer)
    announcement = Announcement(0, 4, "token", "its predecessor, or its successor")
    committer.begin(P0, CommitOffset(0, announcement.metadata), announcement)
    consumer.fenced = True
    assert not await committer.announce(P0, announcement)
    consumer.fenced = False
    assert await committer.announce(P0, announcement)
    assert await committer.announce(P0, announcement)
    assert consumer.commits == [{P0: 0}]
    assert await consumer.committed([P0]) == {P0: CommitOffset(0, announcement.metadata)}


async def test_only_watermarks_that_moved_are_committed(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    committer, ledgers = committer_of(consumer)
    assert await committer.commit()
    assert consumer.commits == []
    settle(ledgers, 0, 4)
    settle(ledgers, 6, 9)
    assert await committer.commit()
    assert await committer.commit()
    assert consumer.commits == [{P0: 5}]
    assert committer.committed(P0) == 5


class Unanswered(MemoryConsumer):
    """Acknowledges a commit only after an attempt without an answer, which may take effect at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.joined_anew = 0

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        await super().commit(offsets)
        self.has_unanswered_commit = True

    async def join_anew(self) -> None:
        self.joined_anew += 1


async def test_partitions_are_looked_at_when_records_were_settled_and_seldom_else(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = MemoryConsumer()
    committer, ledgers = committer_of(consumer)
    looks: list[float] = []
    watermarks = ledgers.watermarks

    def looked(settled: Iterable[Range] = ()) -> dict[TopicPartition, int]:
        looks.append(anyio.current_time())
        return watermarks(settled)

    monkeypatch.setattr(ledgers, "watermarks", looked)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run)
        for _ in range(60):
            await clock.advance(1.0)
        assert len(looks) <= 12
        del looks[:]
        settle(ledgers, 0, 4)
        await clock.advance(1.0)
        assert committed(consumer) == {P0: 5}
        settle(ledgers, 5, 9)
        consumer.fenced = True
        for _ in range(3):
            await clock.advance(1.0)
        assert len(looks) == 4
        consumer.fenced = False
        await clock.advance(1.0)
        assert committed(consumer) == {P0: 10}
        tasks.cancel_scope.cancel()


async def test_after_an_attempt_without_an_answer_nothing_is_committed_before_the_next_generation(
    clock: VirtualClock,
) -> None:
    consumer = Unanswered()
    committer, ledgers = committer_of(consumer, delivery="exactly-once")
    settle(ledgers, 0, 4)
    assert await committer.commit()
    assert consumer.joined_anew == 1
    settle(ledgers, 5, 9)
    assert not await committer.commit()
    assert consumer.commits == [{P0: 5}]
    assert committer.is_ours(P0, at(5))
    consumer.has_unanswered_commit = False
    committer.rejoined()
    assert await committer.commit()
    assert consumer.commits == [{P0: 5}, {P0: 10}]


async def test_with_at_least_once_commits_go_on_after_an_attempt_without_an_answer(
    clock: VirtualClock,
) -> None:
    consumer = Unanswered()
    committer, ledgers = committer_of(consumer)
    settle(ledgers, 0, 4)
    assert await committer.commit()
    settle(ledgers, 5, 9)
    assert await committer.commit()
    assert consumer.joined_anew == 0


class Refusing(MemoryConsumer):
    """Refuses the commits of one partition for good, and acknowledges the others."""

    refused: TopicPartition | None = None

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        accepted = {p: offset for p, offset in offsets.items() if p != self.refused}
        await super().commit(accepted)
        if self.refused in offsets:
            raise CommitRefused("t-0: the permission was revoked", frozenset(accepted))


async def test_a_commit_that_is_refused_for_good_acknowledges_the_other_partitions(
    clock: VirtualClock,
) -> None:
    consumer = Refusing()
    consumer.refused = P0
    committer, ledgers = committer_of(consumer)
    committer.begin(P1, at(0))
    ledgers.open(P1, 3)
    settle(ledgers, 0, 4)
    with pytest.raises(CommitRefused):
        await committer.commit()
    assert (committer.committed(P0), committer.committed(P1)) == (0, 3)


async def test_a_commit_that_is_refused_for_good_ends_the_worker_with_the_reason(
    clock: VirtualClock,
) -> None:
    consumer = Refusing()
    put(consumer, 0, 0, b"a")
    put(consumer, 1, 0, b"a")
    strategy = Strategy(locate, [MemoryWriter(Journal(), max_rows=1)])
    with pytest.RaisesGroup(pytest.RaisesExc(CommitRefused, match="the permission was revoked")):
        async with running(strategy, consumer):
            await consumer.rebalance([P0, P1])
            consumer.refused = P0
            await clock.advance(1.0)
            await anyio.sleep_forever()
    assert committed(consumer) == {P0: 0, P1: 1}


async def test_nothing_is_committed_between_a_revocation_and_the_next_generation(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    committer, ledgers = committer_of(consumer)
    settle(ledgers, 0, 4)
    committer.hold()
    assert not await committer.commit()
    assert consumer.commits == []
    committer.rejoined()
    assert await committer.commit()
    assert consumer.commits == [{P0: 5}]


async def test_after_a_commit_without_an_answer_both_offsets_count_as_ours(
    clock: VirtualClock,
) -> None:
    class Silent(MemoryConsumer):
        async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
            raise ConsumerError("no answer")

    committer, ledgers = committer_of(Silent())
    settle(ledgers, 0, 4)
    assert not await committer.commit()
    assert committer.is_ours(P0, at(0))
    assert committer.is_ours(P0, at(5))
    assert not committer.is_ours(P0, at(3))


async def test_an_offset_whose_commit_was_fenced_is_not_ours_when_another_member_commits_it(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    committer, ledgers = committer_of(consumer)
    settle(ledgers, 0, 4)
    consumer.fenced = True
    assert not await committer.commit()
    assert not committer.may_commit
    assert committer.is_ours(P0, at(0))
    assert not committer.is_ours(P0, at(5))


async def test_every_commit_keeps_the_generation_that_a_reset_began(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    committer, ledgers = committer_of(consumer)
    committer.begin(P0, CommitOffset(0, Generation(7).metadata))
    assert committer.generations == {P0: 7}
    assert await committer.announce(P0, Announcement(0, 4, "token", "writer", generation=7))
    kept = [generation_of(P0, (await consumer.committed([P0]))[P0])]
    settle(ledgers, 0, 6)
    assert await committer.commit()
    assert await consumer.committed([P0]) == {P0: CommitOffset(7, Generation(7).metadata)}
    assert kept == [7]
    committer.forget(P0)
    assert committer.generations == {}
