"""A worker with a consumer in memory: from the topic to the sink, shutdowns, stalls; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from kmr.errors import DeadlineExceeded, RecordFailed, SinkError
from kmr.mapping.functions import map_record
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from kmr.record import Batch, Record
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
                tasks.start_soon(clock.advance, 20.0)  # the rest is for leaving the group


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


class PollsAgain(MemoryConsumer):
    """Polls a second time when `again` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.again = anyio.Event()
        self.polls = 0

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        self.polls += 1
        if self.polls > 1:
            await self.again.wait()
        return await super().poll(max_bytes)


async def test_the_error_of_a_map_wins_over_the_one_of_the_intake_that_finds_it_gone(
    clock: VirtualClock,
) -> None:
    consumer = PollsAgain()

    @map_record
    def fail(_: Record) -> None:
        consumer.again.set()  # the intake wakes before anything learns that this map has failed
        raise ValueError("poisoned")

    put(consumer, 0, 0, b"a")
    put(consumer, 0, 1, b"b")
    with pytest.RaisesGroup(pytest.RaisesExc(RecordFailed, match="poisoned")):
        async with running(Strategy(fail, [MemoryWriter(Journal())]), consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


class SlowToClose(MemoryWriter):
    """Its `close` takes a moment, in which others find that it is gone."""

    async def close(self) -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()


async def test_the_error_of_a_reducer_wins_over_the_one_of_a_map_that_finds_it_gone(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    journal.outcomes.append(SinkError("the sink is full"))
    for first in range(12):
        put(consumer, 0, first, b"a")
    sink = SlowToClose(journal, max_rows=1, on_error="stop")
    with pytest.RaisesGroup(pytest.RaisesExc(SinkError, match="the sink is full")):
        async with running(Strategy(locate, [sink], delivery="at-most-once"), consumer):
            await consumer.rebalance([P0])
            await clock.settle()  # now the map waits for room in the reducer's inbox
            assert journal.hold is not None
            journal.hold.set()
            await anyio.sleep_forever()


class FailsToClose(MemoryWriter):
    async def close(self) -> None:
        raise RuntimeError("cannot close")


async def test_the_first_error_wins_over_those_of_closing(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"poison")
    with pytest.RaisesGroup(pytest.RaisesExc(RecordFailed, match="poisoned")):
        async with running(Strategy(locate, [FailsToClose(Journal())]), consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()
