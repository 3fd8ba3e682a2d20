"""Reusable buffers under one limit in bytes.

A fresh allocation of megabytes costs more CPU than all other work on it, because the kernel clears each
page. The limits bound what large requests and large responses take. Each connection may hold one small
buffer beyond them, and so much of what it sends is always received.
"""

from __future__ import annotations

from asyncio import CancelledError, Future, get_running_loop
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..storage.group_commit import GroupCommit

_SMALLEST = 4 * 1024  # bytes
_LARGE = 2 * 1024 * 1024  # bytes; a batch of the default size limit fits
_SMALL_SHARE = 4  # a quarter
_UNREAD_SHARE = 8  # an eighth
_MAX_IDLE = 64 * 1024 * 1024  # bytes
_CHUNK_BYTES = 512 * 1024  # many small requests, which share a file write and a send
_LEAST_ROOM = 128 * 1024  # for one read
_SCARCE_ROOM = 4 * 1024  # for one read while memory is scarce


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

    def _serve_waiting(self) -> None:
        while self._waiting:
            size, _, future = self._waiting[0]
            if not future.done():
                if not self._fits(size):
                    return
                future.set_result(self._lend(size))
            self._waiting.popleft()

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


class Intake:
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


def _rounded(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length())
