"""The event handler: assignments, revocations and shutdowns of a whole worker; time is virtual."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.delivery.announcement import Announcement
from kmr.errors import ConsumerError, OffsetOutOfRange
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition
from kmr.reducers.sink import Capabilities
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.testing import VirtualClock
    from kmr.worker import Worker


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_an_empty_assignment_is_no_error(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    async with running(Strategy(locate, [MemoryWriter(Journal())]), consumer) as worker:
        await consumer.rebalance([])
        await consumer.rebalance([])
        assert worker.status().ready


async def test_a_partition_that_stays_ours_goes_on_without_reading_anything_twice(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer):
        await consumer.rebalance([P0])
        await clock.settle()
        await consumer.rebalance([P0])
        put(consumer, 0, 2, b"c")
        await clock.advance(4.0)
        assert written(journal, 0) == [0, 1, 2]


async def test_the_metrics_tell_how_long_a_rebalance_kept_partitions_waiting(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    async with running(Strategy(locate, [MemoryWriter(Journal())]), consumer) as worker:
        await consumer.rebalance([P0])
        value = worker.metrics.registry.get_sample_value
        assert value("kmr_rebalance_seconds_count") == 0
        await consumer.revoke()
        await clock.advance(3.0)
        await consumer.assign([P0])
        assert value("kmr_rebalance_seconds_count") == 1
        assert value("kmr_rebalance_seconds_sum") == 3


async def test_the_counters_of_a_topic_begin_at_0_when_its_first_partition_is_assigned(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    async with running(Strategy(locate, [MemoryWriter(Journal())]), consumer) as worker:
        await consumer.rebalance([TopicPartition("later", 0)])
        value = worker.metrics.registry.get_sample_value
        assert value("kmr_settled_records_total", {"topic": "later"}) == 0


async def test_a_partition_that_was_lost_is_not_written_any_more(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    put(consumer, 1, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer) as worker:
        await consumer.rebalance([P0, P1])
        await clock.settle()
        await consumer.rebalance([P1])
        await clock.advance(4.0)
        await clock.advance(1.0)
        assert written(journal, 0) == []
        assert written(journal, 1) == [0, 1]
        assert committed(consumer) == {P0: 0, P1: 2}
        assert worker.status().inflight_bytes == 0


async def test_a_partition_that_another_member_moved_on_starts_at_its_commit(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    for first in (0, 2, 4):
        put(consumer, 0, first, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=100)]), consumer):
        await consumer.rebalance([P0])
        await clock.settle()
        await consumer.revoke()
        consumer.commit_elsewhere(P0, 4)
        await consumer.assign([P0])
        await clock.advance(4.0)
        assert written(journal, 0) == [4, 5]


async def test_a_broker_that_has_lost_a_committed_offset_is_refused(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=2)]), consumer):
        await consumer.rebalance([P0])
        await clock.advance(1.0)
        assert committed(consumer) == {P0: 2}
        consumer.forget_committed()
        with pytest.raises(ConsumerError, match=r"t-0: the broker has lost committed offset 2"):
            await consumer.rebalance([P0])
    assert written(journal, 0) == [0, 1]


async def test_a_lost_offset_is_noticed_when_the_partition_returns_later(
    clock: VirtualClock,
) -> None:
    """As when a topic is deleted and created again: in between no member has its partitions."""
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=2)]), consumer):
        await consumer.rebalance([P0])
        await clock.advance(1.0)
        await consumer.rebalance([])
        consumer.forget_committed()
        with pytest.raises(ConsumerError, match=r"t-0: the broker has lost committed offset 2"):
            await consumer.rebalance([P0])


async def test_a_rebalance_waits_for_the_write_under_way_and_commits_it(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    revoked = anyio.Event()

    async def revoke() -> None:
        await consumer.revoke()
        revoked.set()

    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=2)]), consumer):
        await consumer.rebalance([P0])
        await journal.until(lambda j: j.attempts == 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(revoke)
            await clock.advance(10.0)
            assert not revoked.is_set()
            assert journal.hold is not None
            journal.hold.set()
            await revoked.wait()
        assert committed(consumer) == {P0: 2}
        await consumer.assign([])


async def test_a_write_that_hangs_delays_a_rebalance_only_until_its_deadline(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(
        Strategy(locate, [MemoryWriter(journal, max_rows=2)]), consumer, revoke_deadline=20.0
    ):
        await consumer.rebalance([P0])
        await journal.until(lambda j: j.attempts == 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.rebalance, [])
            await clock.advance(20.0)
        assert committed(consumer) == {P0: 0}
        assert journal.hold is not None
        journal.hold.set()


async def test_a_rebalance_waits_for_no_age_when_offsets_above_the_collected_rows_are_settled(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"a", b"skip")
    held_back = MemoryWriter(journal, max_rows=2, max_age=600.0, when_full="backpressure")
    async with running(Strategy(locate, [held_back]), consumer, revoke_deadline=20.0):
        await consumer.rebalance([P0])
        put(consumer, 0, 3, b"skip")
        await clock.settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.rebalance, [])
            await clock.settle()
            assert written(journal, 0) == [0, 1]
        assert committed(consumer) == {P0: 4}


async def test_nothing_is_written_between_revocation_and_assignment(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer) as worker:
        await consumer.rebalance([P0])
        await clock.settle()
        await consumer.revoke()
        await clock.advance(100.0)
        assert journal.attempts == 0
        assert worker.status().state == "suspended"
        await consumer.assign([P0])
        await clock.settle()
        assert written(journal, 0) == [0, 1]


async def test_a_shutdown_during_a_rebalance_writes_nothing_more(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer):
        await consumer.rebalance([P0])
        await clock.settle()
        await consumer.revoke()
    assert journal.attempts == 0
    assert committed(consumer) == {P0: 0}


@asynccontextmanager
async def draining(
    consumer: MemoryConsumer, journal: Journal, clock: VirtualClock
) -> AsyncIterator[Worker]:
    """A worker that drains, whose first flush (of a single record) hangs until the end of the block."""
    journal.hold = anyio.Event()
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=1)])
    async with running(
        strategy, consumer, revoke_deadline=20.0, shutdown_deadline=1_000.0
    ) as worker:
        await consumer.rebalance([P0, P1])
        await journal.until(lambda j: j.attempts == 1)
        worker.shutdown("test")
        await clock.settle()
        yield worker
        journal.hold.set()
        for _ in range(20):
            await clock.advance(1.0)
        assert worker.status().state == "stopped"


async def revoke(consumer: MemoryConsumer, clock: VirtualClock) -> None:
    """Revoke; the flush under way hangs for longer than this waits."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.revoke)
        await clock.advance(20.0)


async def test_a_drain_goes_on_after_a_rebalance_with_the_partitions_that_are_still_ours(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 1, 0, *[b"a"] * 20)
    put(consumer, 0, 0, *[b"a"] * 20)
    async with draining(consumer, journal, clock) as worker:
        await revoke(consumer, clock)
        await consumer.assign([P1])
        assert worker.status().state == "draining"
    assert written(journal, 0) in ([], [0]), "the flush under way may be of either partition"
    assert written(journal, 1) == list(range(20))
    assert committed(consumer) == {P0: 0, P1: 20}


async def test_a_drain_does_not_commit_a_partition_that_left_and_returned(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, *[b"a"] * 20)
    async with draining(consumer, journal, clock):
        await revoke(consumer, clock)
        await consumer.assign([])
        consumer.commit_elsewhere(P0, 7)
        await revoke(consumer, clock)
        await consumer.assign([P0])
    assert written(journal, 0) == [0]
    assert (await consumer.committed([P0]))[P0] == CommitOffset(7)


async def test_a_drain_commits_nothing_between_a_revocation_and_the_assignment(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, *[b"a"] * 20)
    async with draining(consumer, journal, clock):
        await revoke(consumer, clock)
        consumer.commit_elsewhere(P0, 7)
        assert journal.hold is not None
        journal.hold.set()
        await clock.advance(5.0)
        assert (await consumer.committed([P0]))[P0] == CommitOffset(7)
        await consumer.assign([P0])
    assert written(journal, 0) == [0]
    assert (await consumer.committed([P0]))[P0] == CommitOffset(7)


class Announced(MemoryWriter):
    """Claims exactly once by ranges."""

    capabilities = Capabilities(delivery="exactly-once")


def announce(consumer: MemoryConsumer, first: int, last: int) -> None:
    """Announce a range as a worker that died before it acknowledged it."""
    range_ = Announcement(first, last, f"g:t:0:{first}-{last}", "dead")
    consumer._committed[P0] = CommitOffset(first, range_.metadata)


async def test_a_log_that_ends_before_an_announced_range_begins_has_one_way_to_go_on() -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    announce(consumer, 4, 9)
    message = r"range 4\.\.9.*; or begin new tokens: kmr .* --to-offset 2$"
    async with running(Strategy(locate, [Announced(Journal())]), consumer):
        with pytest.raises(OffsetOutOfRange, match=message):
            await consumer.rebalance([P0])


@pytest.mark.parametrize("last", [3, 5])
async def test_a_log_that_ends_before_an_announced_range_ends_the_worker(
    clock: VirtualClock, last: int
) -> None:
    """New records would get the offsets of the lost ones, and the token of the range would drop them."""
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b", b"c")
    announce(consumer, 1, last)
    range_ = rf"t-0: the log ends at offset 3, inside .*1\.\.{last}"
    message = rf"{range_}.*reset --topic t --partition 0 --to-offset 3 if.*--to-offset 1"
    async with running(Strategy(locate, [Announced(journal)]), consumer):
        with pytest.raises(OffsetOutOfRange, match=message):
            await consumer.rebalance([P0])
        put(consumer, 0, 3, b"new", b"new", b"new")
        await clock.advance(10.0)
    assert journal.written == []


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_records_that_are_skipped_inside_an_announced_range_wait_for_no_new_record(
    clock: VirtualClock, delivery: Any
) -> None:
    """As with on_out_of_range="latest", when retention has removed the end of the range."""
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b", b"c", b"d", b"e", b"f")
    announce(consumer, 0, 5)
    log = consumer.log[P0]
    consumer.log[P0] = [log[0].slice(0, 2)]
    ends = {P0: 6}

    async def log_ends(_: object) -> dict[TopicPartition, int]:
        return ends

    consumer.log_ends = log_ends  # type: ignore[method-assign,assignment]
    strategy = Strategy(locate, [Announced(journal)], delivery=delivery)
    async with running(strategy, consumer) as worker:
        await consumer.rebalance([P0])
        await clock.settle()
        worker._skip(P0, 9)
        for _ in range(10):
            await clock.advance(1.0)
        assert written(journal, 0) == [0, 1, 2]
        assert committed(consumer) == {P0: 9}
        assert worker.status().partitions[0].position == 9
