"""Backpressure: the budget, the gates, and the pause of a partition whose map is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.intake.backpressure import Budget, Gate, MapInboxes
from kmr.mapping.functions import map_record
from kmr.record import Batch, Record
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of

from ..workers import P0, P1, locate, put, running, until_mapped, written

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


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
        worker.pipeline.intake.budget.limit = 25_000
        await consumer.rebalance([P0])
        await journal.until(lambda j: sum(t.num_rows for t in j.written) >= 80)
        assert worker.status().inflight_bytes < 25_000 + 12_000
        await until_mapped(worker, 100)
    assert written(journal, 0) == list(range(100))


@map_record
def expand(record: Record) -> list[dict[str, Any]]:
    return [{"p": record.partition, "o": record.offset, "x": "x" * 100}] * 50


async def test_the_rows_of_a_map_that_makes_fifty_of_a_record_count(clock: VirtualClock) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    for number in range(200):
        put(consumer, number % 2, number // 2 * 20, *([b"x" * 100] * 20))
    strategy = Strategy(expand, [MemoryWriter(journal, max_rows=5_000, max_age=None)])
    limit = 1024 * 1024
    async with running(strategy, consumer, inflight_bytes=limit) as worker:
        await consumer.rebalance([P0, P1])
        for _ in range(20):
            await clock.settle()
        status = worker.status()
        held = sum(stage.bytes for stage in status.stages)
        rows = 20 * 50 * 120
        assert limit / 2 < held <= status.inflight_bytes < limit + 2 * rows
        assert journal.hold is not None
        journal.hold.set()
        await journal.until(lambda j: j.count >= 190_000)
        await until_mapped(worker, 4_000)
    assert journal.count == 200_000


async def test_maps_wait_for_room_only_while_rows_are_in_flight(clock: VirtualClock) -> None:
    budget, begun, part = Budget(100), 0, batch_of("t", 0, 0, [b"x"])

    async def begin() -> None:
        nonlocal begun
        await budget.wait_to_map(part)
        with budget.mapping(part):
            begun += 1
            await finish.wait()

    finish = anyio.Event()
    budget.add(150, 150)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin)
        tasks.start_soon(begin)
        await clock.settle()
        assert begun == 1, "one may begin: only its rows can make room"
        budget.add(30, -70)
        finish.set()
        await clock.settle()
        assert begun == 1, "rows are in flight: their flush makes room"
        budget.add(-100)
        await clock.settle()
        assert begun == 2


@map_record
def expand_much(record: Record) -> list[dict[str, Any]]:
    return [{"p": record.partition, "o": record.offset, "x": "x" * 1_000}] * 40


@pytest.mark.parametrize("partitions", [1, 16])
async def test_a_map_that_makes_far_more_than_its_records_goes_on_and_stays_near_the_budget(
    clock: VirtualClock, partitions: int
) -> None:
    """Its first batch alone becomes many times the budget: its parts leave one by one."""
    journal, consumer = Journal(), MemoryConsumer()
    for partition in range(partitions):
        put(consumer, partition, 0, *([b"x" * 30] * (3_200 // partitions)))
    strategy = Strategy(expand_much, [MemoryWriter(journal, max_rows=20_000, max_age=5.0)])
    limit, most = 2 * 1024 * 1024, 0
    async with running(strategy, consumer, inflight_bytes=limit) as worker:
        await consumer.rebalance([P0._replace(partition=n) for n in range(partitions)])
        while journal.count < 128_000:
            await clock.advance(1.0)
            most = max(most, worker.status().inflight_bytes)
            assert clock.now < 500, "it stands still"
        await until_mapped(worker, 3_200)
    assert journal.count == 128_000
    assert most < limit * 1.5


def test_a_first_part_is_small_and_the_next_ones_are_so_large_that_their_rows_fit() -> None:
    budget = Budget(4_000_000)
    batch = Batch("t", 0, 0, 9_999, nbytes=1_000_000, load=lambda: pytest.fail("decoded"))
    assert budget.records_of_a_part(batch) == 1, "a byte may become ten thousand"
    budget.learn("t", 1_000, 5_000)
    assert budget.records_of_a_part(batch) == 1
    for _ in range(100):
        budget.learn("t", 1_000, 10_000)
    assert budget.records_of_a_part(batch) == 1_000
    assert budget.records_of_a_part(batch.slice(0, 0)) == 1_000
    budget.learn("t", 1_000, 0)
    assert budget.records_of_a_part(batch) < 1_500, "the largest growth is remembered for a while"


async def test_a_map_that_waits_for_room_has_the_collected_rows_flushed(
    clock: VirtualClock,
) -> None:
    asked: list[int] = []
    budget, part = Budget(1_000, lambda: asked.append(1)), batch_of("t", 0, 0, [b"x" * 100])
    budget.learn("t", 100, 1_000)
    budget.add(500)
    assert not budget.exhausted
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(budget.wait_to_map, part)
        await clock.settle()
        assert (len(asked), budget.exhausted) == (1, True)
        budget.add(-500)
    assert not budget.exhausted


def test_intake_leaves_room_for_the_rows_that_recent_maps_made() -> None:
    budget = Budget(10_000_000)
    for _ in range(50):
        budget.learn("t", 100_000, 900_000)
    assert budget.room == pytest.approx(1_000_000, rel=0.02)
    budget.add(500_000, 500_000)
    assert budget.room == pytest.approx(500_000, rel=0.02)
    budget.add(600_000, 600_000)
    assert budget.exhausted


def test_an_exhausted_budget_asks_for_flushes_each_time_that_it_becomes_so() -> None:
    asked: list[int] = []
    budget = Budget(100, lambda: asked.append(budget.used))
    for change in (99, 1, 1, -50, 49, -100):
        budget.add(change)
    assert asked == [100, 100]


async def test_a_budget_wakes_its_waiter_when_bytes_are_given_back(clock: VirtualClock) -> None:
    budget = Budget(100)
    budget.add(250)
    assert budget.exhausted
    room = anyio.Event()

    async def wait() -> None:
        await budget.wait()
        room.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        budget.add(-100)
        await clock.settle()
        assert not room.is_set(), "150 of 100 bytes are still in flight"
        budget.add(-60)
        await clock.settle()
        assert room.is_set()


async def test_a_gate_lets_work_finish_and_none_begin(clock: VirtualClock) -> None:
    gate, finish, passed = Gate(), anyio.Event(), []

    async def work(name: str) -> None:
        async with gate:
            passed.append(name)
            await finish.wait()

    gate.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, "begun")
        await clock.settle()
        gate.close()
        tasks.start_soon(work, "waiting")
        await clock.settle()
        assert passed == ["begun"]
        finish.set()
        await gate.wait_quiet()
        assert passed == ["begun"]
        gate.open()
    assert passed == ["begun", "waiting"]


async def test_pauses_are_repeated_after_a_rebalance(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    inboxes = MapInboxes(consumer, queue_batches=1)
    with inboxes.open(P0) as inbox:
        inboxes.put(batch_of("t", 0, 0, [b"a"]))
        assert inboxes.is_paused(P0)
        consumer._paused.clear()
        inboxes.pause_again()
        assert consumer._paused == {P0}
        inbox.receive_nowait()
        inboxes.taken(P0)
        assert consumer._paused == set()
        inboxes.close_all()
        assert P0 not in inboxes


async def test_a_batch_for_a_map_that_has_failed_is_dropped() -> None:
    inboxes = MapInboxes(MemoryConsumer(), queue_batches=1)
    inboxes.open(P0).close()  # as a map does that fails, before intake is cancelled
    inboxes.put(batch_of("t", 0, 0, [b"a"]))
    assert not inboxes.is_paused(P0)
    inboxes.close_all()
