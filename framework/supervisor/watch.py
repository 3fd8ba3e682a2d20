"""Whether the process of a worker still works, for its supervisor: asked until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from .process import WorkerProcess

_LONGEST_INTERVAL: Final = 5.0  # seconds


class NotLive:
    """How long a worker has not been live without a break.

    Args:
        timeout: seconds that it may not be live.
    """

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
