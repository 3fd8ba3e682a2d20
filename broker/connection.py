"""One client connection: frames in, responses out in the order of their requests.

Requests are handled one after the other. While one waits (a long poll, a join), while a response is
being sent, or while the client does not read its responses, nothing more is read from it: that is the
back-pressure in both directions. The exception is a produce request whose records are appended and
only wait for the disk: the next one is taken in meanwhile, and shares its sync.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from inspect import iscoroutine
from struct import Struct
from typing import TYPE_CHECKING, cast

import structlog

from broker.api import Buffered, CloseConnection, Deferred
from broker.dispatch import Answer, Client
from broker.wire.fetch import FETCH_HEADROOM
from broker.wire.header import MIN_REQUEST_BYTES, response_frame_header

if TYPE_CHECKING:
    from broker.api import RawResponse
    from broker.appends import Appends
    from broker.buffers import BufferPool
    from broker.dispatch import Dispatcher
    from broker.server import Server
    from broker.settings import BrokerSettings

__all__ = ["Connection"]

logger = structlog.get_logger(__name__)

CHUNK_BYTES = 256 * 1024
"""What is read at once: enough for many small requests, which then share a write and a response."""
_SMALL_BYTES = 4 * 1024
_SLICE_BYTES = 256 * 1024  # of a large response: what the socket does not take is copied
_COPIED_BYTES = 32 * 1024  # up to here a copy is cheaper than keeping the buffer
_MAX_DEFERRED = 64
_LENGTH_BYTES = 4
_LENGTH = Struct(">i").unpack_from


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    def __init__(
        self,
        server: Server,
        dispatcher: Dispatcher,
        appends: Appends,
        buffers: BufferPool,
        settings: BrokerSettings,
    ) -> None:
        self._server = server
        self._dispatcher = dispatcher
        self._appends = appends
        self._buffers = buffers
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._client = Client("", "", 0)
        self._lost = False
        self._finishing = False
        self._last_progress = self._loop.time()

        # receiving
        self._chunk: memoryview | None = None  # lent to the transport for whatever comes next
        self._partial: memoryview | None = None  # the beginning of a request
        self._partial_filled = 0
        self._partial_size = 0
        self._unread: tuple[memoryview, int, int] | None = None  # received, must wait
        self._memory: asyncio.Future[memoryview] | None = None  # waits for a buffer
        self._reading = True

        # answering
        self._task: asyncio.Task[None] | None = None  # the handler that waits
        self._outgoing: deque[Answer] = deque()
        self._sending: tuple[Buffered, int] | None = None
        self._writable = True

    # -- the transport's side ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        peer = self._transport.get_extra_info("peername") or ("", 0)
        host, port = self._transport.get_extra_info("sockname")[:2]
        self._client = Client(
            str(peer[0]),
            self._settings.advertised_host or host,
            self._settings.advertised_port or port,
        )
        self._server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._task is not None:
            self._task.cancel()
        if self._memory is not None:
            self._memory.cancel()
        for buffer in (self._chunk, self._partial, self._unread and self._unread[0]):
            if buffer is not None:
                self._appends.after_write(_giver(self._buffers, buffer))
        self._chunk = self._partial = self._unread = None
        for answer in self._outgoing:
            if isinstance(answer.response, Buffered):
                answer.response.release()
        self._outgoing.clear()
        if self._sending is not None:
            self._sending[0].release()
            self._sending = None
        self._server.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return self._partial[self._partial_filled : self._partial_size]
        if self._chunk is None:
            self._chunk = self._buffers.take_beyond_limit(CHUNK_BYTES)
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        self._last_progress = self._loop.time()
        if self._partial is not None:
            self._partial_filled += nbytes
            if self._partial_filled == self._partial_size:
                buffer, self._partial = self._partial, None
                self._take_in(buffer, 0, self._partial_size)
        elif self._chunk is not None:
            buffer, self._chunk = self._chunk, None
            self._take_in(buffer, 0, nbytes)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._last_progress = self._loop.time()
        self._send()
        self._go_on()

    # -- the server's side -------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close if the client makes no progress, or has nothing to say; `now`: the loop's time."""
        waited = now - self._last_progress
        if self._sending is not None or not self._writable:
            if waited > self._settings.response_timeout:
                self.abort(f"the client did not read its response for {waited:.0f} seconds")
        elif self._task is not None or self._outgoing or self._memory is not None:
            pass  # it is our turn
        elif self._partial is not None:
            if waited > self._settings.request_timeout:
                self.abort(f"the rest of a request did not come for {waited:.0f} seconds")
        elif waited > self._settings.connection_idle_seconds:
            self.finish()

    def finish(self) -> None:
        """Close as soon as what is being handled is answered."""
        self._finishing = True
        self._pause_reading()
        self._close_if_finished()

    def abort(self, reason: str) -> None:
        """Close at once, and say why in the log."""
        logger.warning("connection closed", client_host=self._client.host, reason=reason)
        self._lost = True
        self._transport.abort()

    # -- receiving ---------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return (
            self._task is not None
            or self._sending is not None
            or not self._writable
            or len(self._outgoing) >= _MAX_DEFERRED
            or (bool(self._outgoing) and isinstance(self._outgoing[-1].response, Buffered))
        )

    @property
    def _closing(self) -> bool:
        return self._lost or self._finishing

    def _take_in(self, buffer: memoryview, start: int, end: int) -> None:
        """Handle the requests in `buffer[start:end]`; takes over the buffer."""
        size = 0
        while not self._closing and end - start >= _LENGTH_BYTES:
            size = _LENGTH(buffer, start)[0]
            if not MIN_REQUEST_BYTES <= size <= self._settings.request_max_bytes:
                self._give_back(buffer)
                self.abort(
                    f"a request of {size} bytes: must be {MIN_REQUEST_BYTES} to"
                    f" {self._settings.request_max_bytes}"
                )
                return
            if self._busy:
                self._send()
            if self._busy:
                self._unread = (buffer, start, end)
                self._pause_reading()
                return
            begin, stop = start + _LENGTH_BYTES, start + _LENGTH_BYTES + size
            if stop > end:
                break
            self._handle(buffer[begin:stop])
            start = stop
        if end > start and not self._closing:
            wanted = size + _LENGTH_BYTES if end - start >= _LENGTH_BYTES else _LENGTH_BYTES
            self._keep_partial(buffer[start:end], wanted)
        self._give_back(buffer)
        self._send()

    def _give_back(self, buffer: memoryview) -> None:
        """Appended records are written to the log from the buffer that they were received in."""
        self._appends.after_write(_giver(self._buffers, buffer))

    def _keep_partial(self, rest: memoryview, wanted: int) -> None:
        """Move the beginning of a request into a buffer that has room for all of it."""
        if wanted <= _SMALL_BYTES:
            buffer: memoryview | None = self._buffers.take_beyond_limit(wanted)
        else:
            buffer = self._buffers.take(wanted)
        if buffer is not None:
            self._fill_partial(buffer, rest, wanted)
            return
        kept = bytes(rest)
        self._pause_reading()
        self._memory = self._buffers.when_available(wanted)
        self._memory.add_done_callback(lambda memory: self._got_memory(memory, kept, wanted))

    def _got_memory(self, memory: asyncio.Future[memoryview], kept: bytes, wanted: int) -> None:
        self._memory = None
        if memory.cancelled():
            return
        if self._lost:
            self._buffers.put(memory.result())
            return
        self._last_progress = self._loop.time()
        self._fill_partial(memory.result(), memoryview(kept), wanted)
        self._go_on()

    def _fill_partial(self, buffer: memoryview, rest: memoryview, wanted: int) -> None:
        buffer[: len(rest)] = rest
        self._partial = buffer
        self._partial_filled = len(rest)
        self._partial_size = wanted

    def _go_on(self) -> None:
        """Take up what had to wait."""
        if self._lost:
            return
        if self._unread is not None and not self._busy:
            unread, self._unread = self._unread, None
            self._take_in(*unread)
        if self._unread is None and self._memory is None and not self._busy:
            self._resume_reading()
        self._close_if_finished()

    def _pause_reading(self) -> None:
        if self._reading and not self._lost:
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading and not self._finishing and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    # -- answering ---------------------------------------------------------------------------------

    def _handle(self, frame: memoryview) -> None:
        try:
            answer = self._dispatcher.dispatch(frame, self._client)
        except CloseConnection as error:
            self.abort(str(error))
            return
        response = answer.response
        if iscoroutine(response):
            self._send()
            self._task = self._loop.create_task(self._wait_for(answer))
        elif response is not None:
            self._outgoing.append(answer)
            if isinstance(response, Deferred):
                response.flush.then(self._deferred_done)

    async def _wait_for(self, answer: Answer) -> None:
        try:
            response: RawResponse = await answer.response  # type: ignore[misc]  # it is a coroutine
        except CloseConnection as error:
            self.abort(str(error))
            return
        finally:
            self._task = None
        if self._lost:
            if isinstance(response, Buffered):
                response.release()
            return
        if response is not None:
            self._outgoing.append(answer._replace(response=response))
        self._send()
        self._go_on()

    def _deferred_done(self) -> None:
        self._send()
        if not self._reading or self._finishing:
            self._loop.call_soon(self._go_on)  # not from here: it may append, and we are in a flush

    def _send(self) -> None:
        """Send the answers that are ready, in the order of their requests, in one write."""
        ready: list[bytes | bytearray] = []
        self._go_on_sending()
        while self._outgoing and self._sending is None and not self._lost:
            correlation_id, flexible, response = self._outgoing[0]
            if isinstance(response, Deferred):
                if not response.flush.done:
                    break
                response = response.encode()
            self._outgoing.popleft()
            if isinstance(response, Buffered):
                self._write(ready)
                ready = []
                self._send_buffered(correlation_id, response, flexible=flexible)
            else:
                body = cast("bytes | bytearray", response)
                ready.append(response_frame_header(correlation_id, len(body), flexible=flexible))
                ready.append(body)
        self._write(ready)

    def _write(self, ready: list[bytes | bytearray]) -> None:
        if ready:
            self._transport.write(b"".join(ready))

    def _send_buffered(self, correlation_id: int, response: Buffered, *, flexible: bool) -> None:
        header = response_frame_header(
            correlation_id, len(response.view) - FETCH_HEADROOM, flexible=flexible
        )
        start = FETCH_HEADROOM - len(header)
        response.view[start:FETCH_HEADROOM] = header
        if len(response.view) <= _COPIED_BYTES:
            self._transport.write(bytes(response.view[start:]))
            response.release()
        else:
            self._sending = (response, start)
            self._go_on_sending()

    def _go_on_sending(self) -> None:
        """Write slices for as long as the socket takes them; free the buffer when all is sent."""
        if self._sending is None:
            return
        response, at = self._sending
        while at < len(response.view) and self._writable:
            self._transport.write(response.view[at : at + _SLICE_BYTES])
            at += _SLICE_BYTES
        if at < len(response.view) or not self._writable:
            self._sending = (response, at)
            return
        self._sending = None
        response.release()

    def _close_if_finished(self) -> None:
        if self._finishing and not self._busy and not self._outgoing:
            self._transport.close()


def _giver(buffers: BufferPool, buffer: memoryview) -> partial[None]:
    return partial(buffers.put, buffer)
