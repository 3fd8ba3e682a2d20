"""Lanes that have one turn to flush: their ranges are announced in one commit and written at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from ..service.identity import new_id
from .reducer import Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from .buffer import Buffer

T = TypeVar("T")
R = TypeVar("R")

MOST_ROWS: Final = 500_000  # of a joined turn; a sink writes more than a million in several blocks
MOST_BYTES: Final = 64 * 1024 * 1024
_PATIENCE: Final = 1.0  # seconds for which lanes that share a turn wait for each other
_JOINABLE: Final = 0.02  # seconds in which lanes come that end or make room at the same time


class JoinedTurn:
    """A turn of several lanes, whose flushes are announced in one commit and written at once.

    They meet twice: before they announce, and in the sink, where one of them writes for all. Nothing depends
    on who comes: one that misses the first meeting can `follow`, and one that misses the second writes its
    rows alone, under the token of the turn first.

    Args:
        buffers: of the lanes that have the turn.
        joinable: seconds for which others may `join`.

    Attributes:
        token: of the write that they share; no other write has it.
    """

    def __init__(self, buffers: Iterable[Buffer], joinable: float = 0.0) -> None:
        self._joinable = joinable > 0
        if joinable:
            asyncio.get_running_loop().call_later(joinable, self._close)
        self.token = new_id()
        self._expected = set(buffers)
        self._following: JoinedTurn | None = None
        self._present: set[Buffer] = set()
        self._gathered = anyio.Event()
        self._patience: asyncio.TimerHandle | None = None
        self._items: list[Any] = []
        self._results: Sequence[Any] = ()
        self._error: Exception | None = None
        self._complete = anyio.Event()
        self._written = anyio.Event()

    def join(self, buffer: Buffer) -> bool:
        """Wait for one more lane; return False if it is too late for that, or there is no room for it."""
        lanes = (*self._expected, buffer)
        has_room = (
            sum(each.rows for each in lanes) <= MOST_ROWS
            and sum(each.bytes for each in lanes) <= MOST_BYTES
        )
        if self._joinable and has_room:
            self._expected.add(buffer)
            return True
        return False

    def follow(self, buffer: Buffer) -> JoinedTurn:
        """Return the next turn of the lanes for which this one has not waited."""
        self._following = joined(self._following, buffer)
        return self._following

    def _close(self) -> None:
        self._joinable = False
        self._look()

    def leave(self, buffer: Buffer) -> None:
        """Wait no longer for a lane: it has written its rows, or cannot now."""
        self._expected.discard(buffer)
        self._look()

    def _look(self) -> None:
        if not self._gathered.is_set():
            if self._expected <= self._present and not self._joinable:
                # Later, so that the last one goes on with the others.
                asyncio.get_running_loop().call_soon(self._gathered.set)
        elif len(self._items) >= len(self._expected):
            self._complete.set()

    async def gather(self, buffer: Buffer) -> bool:
        """Wait for the other lanes; return whether they have waited for this one."""
        if not self._gathered.is_set():
            if self._patience is None:
                loop = asyncio.get_running_loop()
                self._patience = loop.call_later(_PATIENCE, self._begin)
            self._present.add(buffer)
            self._look()
            await self._gathered.wait()
        return buffer in self._present

    def _begin(self) -> None:
        """Wait no longer for the lanes that have not come."""
        if not self._gathered.is_set():
            self._expected &= self._present
            self._gathered.set()

    async def write(
        self, item: T, write: Callable[[Sequence[T]], Awaitable[Sequence[R]]]
    ) -> R | None:
        """Wait for the other lanes, and let the first one write the items of all.

        Returns:
            What `write` returned for the item; None if the others have not waited for it.

        Raises:
            Retry: the lane that wrote was stopped.
            Exception: what `write` raises.
        """
        if self._complete.is_set():
            if self._items:  # it may take the token that they share only after them
                await self._written.wait()
            return None
        number = len(self._items)
        self._items.append(item)
        self._look()
        if number:
            await self._written.wait()
            if self._error is not None:
                raise self._error
        else:
            with anyio.move_on_after(_PATIENCE):
                await self._complete.wait()
            self._complete.set()
            self._error = Retry(
                "the lane that writes for others was stopped", after=0.0, may_double=False
            )
            try:
                self._results = await write(self._items)
                self._error = None
            except Exception as error:
                self._error = error
                raise
            finally:
                self._written.set()
        result: R = self._results[number]
        return result


def joined(turn: JoinedTurn | None, buffer: Buffer) -> JoinedTurn:
    """Return the turn that a lane has joined, or one that others can join."""
    return turn if turn is not None and turn.join(buffer) else JoinedTurn([buffer], _JOINABLE)
