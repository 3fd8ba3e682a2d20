"""The log of a worker's progress; of whole workers, and with given statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from kmr.observe.progress import CatchUp, ProgressLog, RecentRate
from kmr.observe.status import PartitionStatus, StageStatus, WorkerState, WorkerStatus
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of
from kmr.worker import Worker

from ..workers import P0, locate, put, running

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


def status(*partitions: tuple[int, int], state: WorkerState = "running") -> WorkerStatus:
    """The status of a worker that has read and settled up to the first of each pair, of the second."""
    return WorkerStatus(
        state=state,
        live=True,
        ready=True,
        problem=None,
        group="g",
        topics=("t",),
        stages=(),
        partitions=tuple(
            PartitionStatus("t", number, read, read, read, 0, end, False)  # noqa: FBT003
            for number, (read, end) in enumerate(partitions)
        ),
        inflight_bytes=0,
        inflight_limit=1,
        consumed=0,
        settled=sum(read for read, _ in partitions),
        uptime=0.0,
    )


def logged(*notes: tuple[float, WorkerStatus]) -> list[dict[str, Any]]:
    progress = ProgressLog(30.0, 60.0, 0.0)
    with capture_logs() as logs:
        for now, each in notes:
            progress.note(each, now)
    return [{key: log[key] for key in log if key != "log_level"} for log in logs]


def test_a_worker_has_caught_up_when_each_partition_was_at_its_end_once() -> None:
    notes = (
        (1.0, status((0, 5), (5, 5))),
        (2.0, status((5, 5), (5, 9))),
        (3.0, status((5, 6), (5, 9))),
    )
    assert logged(*notes) == [{"event": "caught up", "seconds": 2.0}]


def test_progress_is_logged_once_a_minute_while_behind() -> None:
    notes = [(float(second), status((second * 10, 1_500), (7, 7))) for second in range(1, 151)]
    assert [(log["event"], log.get("lag"), log.get("seconds_left")) for log in logged(*notes)] == [
        ("behind", 900, 89),
        ("behind", 300, 30),
        ("caught up", None, None),
    ]


def test_a_worker_that_is_behind_on_one_busy_processor_names_the_setting_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kmr.observe.progress.processor_limit", lambda: 4)

    def told(busy: float, *ends: int, workers: int = 1) -> list[Any]:
        now = 0.0
        progress = ProgressLog(30.0, 60.0, now, workers, lambda: now * busy)
        with capture_logs() as logs:
            for second in range(1, 200):
                now = float(second)
                progress.note(status(*((second, end) for end in ends)), now)
        return [
            (log["used"], log["processors"], log["workers"])
            for log in logs
            if "--workers auto" in log["event"]
        ]

    assert told(0.97, 500, 500) == [(1.0, 4, 1)]
    assert told(0.97, 500, 500, workers=2) == [(1.0, 4, 2)]
    assert told(0.97, 500, 500, workers=4) == []
    assert told(0.7, 500, 500) == []  # something else holds it up
    assert told(0.97, 500) == []  # nothing to divide


def test_a_worker_that_keeps_up_says_so_once() -> None:
    notes = [(float(second), status((second, second))) for second in range(1, 200)]
    assert [log["event"] for log in logged(*notes)] == ["caught up"]


def test_a_worker_that_stands_still_is_behind_without_a_forecast() -> None:
    notes = [(float(second), status((0, 5))) for second in range(1, 61)]
    (log,) = logged(*notes)
    assert (log["event"], log["settled_per_second"], log["seconds_left"]) == ("behind", 0, None)


@pytest.mark.parametrize("state", ["starting", "suspended"])
def test_a_worker_that_waits_for_its_group_says_for_how_long_at_most(state: WorkerState) -> None:
    waiting = [(float(second), status(state=state)) for second in range(1, 30)]
    (log,) = logged(*waiting)
    assert log["event"].startswith("waiting for the group: a member has not joined again")
    assert (log["died_at_most_seconds"], log["busy_at_most_seconds"]) == (30.0, 60.0)
    assert logged((1.0, status(state=state)), (3.5, status(state=state)), (4.5, status())) == []


async def test_a_worker_logs_its_start_its_waiting_and_that_it_has_caught_up(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    with capture_logs() as logs:
        strategy = Strategy(locate, [MemoryWriter(Journal())])
        async with running(strategy, consumer, queue_batches=7):
            for _ in range(5):
                await clock.advance(1.0)
            await consumer.rebalance([P0])
            for _ in range(5):
                await clock.advance(1.0)
    start = logs[0]
    assert (start["event"], start["group"], start["topics"]) == ("starting", "g", ("t",))
    assert start["settings"] == {"executor": "inline", "queue_batches": 7}
    told = [log["event"].partition(":")[0] for log in logs]
    expected = ["starting", "waiting for the group", "assigned", "caught up", "draining"]
    assert [event for event in told if event in expected] == expected
    *_, drained, summary = logs
    assert drained["event"] == "drained and stopped"
    assert (drained["settled"], drained["failed"]) == (2, 0)
    assert summary["event"] == "records: 2 read, 0 filtered, 0 failed; rows: 2 written"


def test_a_worker_that_runs_until_it_has_caught_up_waits_for_its_maps() -> None:
    catch_up = CatchUp()
    assert not catch_up.is_reached(status((0, 5)))
    mapping = StageStatus("map t-0", "mapping", 0)
    assert not catch_up.is_reached(replace(status((5, 5)), stages=(mapping,)))
    waiting = StageStatus("map t-0", "idle", 1)
    assert not catch_up.is_reached(replace(status((5, 5)), stages=(waiting,)))
    assert not catch_up.is_reached(status((5, 5), state="suspended"))
    assert catch_up.is_reached(replace(status((5, 5)), stages=(StageStatus("map t-0", "idle", 0),)))


def test_records_that_follow_do_not_keep_a_worker_from_having_caught_up() -> None:
    catch_up = CatchUp()
    assert not catch_up.is_reached(status((0, 5)))
    assert catch_up.is_reached(status((5, 100)))
    assert not CatchUp().is_reached(status((5, 100)))


async def test_a_worker_until_caught_up_drains_and_ends(clock: VirtualClock) -> None:
    consumer, journal = MemoryConsumer(), Journal()
    consumer.put(batch_of("t", 0, 0, [b"v"] * 10))
    strategy = Strategy(locate, [MemoryWriter(journal, max_age=None)])
    settings = Settings(topics=("t",), group="g", executor="inline", until_caught_up=True)
    worker = Worker(strategy, settings, consumer=consumer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        await consumer.assign([P0])
        await clock.advance(10)
    assert journal.count == 10
    assert consumer.commits[-1] == {P0: 10}


def test_the_time_that_is_left_is_the_rest_at_the_rate_of_the_last_minute() -> None:
    pace = RecentRate()

    def left(done: int, now: float) -> float:
        pace.note(done, now)
        return pace.seconds_left(100 - done)

    assert left(0, 0.0) == float("inf")
    assert left(10, 10.0) == 90
    assert left(40, 70.0) == 120  # 30 in the minute that began at 10
    assert left(40, 140.0) == float("inf")
    assert left(100, 141.0) == 0
