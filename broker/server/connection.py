"""One client connection: frames in, responses out in the order of their requests.

Requests are handled one at a time. While one waits (a long poll, a join), while a response is being
sent, or while the client does not read its responses, the connection does not read from the client:
this is the backpressure in both directions. What it has received by then waits in a small buffer.
Produce requests are the exception: while their appended records wait for the disk, the next request is
handled, so that they share a sync.

Before a client has authenticated, requests must be small, and only a few APIs are handled.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from socket import SO_KEEPALIVE, SOL_SOCKET
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import structlog

from ..apis.api import CloseConnection
from ..authorization.sasl import SaslExchange
from ..protocol.cursor import MalformedRequest
from ..protocol.headers import LENGTH, MIN_REQUEST_BYTES
from ..turns import SLICE_SECONDS
from .dispatch import Client
from .outbox import Outbox
from .partial_request import STILL_SECONDS, PartialRequest
from .tls import certificate_principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ..apis.api import Reply
    from ..authorization.users import Users
    from ..buffer_pool import BufferPool
    from ..listeners import Listener
    from ..storage.group_commit import Flush
    from .server import Server

IPV4_MAPPED: Final = "::ffff:"
"""The prefix of IPv4 addresses on an IPv6 listener."""

logger = structlog.get_logger(__name__)

_LEAST_SLICE_SECONDS = 0.000_5
_REFUSAL_SECONDS = 1.0  # from the response about a failed authentication to the close
_UNAUTHENTICATED_BYTES = 64 * 1024  # limit of one request before authentication
_TLS_HANDSHAKE = 0x1603  # the first two bytes of TLS


class _Unread(NamedTuple):
    """Received requests that wait in `buffer[start:end]`, which `pool` takes back."""

    buffer: memoryview
    start: int
    end: int
    pool: BufferPool


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    def __init__(self, server: Server, listener: Listener, users: Users | None, host: str) -> None:
        """`users`: those of the listener, if its clients authenticate. `host`: the client's, admitted."""
        self._server = server
        self._users = users
        self._dispatcher = server.dispatcher
        self._group_commit = server.group_commit
        self._buffers = server.request_buffers
        self._intake = server.intake
        self._settings = server.settings
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._transport: asyncio.Transport
        self._client = Client(listener, host, close=self._close_for)
        self._lost = False
        self._finishing = False
        self._last_progress = self._loop.time()
        self._blocked_since = self._last_progress  # the client does not read what is sent
        self._authenticate_by = self._last_progress + self._settings.authentication_timeout
        self._expiry: asyncio.TimerHandle | None = None  # then the client must authenticate again
        self._min_request_bytes = MIN_REQUEST_BYTES
        self._max_request_bytes = self._settings.request_max_bytes
        self.was_opened = False

        # receiving
        self._partial: PartialRequest | None = None
        self._unread: _Unread | None = None  # received requests that must wait
        self._reading = True

        # answering
        self._task: asyncio.Future[Reply] | None = None  # the handler that is running
        self._borrowed: list[Callable[[], None]] | None = None  # put back the buffers that it needs
        self._waiting: Reply | None = None  # that it finishes
        self._flush: Flush | None = None  # the latest one that responses wait for, until it is done
        self._outbox: Outbox
        self._writable = True

    # -- the transport's side ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.was_opened = True
        self._transport = cast("asyncio.Transport", transport)
        self._outbox = Outbox(self._transport)
        # The transport must not buffer. With TLS it compares by >=, so that 0 would always pause.
        limit = 1 if self._transport.get_extra_info("ssl_object") else 0
        self._transport.set_write_buffer_limits(limit, 0)
        # Detects clients that vanish during a long poll.
        self._transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        host, port = self._transport.get_extra_info("sockname")[:2]
        listener = self._client.listener
        self._client.node_host = listener.advertised_host or host.removeprefix(IPV4_MAPPED)
        self._client.node_port = listener.advertised_port or port
        certificate = self._transport.get_extra_info("peercert")
        if certificate:
            self._client.principal = certificate_principal(certificate)
        users = self._users
        if users is None:
            self._server.admission.authenticated()
        else:
            self._min_request_bytes = 0
            self._max_request_bytes = _UNAUTHENTICATED_BYTES
            self._client.sasl = SaslExchange(
                users,
                on_begin=self._authenticate_again,
                on_success=self._authenticated,
                on_failure=self._refused,
                checks=self._server.password_checks,
                lifetime=self._settings.authentication_lifetime if users.expire else 0.0,
            )
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._task is not None:
            # Not here: a task that has not started would leave its inner coroutines unawaited.
            self._loop.call_soon(self._task.cancel)
        if self._partial is not None:
            self._partial.close()
        if self._unread is not None:
            self._release(self._unread.buffer, self._unread.pool)
        self._partial = self._unread = None
        self._outbox.close()
        if self._expiry is not None:
            self._expiry.cancel()
        client = self._client
        authenticated = client.sasl is None or client.session is not None
        self._server.admission.closed(self._host, authenticated=authenticated)
        self._server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return self._partial.room()
        return self._intake.room(little=self._task is not None)

    def buffer_updated(self, nbytes: int) -> None:
        self._last_progress = self._loop.time()
        request = self._partial
        if request is not None:
            if request.received(nbytes):
                self._partial = None
                self._handle_own(_Unread(request.buffer, 0, request.size, request.pool))
            elif request.waits_for_memory:
                self._pause_reading()
            return
        buffer, start, end = self._intake.received(nbytes)
        waiting = self._handle_requests(buffer, start, end)
        if waiting < end:
            size, pool = end - waiting, self._buffers.unread
            unread = pool.take_beyond_limit(size)
            unread[:size] = buffer[waiting:end]
            self._unread = _Unread(unread, 0, size, pool)
        if self._borrowed is None:
            self._intake.handled()
        else:
            self._release(self._intake.take_away(), self._buffers.small)

    def pause_writing(self) -> None:
        self._writable = False
        self._blocked_since = self._loop.time()
        self._outbox.pause()

    def resume_writing(self) -> None:
        # Not here: asyncio closes a transport twice if a write inside this callback fails.
        self._writable = True
        self._loop.call_soon(self._resume_sending)

    def _resume_sending(self) -> None:
        if self._writable and not self._lost:
            self._last_progress = self._loop.time()
            self._outbox.resume()
            self._send()
            self._continue()

    # -- the server's side -------------------------------------------------------------------------

    @property
    def unanswered(self) -> Iterator[Reply]:
        """The replies that are not sent yet."""
        if self._waiting is not None:
            yield self._waiting
        yield from self._outbox.waiting

    def check(self, now: float) -> None:
        """Close if the client stalls or idles for too long; `now`: the loop's time."""
        if self._client.sasl is not None and now > self._authenticate_by:
            allowed = self._settings.authentication_timeout
            self.abort(f"the client did not authenticate within {allowed:g} seconds")
        elif self._outbox.is_blocked:
            waited, allowed = now - self._blocked_since, self._settings.response_timeout
            if self._partial is not None or self._unread is not None:
                allowed = min(allowed, self._settings.request_timeout)  # others need the memory
            if self._dispatcher.fetches_wait:
                allowed = min(allowed, self._settings.request_timeout, STILL_SECONDS)
            if waited > allowed:
                self.abort(f"the client did not read its response for {waited:.0f} seconds")
        elif self._task is not None or not self._outbox.is_empty:
            pass  # the broker is at work, not the client
        elif self._partial is not None:
            timeout = self._settings.request_timeout
            if reason := self._partial.overdue(now, self._last_progress, timeout):
                self.abort(reason)
        elif now - self._last_progress > self._settings.connection_idle_seconds:
            self.finish()

    def finish(self) -> None:
        """Close after the responses to requests that are being handled."""
        self._finishing = True
        self._pause_reading()
        self._close_if_finished()

    def abort(self, reason: str) -> None:
        """Send the responses that are ready, close now, and log the reason."""
        self._send()
        if not self._lost:
            self._drop(reason)

    def _close_for(self, reason: str) -> None:
        if not self._lost:
            self.abort(reason)

    def _drop(self, reason: str) -> None:
        self._server.metrics.connections_aborted.inc()
        logger.warning("connection closed", client_host=self._client.host, reason=reason)
        self._lost = True
        self._transport.abort()

    # -- receiving ---------------------------------------------------------------------------------

    @property
    def _closing(self) -> bool:
        return self._lost or self._finishing

    def _handle_own(self, own: _Unread) -> None:
        """Handle the requests in a buffer that belongs to this connection."""
        waiting = self._handle_requests(own.buffer, own.start, own.end)
        if waiting < own.end:
            self._unread = own._replace(start=waiting)
        else:
            self._release(own.buffer, own.pool)

    def _handle_requests(self, buffer: memoryview, start: int, end: int) -> int:
        """Handle the requests in `buffer[start:end]`; return where those begin that must wait, or `end`."""
        size, until, outbox = 0, 0.0, self._outbox
        while end - start >= LENGTH.size and not self._closing:
            size = LENGTH.unpack_from(buffer, start)[0]
            if not self._min_request_bytes <= size <= self._max_request_bytes:
                self._refuse_size(size)
                return end
            if self._task is not None or outbox.is_full:
                self._send()
                if self._task is not None or outbox.is_full:
                    self._pause_reading()
                    return start
            stop = start + LENGTH.size + size
            if stop > end:
                break
            start = self._handle(buffer, start, stop, end)
            if start < end:
                now = monotonic()
                if not until:
                    others = self._server.busy_connections
                    until = now + max(SLICE_SECONDS / (1 + others), _LEAST_SLICE_SECONDS)
                elif now >= until and not self._closing:
                    self._send()
                    self._pause_reading()
                    self._server.busy_connections += 1
                    self._loop.call_soon(self._next_slice)
                    return start
        if end > start and not self._closing:
            wanted = LENGTH.size + (size if end - start >= LENGTH.size else 0)
            self._keep(buffer[start:end], wanted)
        self._send()
        return end

    def _refuse_size(self, size: int) -> None:
        if size >> 16 == _TLS_HANDSHAKE:
            self.abort("the client uses TLS, but this broker was started without a certificate")
        else:
            self.abort(
                f"a request has {size} bytes; {self._min_request_bytes} to {self._max_request_bytes} are"
                " accepted"
            )

    def _release(self, buffer: memoryview, pool: BufferPool) -> None:
        """Return a buffer to its pool once the log has written the records in it."""
        put = partial(pool.put, buffer)
        if self._borrowed is not None:
            self._borrowed.append(put)
        else:
            self._group_commit.after_write(put)

    def _keep(self, beginning: memoryview, size: int) -> None:
        """Receive the rest of a request of so many bytes."""
        now = self._loop.time()
        self._partial = request = PartialRequest(
            beginning, size, self._buffers, now=now, resume=self._continue
        )
        if request.waits_for_memory:
            self._pause_reading()

    def _next_slice(self) -> None:
        self._server.busy_connections -= 1
        self._continue()

    def _continue(self) -> None:
        """Handle requests that had to wait, then read again."""
        if self._lost:
            return
        if self._unread is not None and self._task is None and not self._outbox.is_full:
            unread, self._unread = self._unread, None
            self._handle_own(unread)
        lacks_memory = self._partial is not None and self._partial.waits_for_memory
        waits = self._unread is not None or lacks_memory or self._task is not None
        if not waits and not self._outbox.is_full:
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

    # -- authentication ------------------------------------------------------------------------------

    def _authenticated(self, user: str) -> None:
        client = self._client
        sasl, client.sasl = client.sasl, None
        client.principal = f"User:{user}"
        client.headers.clear()
        self._min_request_bytes = MIN_REQUEST_BYTES
        self._max_request_bytes = self._settings.request_max_bytes
        if client.session is None:
            self._server.admission.authenticated()
        if sasl is not None and sasl.lifetime:
            client.session = sasl
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = self._loop.call_later(sasl.lifetime, self._expired)

    def _expired(self) -> None:
        """Close at the next request, unless the client authenticates again."""
        if self._client.sasl is None:
            self._authenticate_again()
            self._authenticate_by = inf

    def _authenticate_again(self) -> None:
        client = self._client
        client.sasl, client.repeater = client.session, None
        self._min_request_bytes = 0
        self._authenticate_by = self._loop.time() + self._settings.authentication_timeout

    def _refused(self, reason: str) -> None:
        self._server.metrics.authentication_failures.labels("SASL").inc()
        logger.warning("authentication failed", client_host=self._host, reason=reason)
        # Not now: some clients do not read the error any more once the connection is closed.
        self._loop.call_later(_REFUSAL_SECONDS, self.finish)

    # -- answering ---------------------------------------------------------------------------------

    def _handle(self, data: memoryview, start: int, stop: int, end: int) -> int:
        """Handle the request `data[start:stop]`, perhaps with those behind it; return where they end."""
        try:
            reply, stop = self._dispatcher.dispatch(
                data, start, stop, end, self._client, self._last_progress
            )
        except CloseConnection as error:
            self.abort(str(error))
            return stop
        if reply.later is not None:
            self._wait_for(reply, reply.later)
        elif reply.flush is not None:
            self._outbox.add(reply)
            if reply.flush is not self._flush:
                self._flush = reply.flush
                self._flush.then(self._flushed)
        elif reply.body is None:
            reply.meter.answered(self._loop.time() - reply.began)
        else:
            self._outbox.add(reply)
        return stop

    def _wait_for(self, reply: Reply, later: Awaitable[Reply]) -> None:
        self._send()
        if reply.keeps_request:
            self._borrowed = []
        self._waiting = reply
        self._task = asyncio.ensure_future(later)
        self._task.add_done_callback(partial(self._finished, reply))

    def _finished(self, reply: Reply, task: asyncio.Future[Reply]) -> None:
        self._task = self._waiting = None
        borrowed, self._borrowed = self._borrowed, None
        for put in borrowed or ():
            self._group_commit.after_write(put)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, (CloseConnection, MalformedRequest)):
            self.abort(str(error))
            return
        if error is not None:
            logger.error(
                "request failed", exc_info=error, api=reply.meter.api, client_host=self._host
            )
            self.abort("the request failed")
            return
        reply.finish(task.result())
        if self._lost:
            reply.discard()
        elif reply.body is not None:
            self._outbox.add(reply)
            self._send()
        self._continue()

    def _send(self) -> None:
        """Send the responses that are ready; close if one of them fails: it would be missing."""
        try:
            self._outbox.send()
        except Exception:
            logger.exception("a response could not be sent", client_host=self._client.host)
            self._outbox.close()
            self._drop("a response could not be sent")

    def _flushed(self) -> None:
        self._flush = None
        self._send()
        if not self._reading or self._finishing:
            self._loop.call_soon(self._continue)  # not here: it may append during a flush

    def _close_if_finished(self) -> None:
        if (
            self._finishing
            and self._task is None
            and self._outbox.is_empty
            and not self._transport.is_closing()
        ):
            self._transport.close()
