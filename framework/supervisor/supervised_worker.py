"""One of several workers, through all the processes that it has one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ..observe.failures import FailureLog, latest
from ..observe.status import WorkerStatus, WorkerSummary

if TYPE_CHECKING:
    from ..observe.failures import FailureSummary
    from .messages import MetricFamily
    from .process import WorkerProcess
    from .restarts import Restarts

_ASK_TIMEOUT: Final = 2.0  # seconds
_COUNTS: Final = ("consumed", "settled", "failed", "repeated")


class SupervisedWorker:
    """Its process, the processes before it, and its latest status.

    Attributes:
        process: the one that is, or will be, a member of the group; None while there is none.
        successor: one that is prepared to take over.
        problem: why there is no process, or why the worker is not what it should be.
        status: the latest one; None if the process has not answered yet, or did not answer at last.
    """

    def __init__(self, index: int, restarts: Restarts) -> None:
        self.index = index
        self.restarts = restarts
        self.process: WorkerProcess | None = None
        self.successor: WorkerProcess | None = None
        self.problem = ""
        self.status: WorkerStatus | None = None
        self._silent = False
        # Counts of the processes before, so that those of the worker never go back.
        self._before = dict.fromkeys(_COUNTS, 0)
        self._failures = FailureLog()
        self._failures_before: tuple[FailureSummary, ...] = ()
        self._latest: WorkerStatus | None = None

    def begin(self, process: WorkerProcess) -> None:
        """Note the process that the worker has from now on."""
        self.process, self.problem, self._silent = process, "", False

    def end(self) -> None:
        """Note that the process has ended."""
        if self._latest is not None:
            self._before = self._counts()
            self._failures_before = latest((*self._latest.failures, *self._failures_before))
        self.process = self.status = self._latest = None

    def note_end(self, reason: str) -> None:
        """Note why a process ended by itself."""
        self._failures.note("worker ended", "", reason)

    @property
    def failed(self) -> int:
        """How many records failed."""
        return self._counts()["failed"]

    @property
    def repeated(self) -> int:
        """How many attempts to flush, and commits, were repeated."""
        return self._counts()["repeated"]

    def failures(self) -> tuple[FailureSummary, ...]:
        """Return the latest failures, also those of the processes before, and their ends."""
        now = () if self._latest is None else self._latest.failures
        return tuple(
            msgspec.structs.replace(each, worker=self.index)
            for each in latest((*now, *self._failures_before, *self._failures.newest_first()))
        )

    def _counts(self) -> dict[str, int]:
        now = self._latest
        return {
            name: before + (0 if now is None else getattr(now, name))
            for name, before in self._before.items()
        }

    async def ask(self, *, metrics: bool = False) -> tuple[MetricFamily, ...] | None:
        """Ask the process for its status; it has two seconds. Return its metrics; None without an answer."""
        process = self.process
        if process is None or not process.reports.is_set():
            self.status = None
            return None
        report = await process.ask(_ASK_TIMEOUT, metrics=metrics)
        if process is self.process:
            self._silent = report is None
            self.status = None if report is None else report.status
            self._latest = self.status or self._latest
        return None if report is None else report.metrics

    def summary(self) -> WorkerSummary:
        """Return the state at the latest `ask`."""
        process, status = self.process, self.status
        counts = self._counts()
        problem: str | None = self.problem
        if process is not None and self._silent:
            problem = f"process {process.pid} does not answer"
        elif status is not None:
            problem = status.problem
        return WorkerSummary(
            index=self.index,
            pid=None if process is None else process.pid,
            state="starting" if self._latest is None else self._latest.state,
            live=status.live if status is not None else not self._silent,
            ready=status is not None and status.ready,
            problem=problem or None,
            restarts=self.restarts.total,
            partitions=0 if status is None else len(status.partitions),
            consumed=counts["consumed"],
            settled=counts["settled"],
            inflight_bytes=0 if status is None else status.inflight_bytes,
            uptime=0.0 if status is None else status.uptime,
        )
