"""The intake: batches that it drops, records that are read twice, ranges that are gone; time is virtual."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.errors import OffsetOutOfRange
from kmr.intake.intake import LONGEST, Intake, Linger
from kmr.observe.metrics import Metrics
from kmr.record import Batch, TopicPartition
from kmr.testing import MemoryConsumer, VirtualTimeLoop, batch_of

from ..workers import P0

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream

    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class Scripted(MemoryConsumer):
    """Returns, or raises, the next item that a test puts, at any position."""

    def __init__(self, *polls: Batch | Exception) -> None:
        super().__init__()
        self.polls = list(polls)
        self.sought: list[int] = []
        self.gathers: list[float] = []
        self.end: int | None = None

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        if not self.polls:
            await anyio.sleep_forever()
        match self.polls.pop(0):
            case Exception() as error:
                raise error
            case batch:
                return [batch]

    def seek(self, partition: object, offset: int) -> None:
        self.sought.append(offset)

    def let_gather(self, seconds: float) -> None:
        self.gathers.append(seconds)

    def end_offset(self, partition: TopicPartition) -> int | None:
        return self.end


@contextmanager
def intake_of(
    consumer: Scripted,
) -> Iterator[tuple[Intake, MemoryObjectReceiveStream[Batch]]]:
    """An open intake with one partition, and that partition's inbox."""
    intake = Intake(
        consumer,
        inflight_bytes=1_000_000,
        queue_batches=10,
        metrics=Metrics(),
        make_room=lambda: None,
    )
    with intake.inboxes.open(P0) as inbox:
        intake.ledgers.open(P0, 0)
        intake.resume()
        yield intake, inbox
        intake.inboxes.close_all()


async def run_until_idle(intake: Intake, clock: VirtualClock) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.run)
        await clock.settle()
        tasks.cancel_scope.cancel()


async def test_a_batch_enters_the_ledger_the_budget_and_the_inbox(clock: VirtualClock) -> None:
    batch = batch_of("t", 0, 0, [b"a", b"b"])
    with intake_of(Scripted(batch)) as (intake, inbox):
        await run_until_idle(intake, clock)
        assert inbox.receive_nowait() is batch
        assert (intake.consumed, intake.settled, intake.budget.used) == (2, 0, batch.nbytes)
        intake.ledgers.drop(P0)
        assert intake.budget.used == 0


async def test_records_that_are_read_twice_are_dropped_and_reading_continues_after_them(
    clock: VirtualClock,
) -> None:
    consumer = Scripted(batch_of("t", 0, 0, [b"a"] * 3), batch_of("t", 0, 2, [b"a"] * 3))
    with intake_of(consumer) as (intake, inbox):
        await run_until_idle(intake, clock)
        assert consumer.sought == [3]
        assert intake.consumed == 3
        assert inbox.statistics().current_buffer_used == 1


async def test_nothing_is_taken_in_during_a_rebalance_or_of_a_partition_that_is_gone(
    clock: VirtualClock,
) -> None:
    gone = batch_of("t", 1, 0, [b"a"])
    with intake_of(Scripted(gone)) as (intake, _):
        await run_until_idle(intake, clock)
        assert intake.consumed == 0
    with intake_of(Scripted(batch_of("t", 0, 0, [b"a"]))) as (intake, inbox):
        intake.is_open = False
        await run_until_idle(intake, clock)
        assert intake.consumed == 0
        assert inbox.statistics().current_buffer_used == 0


async def test_an_announced_range_that_is_gone_is_named_in_the_error(clock: VirtualClock) -> None:
    with intake_of(Scripted(OffsetOutOfRange("t-0: offset 5 is gone", P0))) as (intake, _):
        intake.ledgers.open(P0, 5, replayed_to=9)
        with pytest.raises(OffsetOutOfRange, match=r"offset 5 is gone\. The range t-0\[5\.\.9\]"):
            await intake.run()


async def test_the_time_that_intake_stands_still_is_counted_while_it_does_and_once(
    clock: VirtualClock,
) -> None:
    metrics = Metrics()
    intake = Intake(
        Scripted(), inflight_bytes=10, queue_batches=1, metrics=metrics, make_room=lambda: None
    )

    def counted() -> float | None:
        labels = {"stage": "intake", "reason": "inflight_bytes"}
        return metrics.registry.get_sample_value("kmr_backpressure_seconds_total", labels)

    intake.budget.add(11)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.run)
        await clock.advance(60)
        intake.count_waiting()
        assert counted() == 60
        await clock.advance(30)
        intake.budget.add(-11)
        await clock.settle()
        assert counted() == 90
        await clock.advance(30)
        intake.count_waiting()
        assert counted() == 90
        tasks.cancel_scope.cancel()


class Loop:
    """An event loop whose thread works for so many seconds for a batch, and waits for the fetches between."""

    def __init__(self, per_batch: float) -> None:
        self.per_batch, self.now, self.worked = per_batch, 0.0, 0.0
        self.linger = Linger(lambda: self.worked, lambda: self.now)

    def poll(self, *batches: Batch, partitions: int = 512, every: float = 0.0) -> float:
        """Return the wait after the tenth of some polls alike, at least so many seconds apart."""
        for _ in range(10):
            work = self.per_batch * len(batches)
            self.worked += work
            self.now += max(every, work, self.linger.seconds)
            self.linger.after(batches, partitions)
        return self.linger.seconds


LITTLE = batch_of("t", 0, 0, [b"x"])
LARGE = Batch("t", 0, 0, 9, nbytes=1 << 20, load=lambda: LITTLE.records)


def test_a_worker_that_is_idle_takes_a_record_at_once() -> None:
    assert Loop(0.001).poll(LITTLE, every=0.02) == 0.0
    assert Loop(0.1).poll(LITTLE, every=1.0) == 0.0


def test_the_work_between_two_fetches_is_a_limited_part_of_the_time() -> None:
    loop = Loop(0.0001)
    assert loop.poll(*[LITTLE] * 500) == pytest.approx(0.05 / 0.15)
    before, worked = loop.now, loop.worked
    loop.poll(*[LITTLE] * 500)
    assert (loop.worked - worked) / (loop.now - before) == pytest.approx(0.15)


def test_the_answers_of_several_brokers_count_together() -> None:
    loop = Loop(0.001)
    for _ in range(3):
        loop.worked += 0.01
        loop.linger.after([LITTLE] * 10, 100)
    assert loop.linger.seconds == pytest.approx(0.2)


def test_records_never_gather_for_longer_than_that() -> None:
    loop = Loop(0.01)
    assert loop.poll(*[LITTLE] * 500) == LONGEST
    loop.per_batch = 0.0
    loop.now += LONGEST
    assert loop.linger.after([LITTLE], 512) == 0.0


def test_a_sink_whose_rows_are_written_soon_does_not_wait_for_long() -> None:
    loop = Loop(0.01)
    loop.linger = Linger(lambda: loop.worked, lambda: loop.now, longest=0.01)
    assert loop.poll(*[LITTLE] * 500) == pytest.approx(0.01)


def test_few_partitions_and_a_backlog_do_not_wait() -> None:
    assert Loop(0.1).poll(LITTLE, partitions=31) == 0.0
    assert Loop(0.1).poll(LARGE) == 0.0
    loop = Loop(0.1)
    loop.worked += 1.0
    assert loop.linger.after([LITTLE], 512, behind=True) == 0.0


async def test_the_consumer_gathers_unless_a_partition_has_more(clock: VirtualClock) -> None:
    for end, waits in ((1, True), (5, False)):
        consumer = Scripted(LITTLE)
        consumer.end = end
        with intake_of(consumer) as (intake, _), ExitStack() as stack:
            for number in range(1, 40):
                stack.enter_context(intake.inboxes.open(TopicPartition("t", number)))
            intake._linger = Linger(iter((0.0, 1.0)).__next__, anyio.current_time)
            intake._linger.seconds = 0.3
            await run_until_idle(intake, clock)
            intake.inboxes.close_all()
        assert consumer.gathers == ([LONGEST] if waits else [])
        assert LITTLE.gathered == 0.3, "the wait before the fetch that brought it"
