"""Reusable buffers under one limit in bytes.

A fresh allocation of megabytes costs more CPU than all other work on it, because the kernel clears each page.
"""

from __future__ import annotations

from asyncio import CancelledError, Future, Handle, get_running_loop
from collections import deque
from typing import Final

_SMALLEST: Final = 4 * 1024  # bytes
_MAX_IDLE: Final = 64 * 1024 * 1024  # bytes


class BufferPool:
    """Lends writable buffers, whose sizes are powers of two, within one event loop."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes that may be lent at the same time."""
        self.limit = limit
        self.used = 0
        """Bytes that are lent."""
        self._idle: dict[int, list[memoryview]] = {}
        self.idle = 0
        """Bytes that are kept for reuse."""
        self._waiting: deque[tuple[int, int, Future[memoryview]]] = deque()
        self._next_turn: Handle | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a buffer."""
        return bool(self._waiting)

    def take(self, size: int) -> memoryview | None:
        """Lend a buffer of at least `size` bytes with arbitrary content; None if the limit is reached.

        A buffer that is larger than the limit is lent while no other one is in use.
        """
        rounded = _rounded(size)
        if self._waiting or not self._fits(rounded):
            return None
        return self._lend(rounded)

    def take_beyond_limit(self, size: int) -> memoryview:
        """Lend a buffer at once, even over the limit, against which it counts."""
        return self._lend(_rounded(size))

    def when_available(self, size: int, *, held: int = 0) -> Future[memoryview]:
        """Return a future buffer, in the order of the calls; cancel it, or `put` its result back.

        `held`: bytes that the caller puts back once it has the buffer. They do not count as in use: callers
        that wait for each other's memory are served one after the other, beyond the limit.
        """
        future: Future[memoryview] = get_running_loop().create_future()
        self._waiting.append((_rounded(size), held, future))
        future.add_done_callback(self._left)
        self._serve_waiting()
        return future

    async def wait(self, size: int) -> memoryview:
        """Wait for a buffer of at least `size` bytes."""
        future = self.when_available(size)
        try:
            return await future
        except CancelledError:
            if future.done() and not future.cancelled():
                self.put(future.result())
            raise

    def put(self, buffer: memoryview) -> None:
        """Take back a buffer, which must not be used any more."""
        size = len(buffer)
        self.used -= size
        if self.idle + size <= _MAX_IDLE:
            self._idle.setdefault(size, []).append(buffer)
            self.idle += size
        self._serve_waiting()

    def _left(self, future: Future[memoryview]) -> None:
        if future.cancelled():
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Serve the first who waits, and the next in another turn of the loop: each reads megabytes then."""
        if self._next_turn is not None:
            return
        while self._waiting:
            size, _, future = self._waiting[0]
            waits = not future.done()
            if waits:
                if not self._fits(size):
                    return
                future.set_result(self._lend(size))
            self._waiting.popleft()
            if waits and self._waiting:
                self._next_turn = get_running_loop().call_soon(self._serve_next)
                return

    def _serve_next(self) -> None:
        self._next_turn = None
        self._serve_waiting()

    def _fits(self, size: int) -> bool:
        if self.used + size <= self.limit or not self.used:
            return True
        return self.used <= sum(held for _, held, future in self._waiting if not future.done())

    def _lend(self, size: int) -> memoryview:
        self.used += size
        idle = self._idle.get(size)
        if idle:
            self.idle -= size
            return idle.pop()
        return memoryview(bytearray(size))


def _rounded(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length())
