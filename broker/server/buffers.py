"""The memory of requests that are being received.

Its limits bound what large requests take. Each connection may hold one small buffer beyond them, and so much
of what it sends is always received.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..buffer_pool import BufferPool

if TYPE_CHECKING:
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
        small: for requests of up to 2 MiB.
        large: for larger ones.
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

    def pool_for(self, size: int) -> BufferPool:
        """Return the pool for a request of so many bytes, also for its beginning.

        So large requests of which only the beginning arrives take nothing from usual ones.
        """
        return self.small if size <= _LARGE else self.large


class ReceiveMemory:
    """The memory that all connections of an event loop receive into, one after the other.

    What they received stays as it is until the turn's appends, which refer to it, are written. It does not
    count against the limit: there is always room for small requests.
    Calls: `room`, then `received` once some of it is filled, then `handled`.
    """

    def __init__(self, buffers: RequestBuffers, group_commit: GroupCommit) -> None:
        self._buffers = buffers
        self._pool = buffers.small
        self._group_commit = group_commit
        self._chunk = self._new_chunk()
        self._used = 0
        self._is_waiting = False

    def room(self, *, little: bool = False) -> memoryview:
        """Return where to receive; `little`: what comes has to be kept."""
        if len(self._chunk) - self._used < _LEAST_ROOM:
            self._group_commit.after_write(partial(self._pool.put, self.take_away()))
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
        """Return the memory to a caller who needs it for longer, and puts it back into the small pool."""
        chunk, self._chunk = self._chunk, self._new_chunk()
        self._pool.used += len(chunk)
        self._used = 0
        return chunk

    def _new_chunk(self) -> memoryview:
        """Return memory that does not count as lent."""
        chunk = self._pool.take_beyond_limit(_CHUNK_BYTES)
        self._pool.used -= len(chunk)
        return chunk

    def _reset(self) -> None:
        self._is_waiting = False
        self._used = 0
