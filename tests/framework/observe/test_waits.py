"""What stages wait for: in the status, in the log after ten seconds, in /live if nothing can end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from structlog.testing import capture_logs

from kmr.observe.liveness import Liveness
from kmr.observe.status import StageStatus
from kmr.observe.waits import ROOM, WaitLog
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop

from ..workers import P0, P1, locate, put, running

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_maps_and_intake_say_that_they_wait_for_room_and_the_log_says_it_once(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    for first in range(0, 400, 10):
        put(consumer, 0, first, *([b"x" * 100] * 10))
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=10)])
    with capture_logs() as logs:
        async with running(strategy, consumer, inflight_bytes=1024 * 1024) as worker:
            worker.pipeline.intake.budget.limit = 5_000
            await consumer.rebalance([P0])
            for _ in range(30):
                await clock.advance(1.0)
            (waiting,) = [s for s in worker.status().stages if s.name == "map t-0"]
            assert waiting.why in (f"waits for {ROOM}", "waits for reduce-1, whose queue is full")
            assert waiting.waited > 20
            assert journal.hold is not None
            journal.hold.set()
            while journal.count < 400:
                await clock.advance(1.0)
            assert not any(stage.waits_for for stage in worker.status().stages)
    told = [log for log in logs if log["event"] == "waiting"]
    assert sorted(log["stage"] for log in told) == ["intake", "map t-0"]
    assert all(10 <= log["seconds"] < 13 for log in told)


async def test_a_stage_says_that_a_rebalance_or_failed_records_hold_it_back(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=1)])
    async with running(strategy, consumer) as worker:
        await consumer.rebalance([P0, P1])
        await clock.settle()
        worker.pipeline.stop_flushing()
        put(consumer, 0, 0, b"a")
        while not worker.status().stages[-1].rows:
            await clock.advance(0.1)
        await clock.advance(12.0)
        assert worker.status().stages[-1].why == "waits for the end of a rebalance"
        worker.pipeline.resume()
        await journal.until(lambda j: j.count == 1)


def stage(name: str = "map t-0", **changes: Any) -> StageStatus:
    return StageStatus(name, "waiting", 0, **changes)


def test_a_map_that_waits_for_room_is_not_live_when_nothing_is_left_to_flush() -> None:
    liveness, waiting = Liveness(60.0), stage(waits_for=ROOM, waited=61.0)
    problem = liveness.problem([waiting, stage("reduce-1")], 0.0)
    assert problem == f"map t-0: waits for {ROOM} for 61 s, and no rows are left to flush"
    assert liveness.problem([waiting, stage("reduce-1", rows=1)], 0.0) is None
    assert liveness.problem([waiting, stage("map t-1", working=1.0)], 0.0) is None
    assert liveness.problem([stage(waits_for=ROOM, waited=59.0)], 0.0) is None


def test_a_wait_is_logged_again_only_after_it_has_ended() -> None:
    log, waiting = WaitLog(), stage(waits_for=ROOM, waited=10.0)
    with capture_logs() as logs:
        for stages in ([waiting], [waiting], [stage()], [stage(waits_for=ROOM, waited=9.0)]):
            log.note(stages)
        log.note([waiting])
    assert len(logs) == 2
