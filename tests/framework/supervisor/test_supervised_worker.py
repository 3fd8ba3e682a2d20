"""What is known of one worker while its processes come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import msgspec

from kmr.observe.failures import FailureSummary
from kmr.supervisor.messages import Report
from kmr.supervisor.restarts import Restarts
from kmr.supervisor.supervised_worker import SupervisedWorker
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
