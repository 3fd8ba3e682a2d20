"""A whole worker on a consumer in memory: rebalances, failures, shutdowns; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from framework.errors import ConsumerError, DeadlineExceeded
from framework.strategy import Strategy
from framework.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from framework.consumer import CommitOffset
    from framework.record import TopicPartition
    from framework.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_records_travel_from_the_topic_to_the_sink_and_are_committed(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"skip", b"c")
    put(consumer, 1, 7, b"d")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer) as worker:
        await consumer.rebalance([P0, P1])
        await clock.advance(4.0)
        await clock.advance(1.0)
        assert written(journal, 0) == [0, 2]
        assert written(journal, 1) == [7]
        assert committed(consumer) == {P0: 3, P1: 8}
        status = worker.status()
        assert (status.state, status.consumed, status.settled) == ("running", 4, 4)
        assert status.inflight_bytes == 0
    assert worker.status().state == "stopped"


async def test_a_shutdown_flushes_commits_and_leaves(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer):
        await consumer.rebalance([P0])
        await clock.settle()
        assert journal.written == []
    assert written(journal, 0) == [0, 1]
    assert committed(consumer) == {P0: 2}


async def test_a_shutdown_right_after_the_start_is_clean(clock: VirtualClock) -> None:
    async with running(Strategy(locate, [MemoryWriter(Journal())]), MemoryConsumer()) as worker:
        pass
    assert worker.status().state == "stopped"


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


async def test_a_broker_that_has_forgotten_what_was_committed_is_refused(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=2)]), consumer):
        await consumer.rebalance([P0])
        await clock.advance(1.0)
        assert committed(consumer) == {P0: 2}
        consumer.forget_committed()
        with pytest.raises(ConsumerError, match=r"t-0: offset 2 was committed, .* knows nothing"):
            await consumer.rebalance([P0])
    assert written(journal, 0) == [0, 1]


async def test_a_start_is_committed_before_anything_is_read(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    async with running(Strategy(locate, [MemoryWriter(Journal())]), consumer):
        await consumer.rebalance([P0, P1])
        assert committed(consumer) == {P0: 0, P1: 0}


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


async def test_a_drain_that_takes_too_long_names_what_is_left(clock: VirtualClock) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")

    expected = pytest.RaisesExc(DeadlineExceeded, match=r"t-0\[0\.\.1\].*reduce-1")
    async with anyio.create_task_group() as tasks:
        with pytest.RaisesGroup(expected):
            async with running(Strategy(locate, [MemoryWriter(journal, max_rows=2)]), consumer):
                await consumer.rebalance([P0])
                await journal.until(lambda j: j.attempts == 1)
                tasks.start_soon(clock.advance, 25.0)


async def test_a_full_queue_pauses_its_partition_and_only_that(clock: VirtualClock) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    for first in range(30):
        put(consumer, 0, first, b"a")
    async with running(
        Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer, queue_batches=2
    ) as worker:
        await consumer.rebalance([P0, P1])
        await clock.settle()
        await clock.settle()
        paused = {p.partition: p.paused for p in worker.status().partitions}
        assert paused == {0: True, 1: False}
        assert worker.status().consumed < 12
        assert journal.hold is not None
        journal.hold.set()
        await journal.until(lambda j: len(j.written) == 30)
    assert written(journal, 0) == list(range(30))


async def test_the_budget_holds_intake_and_never_sticks_without_an_age(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    for first in range(0, 100, 10):
        put(consumer, 0, first, *([b"x" * 1_000] * 10))
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=1_000_000, max_age=None)])
    async with running(strategy, consumer, inflight_bytes=2 * 1024 * 1024) as worker:
        worker._pipeline.intake.budget.limit = 25_000
        await consumer.rebalance([P0])
        await journal.until(lambda j: sum(t.num_rows for t in j.written) >= 80)
        assert worker.status().inflight_bytes < 25_000 + 12_000
    assert written(journal, 0) == list(range(100))


async def test_a_batch_larger_than_the_whole_budget_passes_alone(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, *([b"x" * 1_000] * 10))
    put(consumer, 0, 10, b"y")
    strategy = Strategy(locate, [MemoryWriter(journal, max_age=None)])
    async with running(strategy, consumer) as worker:
        worker._pipeline.intake.budget.limit = 100
        await consumer.rebalance([P0])
        await journal.until(lambda j: sum(t.num_rows for t in j.written) == 10)
    assert written(journal, 0) == list(range(11))


async def test_rows_that_a_reducer_mixed_with_a_lost_partition_are_read_again(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    put(consumer, 1, 0, b"a", b"b")
    batcher = Journal()
    strategy = Strategy(
        locate,
        [MemoryWriter(batcher, max_rows=4, forward=True), MemoryWriter(journal, max_rows=100)],
    )
    async with running(strategy, consumer):
        await consumer.rebalance([P0, P1])
        await batcher.until(lambda j: len(j.written) == 1)
        await clock.settle()
        await consumer.rebalance([P1])
        await clock.advance(4.0)
        await clock.advance(4.0)
        await clock.advance(4.0)
    assert written(journal, 0) == []
    assert written(journal, 1) == [0, 1]
    assert committed(consumer) == {P0: 0, P1: 2}


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


class SlowToTell(MemoryConsumer):
    """Takes its time to say what is committed, while `told` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.told = anyio.Event()
        self.told.set()

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        await self.told.wait()
        return await super().committed(partitions)


async def test_a_new_generation_never_gets_the_watermarks_of_the_last_one(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), SlowToTell()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer):
        consumer.fenced = True  # thrown out, and not aware of it yet
        await consumer.rebalance([P0])
        await journal.until(lambda j: len(j.written) == 2)
        await consumer.revoke()
        consumer.commit_elsewhere(P0, 7)  # another member, which goes on meanwhile
        consumer.fenced = False  # a member again: its commits count
        consumer.told = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.assign, [P0])
            await clock.advance(5.0)
            assert consumer.commits == []
            consumer.told.set()
        await clock.advance(5.0)
    assert consumer.commits == []


async def test_a_stage_without_progress_makes_the_worker_not_live(clock: VirtualClock) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a")
    async with running(
        Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer, stall_timeout=300.0
    ) as worker:
        await consumer.rebalance([P0])
        await clock.advance(299.0)
        assert worker.status().live
        await clock.advance(2.0)
        status = worker.status()
        assert not status.live
        assert status.problem is not None
        assert "no progress for 301 s" in status.problem
        assert journal.hold is not None
        journal.hold.set()
