"""Blocking clients beside the event loop that the broker under test may run in."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio

from .base import Member

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Self

    from .base import Journal

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """One thread for one client, none of which may be used by two threads at once."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1)
        self._close: Callable[[], object] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Not in the event loop: the thread may wait for the broker, which may run in that loop.
        with anyio.CancelScope(shield=True):
            if self._close is not None:
                await self.call(self._close)
            await asyncio.to_thread(self._executor.shutdown)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def at_end(self, close: Callable[[], object]) -> None:
        """Call this, too, in the thread, when it is no longer needed."""
        self._close = close


@asynccontextmanager
async def member_in_thread(
    journal: Journal, run: Callable[[Member, threading.Event], None]
) -> AsyncIterator[Member]:
    """A member whose whole life is `run`, which ends when the event is set."""
    member, stop = Member(journal), threading.Event()
    async with Worker() as worker:
        running = asyncio.create_task(worker.call(run, member, stop))
        member.lives_in(running)
        try:
            yield member
        finally:
            stop.set()
            with anyio.CancelScope(shield=True):
                await running
            member.left()
