"""Commits: when a worker commits, which commits it withholds, and announcements; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kmr.commit import Committer, TransactionalCommitter
from kmr.delivery.announcement import Announcement, Closed, Generation, read_metadata
from kmr.delivery.ledger import Ledger, Ledgers
from kmr.errors import CommitRefused, ConsumerError
from kmr.kafka.consumer import CommitOffset
from kmr.observe.metrics import Metrics
from kmr.record import Range
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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

    def looked(*given: Any) -> dict[TopicPartition, int]:
        looks.append(anyio.current_time())
        return watermarks(*given)

    monkeypatch.setattr(ledgers, "watermarks", looked)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run)
        for _ in range(60):
            await clock.advance(1.0)
        assert len(looks) <= 3
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


async def test_an_announcement_looks_at_the_partitions_that_moved_alone(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = MemoryConsumer()
    committer, ledgers = committer_of(consumer, "exactly-once")
    for partition in range(1, 50):
        committer.begin(idle := P0._replace(partition=partition), at(0))
        ledgers.open(idle, 0)
    assert await committer.commit()
    wanted: list[TopicPartition] = []
    find = committer._wanted

    def found(partition: TopicPartition, watermark: int) -> CommitOffset:
        wanted.append(partition)
        return find(partition, watermark)

    monkeypatch.setattr(committer, "_wanted", found)
    assert await committer.announce(P0, Announcement(0, 4, "token", "writer", generation=7))
    settle(ledgers, 0, 4)
    assert await committer.announce(P0, Announcement(5, 9, "other", "writer", generation=7))
    assert set(wanted) == {P0}
    assert committed(consumer) == {P0: 5}
    consumer.fenced = True
    settle(ledgers, 5, 9)
    assert not await committer.commit(of_all=False)
    consumer.fenced = False
    assert await committer.commit(of_all=False), "what was refused is not forgotten"
    assert committed(consumer) == {P0: 10}


class Troubled(MemoryConsumer):
    """Answers no commit while it `is_silent`."""

    is_silent = False

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        if self.is_silent:
            raise ConsumerError("no answer")
        await super().commit(offsets)


class Steps:
    """What happens to a committer and its ledgers; each method is a step, `amount` is 1 to 6."""

    def __init__(self) -> None:
        self.consumer, self.ledgers = Troubled(), Ledgers()
        self.committer = Committer(
            self.consumer,
            self.ledgers,
            delivery="at-least-once",
            interval=1.0,
            metrics=Metrics(),
        )

    async def take(self, step: str, number: int, amount: int) -> None:
        partition = P0._replace(partition=number)
        if self.ledgers.get(partition) is None:
            await self.assign(partition, amount)
        await getattr(self, step)(partition, amount)

    def ledger(self, partition: TopicPartition) -> Ledger:
        found = self.ledgers.get(partition)
        assert found is not None
        return found

    async def assign(self, partition: TopicPartition, amount: int) -> None:
        self.committer.begin(partition, at(0) if amount > 1 else None, windows=True)
        ledger = self.ledgers.open(partition, None if amount == 2 else 0, holds=True)
        ledger.until = 6

    async def lose(self, partition: TopicPartition, _amount: int) -> None:
        self.committer.forget(partition)
        self.ledgers.drop(partition)

    async def read(self, partition: TopicPartition, amount: int) -> None:
        first = (self.ledger(partition).position or 0) + amount % 2
        self.ledgers.take_in(batch_of("t", partition.partition, first, [b"x"] * amount))

    async def settle(self, partition: TopicPartition, amount: int) -> None:
        ledger = self.ledger(partition)
        first, end = (ledger.watermark or 0) + amount // 5, ledger.position or 0
        if first < end:
            self.ledgers.settle([Range(*partition, first, end - 1, ledger.generation)])

    async def announce(self, partition: TopicPartition, amount: int) -> None:
        first = self.ledger(partition).watermark or 0
        announcement = Announcement(first, first + amount, "token", "writer")
        await self.committer.announce(partition, announcement, again=amount == 1)

    async def withdraw(self, partition: TopicPartition, _amount: int) -> None:
        self.committer.withdraw(partition)

    async def close(self, partition: TopicPartition, amount: int) -> None:
        self.committer.close_windows(partition, Closed(amount, amount))

    async def end(self, partition: TopicPartition, _amount: int) -> None:
        ledger = self.ledger(partition)
        first, end = ledger.watermark or 0, ledger.position or 0
        held = Range(*partition, first, end, ledger.generation)
        self.ledgers.end_in_windows(partition, [held])

    async def commit(self, _partition: TopicPartition, amount: int) -> None:
        for _ in range(2):  # the second one sees that the first one is acknowledged
            await self.committer.commit(of_all=amount == 1)

    async def hold(self, _partition: TopicPartition, _amount: int) -> None:
        self.committer.hold()

    async def rejoin(self, _partition: TopicPartition, _amount: int) -> None:
        self.committer.rejoined()

    async def fence(self, _partition: TopicPartition, _amount: int) -> None:
        self.consumer.fenced = not self.consumer.fenced

    async def silence(self, _partition: TopicPartition, _amount: int) -> None:
        self.consumer.is_silent = not self.consumer.is_silent


STEPS = [
    *("read", "settle", "announce", "withdraw", "close", "end", "assign", "lose"),
    *("commit", "hold", "rejoin", "fence", "silence"),
]


async def commit_after(taken: Sequence[tuple[str, int, int]]) -> None:
    """Take steps; then a commit of what moved must leave nothing to commit."""
    steps = Steps()
    for step in taken:
        await steps.take(*step)
    steps.consumer.fenced = steps.consumer.is_silent = False
    steps.committer.rejoined()
    assert await steps.committer.commit(of_all=False)
    sent = len(steps.consumer.commits)
    assert await steps.committer.commit()
    assert steps.consumer.commits[sent:] == []


@example([("assign", 0, 1)])
@example([("read", 0, 4), ("commit", 0, 1), ("close", 0, 3)])
@example([("read", 0, 6), ("close", 0, 6), ("commit", 0, 1), ("end", 0, 1)])
@example([("read", 0, 4), ("announce", 0, 2), ("commit", 0, 1), ("withdraw", 0, 1)])
@example([("assign", 0, 2), ("commit", 0, 1), ("read", 0, 1)])
@example([("read", 0, 4), ("commit", 0, 1), ("fence", 0, 1), ("settle", 0, 1), ("commit", 0, 2)])
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(1, 6)), max_size=25)
)
def test_a_commit_forgets_no_partition_of_which_something_moved(
    steps: list[tuple[str, int, int]],
) -> None:
    anyio.run(commit_after, steps)


class LostAnswers:
    """Transactions that commit, and whose answers are lost."""

    in_use = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End."""

    async def commit(self, *_offsets: object) -> None:
        raise ConsumerError("no answer")


class Forgetful(MemoryConsumer):
    """Says which offsets are committed from the third time on."""

    asked = 0

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        self.asked += 1
        if self.asked < 3:
            raise ConsumerError("no answer")
        return dict.fromkeys(partitions, at(5))


async def test_what_a_transaction_without_an_answer_has_committed_is_asked_for_until_it_is_known(
    clock: VirtualClock,
) -> None:
    consumer, ledgers = Forgetful(), Ledgers()
    committer = TransactionalCommitter(
        consumer,
        ledgers,
        LostAnswers(),  # type: ignore[arg-type]
        interval=1.0,
        metrics=Metrics(),
    )
    committer.begin(P0, at(0))
    ledger = ledgers.open(P0, 0)
    ledgers.take_in(batch_of("t", 0, 0, [b"x"] * 5))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run)
        await clock.advance(1.0)  # all partitions are looked at
        assert not await committer.commit_transaction([Range("t", 0, 0, 4, ledger.generation)])
        for _ in range(3):
            await clock.advance(1.0)
        tasks.cancel_scope.cancel()
    assert (committer.committed(P0), ledger.watermark) == (5, 5)


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
    kept = [read_metadata(P0, (await consumer.committed([P0]))[P0]).generation]
    settle(ledgers, 0, 6)
    assert await committer.commit()
    assert await consumer.committed([P0]) == {P0: CommitOffset(7, Generation(7).metadata)}
    assert kept == [7]
    committer.forget(P0)
    assert committer.generations == {}
