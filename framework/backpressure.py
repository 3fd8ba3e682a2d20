"""What holds work back: the budget of bytes in flight, and the gates before maps and flushes.

Both wake their waiters by events; nothing here polls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import anyio

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Budget", "Gate"]


class Budget:
    """Bytes of records that were taken in and are not settled yet.

    Taking is never refused, so that a batch larger than the whole budget can pass when nothing else is
    in flight; `wait` holds the next intake back until there is room.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._room = anyio.Event()

    @property
    def exhausted(self) -> bool:
        """Whether intake has to stand still."""
        return self.used >= self.limit

    def take(self, nbytes: int) -> None:
        """Count bytes in."""
        self.used += nbytes

    def give(self, nbytes: int) -> None:
        """Count bytes out, and wake whoever waits for room."""
        self.used -= nbytes
        if not self.exhausted:
            self._room.set()
            self._room = anyio.Event()

    async def wait(self) -> None:
        """Return when there is room."""
        while self.exhausted:
            await self._room.wait()


class Gate:
    """Work passes through it; while it is closed, none begins.

    During a rebalance the gate before every flush is closed: a write that began then could race the
    partition's next owner. `async with gate:` waits until it is open and counts the passage until it
    ends.
    """

    def __init__(self) -> None:
        self._passing = 0
        self._opened = anyio.Event()
        self._quiet = anyio.Event()
        self._quiet.set()
        self.is_open = False

    def open(self) -> None:
        """Let work begin."""
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        """Let none begin; what has begun goes on."""
        if self.is_open:
            self.is_open = False
            self._opened = anyio.Event()

    async def wait_quiet(self) -> None:
        """Return when nothing is under way."""
        await self._quiet.wait()

    async def __aenter__(self) -> Self:
        while not self.is_open:
            await self._opened.wait()
        if self._passing == 0:
            self._quiet = anyio.Event()
        self._passing += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._passing -= 1
        if self._passing == 0:
            self._quiet.set()
