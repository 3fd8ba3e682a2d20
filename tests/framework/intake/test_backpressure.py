"""Backpressure: the budget, the gates, and the pause of a partition whose map is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.intake.backpressure import Budget, Gate, MapInboxes
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of

from ..workers import P0, P1, locate, put, running, written

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
        worker._pipeline.intake.budget.limit = 25_000
        await consumer.rebalance([P0])
        await journal.until(lambda j: sum(t.num_rows for t in j.written) >= 80)
        assert worker.status().inflight_bytes < 25_000 + 12_000
    assert written(journal, 0) == list(range(100))


async def test_a_budget_wakes_its_waiter_when_bytes_are_given_back(clock: VirtualClock) -> None:
    budget = Budget(100)
    budget.take(250)
    assert budget.exhausted
    room = anyio.Event()

    async def wait() -> None:
        await budget.wait()
        room.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        budget.give(100)
        await clock.settle()
        assert not room.is_set(), "150 of 100 bytes are still in flight"
        budget.give(60)
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
