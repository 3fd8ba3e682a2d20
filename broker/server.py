"""The listening socket and all connections: accepted, counted, timed out, closed."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

import anyio
import structlog

from broker.buffers import BufferPool
from broker.connection import Connection
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.appends import Appends
    from broker.dispatch import Dispatcher
    from broker.settings import BrokerSettings

__all__ = ["Server", "bind"]

logger = structlog.get_logger(__name__)

_SWEEP_INTERVAL = 1.0
_BACKLOG = 1024


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

    def __init__(self, settings: BrokerSettings, dispatcher: Dispatcher, appends: Appends) -> None:
        self._settings = settings
        self._dispatcher = dispatcher
        self._appends = appends
        self._request_buffers = BufferPool(settings.request_memory_bytes)
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._all_closed = anyio.Event()

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._new_connection, sock=listener, backlog=_BACKLOG
        )

    async def watch_connections(self) -> None:
        """Close connections that stall or idle for too long; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await anyio.sleep(_SWEEP_INTERVAL)
            for connection in tuple(self._connections):
                connection.check(loop.time())

    def stop(self) -> None:
        """Accept no more connections and requests; connections close when they have answered."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.finish()

    async def drain(self) -> None:
        """After `stop`: wait until all connections are closed; aborts them at the timeout."""
        with anyio.move_on_after(self._settings.shutdown_timeout):
            while self._connections:
                self._all_closed = anyio.Event()
                await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort("the broker stops, and the client did not take its response in time")

    # -- for connections ---------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._settings.max_connections:
            connection.abort(
                f"there are more than max_connections ({self._settings.max_connections})"
            )

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _new_connection(self) -> Connection:
        return Connection(
            self,
            self._dispatcher,
            self._appends,
            self._request_buffers,
            self._settings,
        )
