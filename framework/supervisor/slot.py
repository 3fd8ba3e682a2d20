"""The place of one of several workers, whichever process has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from ..observe.status import WorkerStatus, WorkerSummary

if TYPE_CHECKING:
    from .process import WorkerProcess
    from .restarts import Restarts

__all__ = ["Slot"]

_ASK_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)  # seconds


class Slot:
    """One worker: its process, the processes before it, and its latest status.

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
        self._consumed = 0
        self._settled = 0
        self._latest: WorkerStatus | None = None

    def begin(self, process: WorkerProcess) -> None:
        """Note that a process has the place from now on."""
        self.process, self.problem, self._silent = process, "", False

    def end(self) -> None:
        """Note that the process has ended."""
        if self._latest is not None:
            self._consumed += self._latest.consumed
            self._settled += self._latest.settled
        self.process = self.status = self._latest = None

    async def ask(self, session: aiohttp.ClientSession) -> None:
        """Ask the process for its status; it has two seconds."""
        process = self.process
        body = await self.get(session, "/status")
        if process is self.process:
            self.status = None if body is None else msgspec.json.decode(body, type=WorkerStatus)
            self._latest = self.status or self._latest

    async def get(self, session: aiohttp.ClientSession, path: str) -> bytes | None:
        """Return what the process answers; None if it does not, or does not serve yet."""
        process = self.process
        if process is None or not process.serving.is_set():
            return None
        try:
            async with session.get(f"{process.url}{path}", timeout=_ASK_TIMEOUT) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError):
            self._silent = True
            return None
        self._silent = False
        return body

    def summary(self) -> WorkerSummary:
        """Return the state of the worker at the latest `ask`."""
        process, status, latest = self.process, self.status, self._latest
        problem: str | None = self.problem
        if process is not None and self._silent:
            problem = f"process {process.pid} does not answer"
        elif status is not None:
            problem = status.problem
        return WorkerSummary(
            index=self.index,
            pid=None if process is None else process.pid,
            state="starting" if latest is None else latest.state,
            live=status.live if status is not None else not self._silent,
            ready=status is not None and status.ready,
            problem=problem or None,
            restarts=self.restarts.total,
            partitions=0 if status is None else len(status.partitions),
            consumed=self._consumed + (0 if latest is None else latest.consumed),
            settled=self._settled + (0 if latest is None else latest.settled),
            inflight_bytes=0 if status is None else status.inflight_bytes,
            uptime=0.0 if status is None else status.uptime,
        )
