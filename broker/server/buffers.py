"""The memory of requests that are being received.

Its limits bound what large requests take. Each connection may hold one small buffer beyond them, and so much
of what it sends is always received.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..buffer_pool import BufferPool

if TYPE_CHECKING:
    from asyncio import Future

    from ..storage.group_commit import GroupCommit

_LARGE = 2 * 1024 * 1024  # bytes; a batch of the default size limit fits
_SMALL_SHARE = 4  # a quarter
_UNREAD_SHARE = 8  # an eighth
_CHUNK_BYTES = 512 * 1024  # many small requests, which share a file write and a send
_LEAST_ROOM = 128 * 1024  # for one read
_SCARCE_ROOM = 4 * 1024  # for one read while memory is scarce


class RequestBuffers:
    """Buffers for requests that are being received.

    Large buffers, and those of requests that must wait for the one before them, have limits of their own:
    they cannot keep usual requests waiting.

    Attributes:
        small: those of up to 2 MiB.
        large: larger ones.
        unread: what clients sent behind a request that is not answered yet.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all buffers; a quarter is for small ones, an eighth for unread requests."""
        self.small = BufferPool(limit // _SMALL_SHARE)
        self.unread = BufferPool(limit // _UNREAD_SHARE)
        self.large = BufferPool(limit - limit // _SMALL_SHARE - limit // _UNREAD_SHARE)

    @property
    def are_scarce(self) -> bool:
        """Whether as little as possible should be received at once."""
        unread, small = self.unread, self.small
        return unread.used >= unread.limit or small.used >= small.limit

    def take(self, size: int) -> memoryview | None:
        """Lend a buffer of at least `size` bytes; None if the limit is reached."""
        return self._pool(size).take(size)

    def take_beyond_limit(self, size: int) -> memoryview:
        """Lend a buffer at once, even over the limit, against which it counts."""
        return self._pool(size).take_beyond_limit(size)

    def take_for_good(self, size: int) -> memoryview:
        """Give a buffer away, which does not count as lent."""
        buffer = self.take_beyond_limit(size)
        self._pool(len(buffer)).used -= len(buffer)
        return buffer

    def adopt(self, buffer: memoryview) -> None:
        """Count a buffer that was given away as lent from now on."""
        self._pool(len(buffer)).used += len(buffer)

    def when_available(self, size: int, *, held: int) -> Future[memoryview]:
        """Return a future buffer in place of one of `held` bytes; see `BufferPool.when_available`."""
        pool = self._pool(size)
        return pool.when_available(size, held=held if self._pool(held) is pool else 0)

    def put(self, buffer: memoryview) -> None:
        """Take back a buffer, which must not be used any more."""
        self._pool(len(buffer)).put(buffer)

    def _pool(self, size: int) -> BufferPool:
        return self.small if size <= _LARGE else self.large


class ReceiveMemory:
    """The memory that all connections of an event loop receive into, one after the other.

    What they received stays as it is until the turn's appends, which refer to it, are written. It does not
    count against the limit: there is always room for small requests.
    Calls: `room`, then `received` once some of it is filled, then `handled`.
    """

    def __init__(self, buffers: RequestBuffers, group_commit: GroupCommit) -> None:
        self._buffers = buffers
        self._group_commit = group_commit
        self._chunk = buffers.take_for_good(_CHUNK_BYTES)
        self._used = 0
        self._is_waiting = False

    def room(self, *, little: bool = False) -> memoryview:
        """Return where to receive; `little`: what comes has to be kept."""
        if len(self._chunk) - self._used < _LEAST_ROOM:
            self._group_commit.after_write(partial(self._buffers.put, self.take_away()))
        if little or self._buffers.are_scarce:
            return self._chunk[self._used : self._used + _SCARCE_ROOM]
        return self._chunk[self._used :]

    def received(self, size: int) -> tuple[memoryview, int, int]:
        """Return the memory in which `size` bytes are, their start and their end."""
        start = self._used
        self._used = start + size
        return self._chunk, start, self._used

    def handled(self) -> None:
        """Use the memory again as soon as no append refers to it."""
        if not self._is_waiting:
            self._is_waiting = True
            self._group_commit.after_write(self._reset)

    def take_away(self) -> memoryview:
        """Return the memory, to put back later, to a caller who needs it for longer."""
        chunk, self._chunk = self._chunk, self._buffers.take_for_good(_CHUNK_BYTES)
        self._buffers.adopt(chunk)
        self._used = 0
        return chunk

    def _reset(self) -> None:
        self._is_waiting = False
        self._used = 0
