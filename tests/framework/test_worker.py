"""A worker with a consumer in memory: from the topic to the sink, shutdowns, stalls; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.errors import DeadlineExceeded
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


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
