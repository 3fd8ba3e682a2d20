"""One client connection: frames in, responses out in the order of their requests.

Requests are handled one after the other. While one waits (a long poll, a join), while a response is
being sent, or while the client does not read its responses, nothing more is read from it: that is the
back-pressure in both directions. The exception is a produce request whose records are appended and
only wait for the disk: the next one is taken in meanwhile, and shares its sync.

Until a client has authenticated, if it must, requests are small and few kinds are handled. A client that
exceeds its quota is answered, and then not listened to for a while (KIP-219).
"""

from __future__ import annotations

import asyncio
from functools import partial
from inspect import iscoroutine
from socket import SO_KEEPALIVE, SOL_SOCKET
from struct import Struct
from typing import TYPE_CHECKING, Final, cast

import structlog

from broker.api import Buffered, CloseConnection, Deferred
from broker.dispatch import Client
from broker.security.sasl import SaslExchange
from broker.security.tls import certificate_principal
from broker.server.outbox import Outbox
from broker.wire.header import MIN_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.api import RawResponse
    from broker.dispatch import Answer
    from broker.server.shared import Shared

__all__ = ["IPV4_MAPPED", "Connection"]

IPV4_MAPPED: Final = "::ffff:"
"""Before the addresses by which an IPv6 listener knows those who came by IPv4."""

logger = structlog.get_logger(__name__)

CHUNK_BYTES = 256 * 1024
"""What is read at once: enough for many small requests, which then share a write and a response."""
_SMALL_BYTES = 4 * 1024
_LENGTH_BYTES = 4
_FAREWELL = 1.0  # seconds
_UNAUTHENTICATED_BYTES = 64 * 1024  # of one request
_TLS_HANDSHAKE = 0x1603  # the first two bytes of TLS
_LENGTH = Struct(">i").unpack_from


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    def __init__(
        self,
        shared: Shared,
        host: str,
        *,
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        """`host`: the client's address; `on_open` and `on_close`: who keeps count of connections."""
        self._users = shared.users
        self._metrics = shared.metrics
        self._admission = shared.admission
        self._password_checks = shared.password_checks
        self._dispatcher = shared.dispatcher
        self._appends = shared.appends
        self._buffers = shared.request_buffers
        self._settings = shared.settings
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._transport: asyncio.Transport
        self._client = Client(host, "", 0, mute=self._mute)
        self._lost = False
        self._finishing = False
        self._last_progress = self._loop.time()
        self._connected_at = self._last_progress
        self._min_request_bytes = MIN_REQUEST_BYTES
        self._max_request_bytes = self._settings.request_max_bytes
        self.was_made = False

        # receiving
        self._chunk: memoryview | None = None  # lent to the transport for whatever comes next
        self._partial: memoryview | None = None  # the beginning of a request
        self._partial_filled = 0
        self._partial_size = 0
        self._unread: tuple[memoryview, int, int] | None = None  # received, must wait
        self._memory: asyncio.Future[memoryview] | None = None  # waits for a buffer
        self._reading = True
        self._muted: asyncio.TimerHandle | None = None  # until its quota allows more

        # answering
        self._task: asyncio.Task[RawResponse] | None = None  # the handler that waits
        self._waiting: Answer | None = None  # and whose answer it is
        self._outbox: Outbox
        self._writable = True

    # -- the transport's side ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.was_made = True
        self._transport = cast("asyncio.Transport", transport)
        self._outbox = Outbox(self._transport)
        # Nothing is buffered by the transport. TLS compares by >=, to which 0 would mean always.
        limit = 1 if self._transport.get_extra_info("ssl_object") else 0
        self._transport.set_write_buffer_limits(limit, 0)
        # A client that vanished in the middle of a long wait is found out.
        self._transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        host, port = self._transport.get_extra_info("sockname")[:2]
        self._client.node_host = self._settings.advertised_host or host.removeprefix(IPV4_MAPPED)
        self._client.node_port = self._settings.advertised_port or port
        certificate = self._transport.get_extra_info("peercert")
        if certificate:
            self._client.principal = certificate_principal(certificate)
        if self._users is None:
            self._admission.settled()
        else:
            self._min_request_bytes = 0
            self._max_request_bytes = _UNAUTHENTICATED_BYTES
            self._client.sasl = SaslExchange(
                self._users,
                on_success=self._authenticated,
                on_failure=self._refused,
                checks=self._password_checks,
            )
        self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._task is not None:
            # Not at once: a task that has not begun would leave the coroutines inside it unawaited.
            self._loop.call_soon(self._task.cancel)
        if self._memory is not None:
            self._memory.cancel()
        for buffer in (self._chunk, self._partial, self._unread and self._unread[0]):
            if buffer is not None:
                self._appends.after_write(partial(self._buffers.put, buffer))
        self._chunk = self._partial = self._unread = None
        if self._muted is not None:
            self._muted.cancel()
        self._outbox.close()
        self._admission.left(self._host, settled=self._client.sasl is None)
        self._on_close(self)

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
        self._outbox.pause()

    def resume_writing(self) -> None:
        # Not from here: asyncio closes a transport twice when a write fails that is made from here.
        self._writable = True
        self._loop.call_soon(self._write_on)

    def _write_on(self) -> None:
        if self._writable and not self._lost:
            self._last_progress = self._loop.time()
            self._outbox.resume()
            self._go_on()

    # -- the server's side -------------------------------------------------------------------------

    @property
    def unanswered(self) -> Iterator[Answer]:
        """The requests whose answers are not ready."""
        if self._waiting is not None:
            yield self._waiting
        yield from self._outbox.waiting

    def check(self, now: float) -> None:
        """Close if the client makes no progress, or has nothing to say; `now`: the loop's time."""
        waited = now - self._last_progress
        if (
            self._client.sasl is not None
            and now - self._connected_at > self._settings.authentication_timeout
        ):
            self.abort(
                f"the client did not authenticate for {now - self._connected_at:.0f} seconds"
            )
        elif self._outbox.is_blocked:
            if waited > self._settings.response_timeout:
                self.abort(f"the client did not read its response for {waited:.0f} seconds")
        elif (
            self._task is not None
            or self._memory is not None
            or self._muted is not None
            or not self._outbox.is_empty
        ):
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
        """Close at once, after the answers that are ready, and say why in the log."""
        self._outbox.send()
        self._metrics.connections_aborted.inc()
        logger.warning("connection closed", client_host=self._client.host, reason=reason)
        self._lost = True
        self._transport.abort()

    # -- receiving ---------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._task is not None or self._outbox.is_full or self._muted is not None

    @property
    def _closing(self) -> bool:
        return self._lost or self._finishing

    def _take_in(self, buffer: memoryview, start: int, end: int) -> None:
        """Handle the requests in `buffer[start:end]`; takes over the buffer."""
        size = 0
        while not self._closing and end - start >= _LENGTH_BYTES:
            size = _LENGTH(buffer, start)[0]
            if not self._min_request_bytes <= size <= self._max_request_bytes:
                self._give_back(buffer)
                self._refuse_size(size)
                return
            if self._busy:
                self._outbox.send()
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
        self._outbox.send()

    def _refuse_size(self, size: int) -> None:
        if size >> 16 == _TLS_HANDSHAKE:
            self.abort("the client speaks TLS, and this broker was started without a certificate")
        else:
            self.abort(
                f"a request of {size} bytes: must be {self._min_request_bytes} to"
                f" {self._max_request_bytes}"
            )

    def _give_back(self, buffer: memoryview) -> None:
        """Appended records are written to the log from the buffer that they were received in."""
        self._appends.after_write(partial(self._buffers.put, buffer))

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

    # -- who it is, and how much it may send -------------------------------------------------------

    def _authenticated(self, user: str) -> None:
        client = self._client
        client.sasl = None
        client.principal = f"User:{user}"
        client.contexts.clear()
        self._min_request_bytes = MIN_REQUEST_BYTES
        self._max_request_bytes = self._settings.request_max_bytes
        self._admission.settled()

    def _refused(self, reason: str) -> None:
        self._metrics.authentication_failures.labels("SASL").inc()
        logger.warning("authentication failed", client_host=self._host, reason=reason)
        # Not at once: some clients do not read the reason any more when they see the end.
        self._loop.call_later(_FAREWELL, self.finish)

    def _mute(self, seconds: float) -> None:
        if self._muted is not None:
            self._muted.cancel()
        self._muted = self._loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._last_progress = self._loop.time()
        self._go_on()

    # -- answering ---------------------------------------------------------------------------------

    def _handle(self, frame: memoryview) -> None:
        try:
            answer = self._dispatcher.dispatch(frame, self._client)
        except CloseConnection as error:
            self.abort(str(error))
            return
        response = answer.response
        if iscoroutine(response):
            self._outbox.send()
            self._waiting = answer
            self._task = self._loop.create_task(response)
            self._task.add_done_callback(partial(self._answered, answer, self._last_progress))
        elif response is None:
            answer.meter.answered(self._loop.time() - self._last_progress)
        else:
            self._outbox.add(answer, self._last_progress)
            if isinstance(response, Deferred):
                response.flush.then(self._deferred_done)

    def _answered(self, answer: Answer, began: float, task: asyncio.Task[RawResponse]) -> None:
        self._task = self._waiting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.abort(str(error))
            return
        response = task.result()
        if self._lost:
            if isinstance(response, Buffered):
                response.release()
        elif response is not None:
            self._outbox.add(answer._replace(response=response), began)
            self._outbox.send()
        self._go_on()

    def _deferred_done(self) -> None:
        self._outbox.send()
        if not self._reading or self._finishing:
            self._loop.call_soon(self._go_on)  # not from here: it may append, and we are in a flush

    def _close_if_finished(self) -> None:
        if (
            self._finishing
            and self._task is None
            and self._outbox.is_empty
            and not self._transport.is_closing()
        ):
            self._transport.close()
