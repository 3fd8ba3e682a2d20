"""What is known of one worker while its processes come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import msgspec

from kmr.observe.failures import FailureSummary
from kmr.supervisor.messages import Report
from kmr.supervisor.supervised_worker import NotLive, Restarts, SupervisedWorker
from tests.framework.cli.watched_worker import STUCK

if TYPE_CHECKING:
    from kmr.observe.status import WorkerStatus
    from kmr.supervisor.process import WorkerProcess


class Process:
    """Of a process only what its worker looks at; it answers with a status, or not at all."""

    def __init__(self, pid: int, status: WorkerStatus | None) -> None:
        self.pid = pid
        self.status = status
        self.reports = anyio.Event()

    async def ask(self, _timeout: float, *, metrics: bool) -> Report | None:
        return None if self.status is None else Report(0, self.status)


def begin(worker: SupervisedWorker, pid: int, status: WorkerStatus | None = STUCK) -> Process:
    process = Process(pid, status)
    process.reports.set()
    worker.begin(cast("WorkerProcess", process))
    return process


async def test_counts_of_a_worker_never_go_back() -> None:
    worker = SupervisedWorker(0, Restarts(5, 300))
    begin(worker, 7)
    await worker.ask()
    assert worker.summary().settled == 50
    worker.end()
    assert worker.summary().settled == 50
    begin(worker, 8, msgspec.structs.replace(STUCK, settled=3))
    await worker.ask()
    assert (worker.summary().settled, worker.summary().pid) == (53, 8)


async def test_failures_outlive_the_process_and_its_end_is_one_of_them() -> None:
    worker = SupervisedWorker(3, Restarts(5, 300))
    failures = (FailureSummary(5.0, "record failed", "map", "no number", 2),)
    begin(worker, 7, msgspec.structs.replace(STUCK, failed=2, failures=failures))
    await worker.ask()
    worker.end()
    worker.note_end("killed by SIGKILL")
    failures = (FailureSummary(6.0, "record failed", "map", "no date"),)
    begin(worker, 8, msgspec.structs.replace(STUCK, failed=1, failures=failures))
    await worker.ask()
    assert worker.failed == 3
    found = [(each.kind, each.reason, each.count, each.worker) for each in worker.failures()]
    assert found == [
        ("worker ended", "killed by SIGKILL", 1, 3),
        ("record failed", "no date", 1, 3),
        ("record failed", "no number", 2, 3),
    ]


async def test_a_process_that_begins_is_live_and_not_ready() -> None:
    worker = SupervisedWorker(0, Restarts(5, 300))
    worker.begin(cast("WorkerProcess", Process(7, STUCK)))
    await worker.ask()
    summary = worker.summary()
    assert (summary.live, summary.ready, summary.state) == (True, False, "starting")


async def test_a_process_that_does_not_answer_is_not_live() -> None:
    worker = SupervisedWorker(0, Restarts(5, 300))
    begin(worker, 7, None)
    await worker.ask()
    summary = worker.summary()
    assert (summary.live, summary.problem) == (False, "process 7 does not answer")


async def test_a_worker_without_a_process_says_why_and_is_live() -> None:
    worker = SupervisedWorker(0, Restarts(5, 300))
    worker.problem = "killed; restarts in 2 s"
    summary = worker.summary()
    assert (summary.live, summary.ready) == (True, False)
    assert (summary.pid, summary.problem) == (None, "killed; restarts in 2 s")


def test_each_restart_within_the_period_doubles_the_delay_up_to_half_a_minute() -> None:
    restarts = Restarts(9, 300)
    delays = [restarts.delay(float(now), "") for now in range(10)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, None]
    assert restarts.total == 9


def test_an_end_long_ago_counts_no_more_and_is_not_the_first_reason() -> None:
    restarts = Restarts(1, 300)
    assert restarts.delay(0.0, "old") == 0.5
    assert restarts.delay(300.0, "first") == 0.5
    assert restarts.delay(599.0, "second") is None
    assert restarts.first_reason == "first"


def test_without_restarts_the_first_end_is_the_last() -> None:
    assert Restarts(0, 300).delay(0.0, "") is None


def test_a_worker_hangs_when_it_was_not_live_for_the_whole_timeout() -> None:
    not_live = NotLive(60)
    assert not_live.note("map hangs", 100) is None
    assert not_live.note("map hangs", 159.9) is None
    reason = not_live.note("it does not answer", 160)
    assert reason == "not live for 60 s (worker_live_timeout): it does not answer"


def test_a_worker_that_is_live_in_between_has_the_whole_timeout_again() -> None:
    not_live = NotLive(60)
    assert not_live.note("map hangs", 100) is None
    assert not_live.note(None, 159) is None
    assert not_live.note("map hangs", 161) is None
    assert not_live.note("map hangs", 220) is None
    assert not_live.note("map hangs", 221) is not None
