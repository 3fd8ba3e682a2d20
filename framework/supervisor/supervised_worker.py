"""One of several workers, through all the processes that it has one after the other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from ..observe.failures import FailureLog, latest
from ..observe.status import WorkerStatus, WorkerSummary

if TYPE_CHECKING:
    from ..observe.failures import FailureSummary
    from .messages import MetricFamily
    from .process import WorkerProcess


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


_FIRST_DELAY: Final = 0.5  # seconds
_LONGEST_DELAY: Final = 30.0  # seconds


class Restarts:
    """The restarts of one worker: each of them within `period` doubles the delay, `most` are allowed.

    Args:
        most: restarts within `period`.
        period: seconds.
    """

    def __init__(self, most: int, period: float) -> None:
        self.most = most
        self.period = period
        self.total = 0
        self._recent: deque[tuple[float, str]] = deque()

    def delay(self, now: float, reason: str) -> float | None:
        """Note that the worker ended; return the seconds until its restart, None if there is none.

        Args:
            now: seconds, of any clock that is always the same.
            reason: why it ended.
        """
        while self._recent and now - self._recent[0][0] >= self.period:
            self._recent.popleft()
        self._recent.append((now, reason))
        restarts = len(self._recent)
        if restarts > self.most:
            return None
        self.total += 1
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (restarts - 1))

    @property
    def first_reason(self) -> str:
        """Why it ended for the first time within the period: later errors may follow from that one."""
        return self._recent[0][1]


_LONGEST_INTERVAL: Final = 5.0  # seconds


class NotLive:
    """How long a worker has not been live without a break; `timeout`: seconds that it may not be live."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None

    def note(self, problem: str | None, now: float) -> str | None:
        """Note an answer; return why the worker hangs, None as long as it may recover.

        Args:
            problem: why it is not live; None if it is.
            now: seconds, of any clock that is always the same.
        """
        if problem is None:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        if now - self._since < self._timeout:
            return None
        return f"not live for {now - self._since:.0f} s (worker_live_timeout): {problem}"


async def wait_until_hung(process: WorkerProcess, timeout: float) -> str:
    """Return when the worker has not been live for `timeout` seconds: the reason, as a part of a message.

    A worker that does not report yet (it imports) is not asked.
    """
    await process.reports.wait()
    interval = min(_LONGEST_INTERVAL, timeout / 4)
    not_live = NotLive(timeout)
    while True:
        reason = not_live.note(await _problem(process, interval), anyio.current_time())
        if reason is not None:
            return reason
        await anyio.sleep(interval)


async def _problem(process: WorkerProcess, timeout: float) -> str | None:
    report = await process.ask(timeout)
    if report is None:
        return "it does not answer"
    return None if report.status.live else report.status.problem or "no progress"
