"""The memory of fetch responses: small ones do not wait for large ones that clients do not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .buffer_pool import BufferPool

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Awaitable

_SMALL_BYTES = 128 * 1024
_SMALL_SHARE = 4  # a quarter


class ResponseBuffers:
    """Lends buffers for responses; see `BufferPool`.

    Attributes:
        small: the pool of buffers up to 128 KiB, which have a quarter of the memory.
        large: the pool of the others.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: bytes that may be lent at the same time."""
        self.small = BufferPool(limit // _SMALL_SHARE)
        self.large = BufferPool(limit - limit // _SMALL_SHARE)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a buffer."""
        return self.small.is_awaited or self.large.is_awaited

    def take(self, size: int) -> memoryview | None:
        """Lend a buffer of at least `size` bytes with arbitrary content, None if there is none."""
        return self._pool(size).take(size)

    def take_beyond_limit(self, size: int) -> memoryview:
        """Lend a buffer at once, even over the limit, against which it counts."""
        return self._pool(size).take_beyond_limit(size)

    def when_available(self, size: int) -> Future[memoryview]:
        """Return a future buffer; cancel it, or `put` its result back."""
        return self._pool(size).when_available(size)

    def wait(self, size: int) -> Awaitable[memoryview]:
        """Wait for a buffer of at least `size` bytes."""
        return self._pool(size).wait(size)

    def put(self, buffer: memoryview) -> None:
        """Take back a buffer, which must not be used any more."""
        self._pool(len(buffer)).put(buffer)

    def _pool(self, size: int) -> BufferPool:
        return self.small if size <= _SMALL_BYTES else self.large
