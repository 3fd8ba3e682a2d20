"""Buffers that are used again, under one limit in bytes.

Fresh allocations of megabytes cost more CPU than everything else that is done with them (the kernel
clears each page), and a limit is what keeps the broker's memory bounded whatever clients do.
"""

from __future__ import annotations

from asyncio import CancelledError, Future, get_running_loop
from collections import deque

__all__ = ["BufferPool"]

_SMALLEST = 4 * 1024
_MAX_IDLE = 64 * 1024 * 1024


class BufferPool:
    """Hands out writable buffers whose sizes are powers of two; for one event loop."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes that may be handed out at the same time."""
        self.limit = limit
        self._used = 0
        self._idle: dict[int, list[memoryview]] = {}
        self._idle_bytes = 0
        self._waiting: deque[tuple[int, Future[memoryview]]] = deque()

    @property
    def used(self) -> int:
        """Bytes that are handed out."""
        return self._used

    @property
    def idle(self) -> int:
        """Bytes that are kept to be used again."""
        return self._idle_bytes

    def take(self, size: int) -> memoryview | None:
        """A buffer of at least `size` bytes, with arbitrary content; None when the limit is reached.

        One that is larger than the whole limit is given when nothing else is handed out.
        """
        rounded = _rounded(size)
        if self._waiting or not self._fits(rounded):
            return None
        return self._hand_out(rounded)

    def take_beyond_limit(self, size: int) -> memoryview:
        """Like `take`, for what cannot wait; it counts, so that others do."""
        return self._hand_out(_rounded(size))

    def when_available(self, size: int) -> Future[memoryview]:
        """A future buffer, in the order of the calls. Cancel it, or hand its result back by `put`."""
        future: Future[memoryview] = get_running_loop().create_future()
        self._waiting.append((_rounded(size), future))
        self._serve_waiting()
        return future

    async def wait(self, size: int) -> memoryview:
        """Like `take`, but waits for its turn."""
        future = self.when_available(size)
        try:
            return await future
        except CancelledError:
            if future.done() and not future.cancelled():
                self.put(future.result())
            raise

    def put(self, buffer: memoryview) -> None:
        """Take back a buffer; nobody may use it any more."""
        size = len(buffer)
        self._used -= size
        if self._idle_bytes + size <= _MAX_IDLE:
            self._idle.setdefault(size, []).append(buffer)
            self._idle_bytes += size
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if not future.done():
                if not self._fits(size):
                    return
                future.set_result(self._hand_out(size))
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return self._used + size <= self.limit or not self._used

    def _hand_out(self, size: int) -> memoryview:
        self._used += size
        idle = self._idle.get(size)
        if idle:
            self._idle_bytes -= size
            return idle.pop()
        return memoryview(bytearray(size))


def _rounded(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length())
