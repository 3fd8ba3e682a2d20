"""Whether the process of a worker still works, for its supervisor: asked by HTTP until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
import anyio

if TYPE_CHECKING:
    from .process import WorkerProcess

__all__ = ["NotLive", "wait_until_hung"]

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


async def wait_until_hung(
    process: WorkerProcess, session: aiohttp.ClientSession, timeout: float
) -> str:
    """Return when the worker has not been live for `timeout` seconds: the reason, as a part of a message.

    A worker that does not serve HTTP yet (it imports) is not asked.
    """
    await process.serving.wait()
    interval = min(_LONGEST_INTERVAL, timeout / 4)
    not_live = NotLive(timeout)
    while True:
        problem = await _problem(process, session, interval)
        reason = not_live.note(problem, anyio.current_time())
        if reason is not None:
            return reason
        await anyio.sleep(interval)


async def _problem(
    process: WorkerProcess, session: aiohttp.ClientSession, timeout: float
) -> str | None:
    limit = aiohttp.ClientTimeout(total=timeout)
    try:
        async with session.get(f"{process.url}/live", timeout=limit) as response:
            return None if response.ok else (await response.text()).strip()
    except TimeoutError:
        return "/live does not answer"
    except aiohttp.ClientError as error:
        return f"/live does not answer ({type(error).__name__})"
