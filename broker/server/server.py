"""The listening socket and all connections: accepted, counted, encrypted, timed out, closed."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

import anyio
import structlog

from broker.errors import BrokerError
from broker.health.progress import unwatched
from broker.server.connection import IPV4_MAPPED, Connection
from service.repetition import Repetition

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from broker.buffers import BufferPool
    from broker.security.admission import Admission
    from broker.server.shared import Shared

__all__ = ["SWEEP_INTERVAL", "Server", "bind"]

logger = structlog.get_logger(__name__)

SWEEP_INTERVAL = 1.0
"""Seconds between two looks at all connections."""
_BACKLOG = 1024
_TLS_GOODBYE = 1.0  # seconds that a client has to answer that it knows of the end
_ACCEPTED_AT_ONCE = 100
_ACCEPT_PAUSE = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, not yet accepting; port 0: any free one. Raises BrokerError."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BrokerError(f"cannot listen on {host!r}: {error}") from error
    family, kind, protocol, _, address = infos[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)  # noqa: FBT003
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BrokerError(
                f"port {port} on {host} is in use by another program; choose another port, or 0 for"
                " any free one"
            ) from error
        raise BrokerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


class Server:
    """Accepts connections and looks after them."""

    def __init__(self, shared: Shared, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what connections are encrypted by."""
        self._shared = shared
        self._settings = shared.settings
        self._metrics = shared.metrics
        self._tls = tls
        self._refusals = Repetition()
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._all_closed = anyio.Event()

    def __iter__(self) -> Iterator[Connection]:
        """The connections that are open."""
        return iter(self._connections)

    @property
    def admission(self) -> Admission:
        """How many connections there are, and how many of them have not shown who they are."""
        return self._shared.admission

    @property
    def request_buffers(self) -> BufferPool:
        """What requests are received into."""
        return self._shared.request_buffers

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from now on."""
        listener.listen(_BACKLOG)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def watch_connections(self, beat: Callable[[], None] = unwatched) -> None:
        """Close connections that stall or idle for too long; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await anyio.sleep(SWEEP_INTERVAL)
            beat()
            for connection in tuple(self._connections):
                connection.check(loop.time())

    def stop(self) -> None:
        """Accept no more connections and requests; connections close when they have answered."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for opening in self._opening:
            # Not at once: one that has not begun would not close its socket.
            asyncio.get_running_loop().call_soon(opening.cancel)
        for connection in tuple(self._connections):
            connection.finish()

    async def drain(self) -> None:
        """After `stop`: wait until all connections are closed; aborts them at the timeout."""
        with anyio.move_on_after(self._settings.shutdown_timeout):
            if self._opening:
                await asyncio.wait(self._opening)
            while self._connections:
                self._all_closed = anyio.Event()
                await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort("the broker stops, and the client did not take its response in time")

    # -- accepting ---------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, address = listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(error)
                return  # else it was closed before we came to it, or there is none
            client.setblocking(False)  # noqa: FBT003
            self._admit(client, str(address[0]).removeprefix(IPV4_MAPPED))

    def _pause_accepting(self, error: OSError) -> None:
        logger.warning("no more connections can be accepted for now", reason=str(error))
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            loop.remove_reader(self._listener)
            loop.call_later(_ACCEPT_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _admit(self, client: socket.socket, host: str) -> None:
        refusal = self.admission.admit(host)
        if refusal is not None:
            self._metrics.connections_rejected.labels(refusal.setting).inc()
            times = self._refusals.times(refusal.setting)
            if times:
                logger.warning(
                    "connection refused", client_host=host, reason=str(refusal), times=times
                )
            client.close()
            return
        self._metrics.connections_accepted.inc()
        opening = asyncio.get_running_loop().create_task(self._open(client, host))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket, host: str) -> None:
        """Encrypt a connection if need be, and hand it over."""
        connection = Connection(
            self._shared, host, on_open=self._connections.add, on_close=self._closed
        )
        times: dict[str, float] = {}
        if self._tls is not None:
            times["ssl_handshake_timeout"] = self._settings.authentication_timeout
            times["ssl_shutdown_timeout"] = _TLS_GOODBYE
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, **times
            )
        except OSError as error:
            if self._tls is not None:
                why = str(error) or "the client closed it"
                reason = f"no TLS connection came about: {why}"
                logger.warning("connection closed", client_host=host, reason=reason)
                self._metrics.authentication_failures.labels("TLS").inc()
        finally:
            if not connection.was_made:
                self.admission.left(host, settled=False)

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()
