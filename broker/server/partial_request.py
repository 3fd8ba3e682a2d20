"""A request of which only the beginning has arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from .buffers import RequestBuffers

STILL_SECONDS: Final = 5.0
"""How long a request or an unread response may stand still while others need its memory."""

_SMALL_BYTES: Final = 4 * 1024
_GROWTH: Final = 4
"""How many times as large as the bytes that have arrived a buffer may be."""
_BEGUN_BYTES: Final = 16 * 1024
_USUAL_BYTES: Final = 1024 * 1024
"""Once `_BEGUN_BYTES` have arrived, a buffer may have this size: usual requests are not copied twice."""
_BYTES_PER_SECOND: Final = 1024 * 1024
"""A client must be at least so fast after `request_timeout`."""


class PartialRequest:
    """Collects one request in a buffer that grows with what arrives: a claimed size takes no memory.

    Calls: `room`, then `received` once some of it is filled, until that returns True. The buffer belongs to
    the caller then. `close` instead if the client is gone.

    Attributes:
        buffer: what has arrived.
        pool: takes the buffer back.
        size: bytes of the whole request.
    """

    def __init__(
        self,
        beginning: memoryview,
        size: int,
        buffers: RequestBuffers,
        *,
        now: float,
        resume: Callable[[], None],
    ) -> None:
        """Copy the beginning. `resume` is called when there is memory again, if there was none."""
        self.size = size
        self.pool = pool = buffers.pool_for(size)
        self._since = now
        self._resume = resume
        self._memory: asyncio.Future[memoryview] | None = None
        self._closed = False
        wanted = self._next_size(len(beginning))
        buffer = pool.take(wanted) if wanted > _SMALL_BYTES else None
        self._fill(buffer or pool.take_beyond_limit(len(beginning)), beginning)
        self._grow_if_full()

    @property
    def waits_for_memory(self) -> bool:
        """Whether nothing can be received until `resume` is called."""
        return self._memory is not None

    def room(self) -> memoryview:
        """Return where to receive."""
        return self.buffer[self._filled : self.size]

    def received(self, size: int) -> bool:
        """Note that `size` bytes more have arrived; return whether the request is whole."""
        self._filled += size
        if self._filled == self.size:
            return True
        self._grow_if_full()
        return False

    def overdue(self, now: float, progress_at: float, timeout: float) -> str:
        """Return why the client has had its time, or "". `progress_at`: when something arrived last."""
        waited, still = now - self._since, now - progress_at
        stands = not self.waits_for_memory and self.pool.is_awaited and still > STILL_SECONDS
        if waited <= timeout + self.size / _BYTES_PER_SECOND and not stands:
            return ""
        size = f"{self._filled} of {self.size} bytes"
        if not self.waits_for_memory:
            return f"the rest of a request did not arrive in {waited:.0f} seconds ({size})"
        return (
            f"there was no memory for a request in {waited:.0f} seconds ({size}); raise"
            " request_memory_bytes if clients send so much at the same time"
        )

    def close(self) -> None:
        """Put the memory back."""
        self._closed = True
        if self._memory is not None:
            self._memory.cancel()
        self.pool.put(self.buffer)

    def _next_size(self, arrived: int) -> int:
        """Return the size of the next buffer, when so many bytes have arrived."""
        usual = _USUAL_BYTES if arrived >= _BEGUN_BYTES else 0
        return min(self.size, max(_GROWTH * arrived, usual))

    def _grow_if_full(self) -> None:
        full = self.buffer
        if self._filled < len(full):
            return
        size = self._next_size(len(full))
        buffer = self.pool.take(size)
        if buffer is None:
            self._memory = self.pool.when_available(size, held=len(full))
            self._memory.add_done_callback(self._got_memory)
        else:
            self._move(buffer)

    def _got_memory(self, memory: asyncio.Future[memoryview]) -> None:
        self._memory = None
        if memory.cancelled():
            return
        if self._closed:
            self.pool.put(memory.result())
            return
        self._move(memory.result())
        self._resume()

    def _move(self, buffer: memoryview) -> None:
        full = self.buffer
        self._fill(buffer, full)
        self.pool.put(full)

    def _fill(self, buffer: memoryview, beginning: memoryview) -> None:
        buffer[: len(beginning)] = beginning
        self.buffer = buffer
        self._filled = len(beginning)
