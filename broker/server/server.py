"""The server: listens, accepts and limits connections, starts TLS, closes idle connections."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import anyio
import structlog

from kmr.service.logs import Repetition

from ..errors import BrokerError
from ..turns import in_turns
from .buffers import ReceiveMemory, RequestBuffers
from .connection import IPV4_MAPPED, Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from ..authorization.users import Users
    from ..listeners import Listener
    from ..operations.metrics import BrokerMetrics
    from ..settings import BrokerSettings
    from ..storage.group_commit import GroupCommit
    from ..supervision import Supervision
    from .dispatch import Dispatcher


logger = structlog.get_logger(__name__)

SWEEP_INTERVAL = 1.0
"""Seconds between two checks of all connections."""
_BACKLOG = 1024
_TLS_SHUTDOWN_TIMEOUT = 1.0  # seconds that a client has for its part of the TLS shutdown
_ACCEPTED_AT_ONCE = 100
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PASSWORD_CHECKS = 2  # at the same time


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket that does not listen yet; port 0 takes any free one. Raises BrokerError."""
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


class Endpoint(NamedTuple):
    """A listener with its socket; with `users` its clients must authenticate, with `tls` encrypt."""

    listener: Listener
    socket: socket.socket
    users: Users | None
    tls: ssl.SSLContext | None


class Limit(NamedTuple):
    """A setting that was reached."""

    setting: str
    value: int

    def __str__(self) -> str:
        return f"there are more than {self.setting} ({self.value})"


class Admission:
    """Counts connections: in total, from one address, and before authentication.

    Calls for each connection: `admit` once; if it returns None, `authenticated` at most once, then
    `closed` once.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._total = settings.max_connections
        self._per_address = settings.max_connections_per_address
        self._max_unauthenticated = settings.max_unauthenticated_connections
        self._addresses: Counter[str] = Counter()
        self.admitted = 0
        """Number of open connections."""
        self.unauthenticated = 0
        """Number of open connections that have not completed the TLS handshake or SASL."""

    def admit(self, address: str) -> Limit | None:
        """Count a new connection, or return the limit that refuses it without counting it."""
        if self.admitted >= self._total:
            return Limit("max_connections", self._total)
        if self._per_address is not None and self._addresses[address] >= self._per_address:
            return Limit("max_connections_per_address", self._per_address)
        if self.unauthenticated >= self._max_unauthenticated:
            return Limit("max_unauthenticated_connections", self._max_unauthenticated)
        self.admitted += 1
        self.unauthenticated += 1
        self._addresses[address] += 1
        return None

    def authenticated(self) -> None:
        """Note that a connection has authenticated, or need not."""
        self.unauthenticated -= 1

    def closed(self, address: str, *, authenticated: bool) -> None:
        """Stop counting a connection."""
        self.admitted -= 1
        self.unauthenticated -= not authenticated
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class Server:
    """Accepts connections, checks them for stalls, and closes them.

    Calls: `listen` for each endpoint, `watch_connections` in a task; `stop`, then `drain`, at the end.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        dispatcher: Dispatcher,
        group_commit: GroupCommit,
        metrics: BrokerMetrics,
    ) -> None:
        self.settings = settings
        self.dispatcher = dispatcher
        self.group_commit = group_commit
        self.metrics = metrics
        self.request_buffers = RequestBuffers(settings.request_memory_bytes)
        self.intake = ReceiveMemory(self.request_buffers, group_commit)
        self.password_checks = anyio.CapacityLimiter(_PASSWORD_CHECKS)
        self.admission = Admission(settings)
        self._refusals = Repetition()
        self.busy_connections = 0
        """Connections with more requests than their time in this turn of the loop; they share that time."""
        self._connections: set[Connection] = set()
        self._endpoints: list[Endpoint] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._all_closed = anyio.Event()

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over the open connections."""
        return iter(self._connections)

    def listen(self, endpoint: Endpoint) -> None:
        """Start to accept connections."""
        endpoint.socket.listen(_BACKLOG)
        self._endpoints.append(endpoint)
        self._watch(endpoint)

    async def watch_connections(self, supervisor: Supervision) -> None:
        """Close connections that stall or idle for too long, and accept again; run until cancelled."""
        await supervisor.repeat(
            "the check of listeners and idle connections",
            self._check_connections,
            every=SWEEP_INTERVAL,
        )

    async def _check_connections(self) -> None:
        for endpoint in self._endpoints:
            self._watch(endpoint)
        now = asyncio.get_running_loop().time()
        async for connection in in_turns(tuple(self._connections)):
            connection.check(now)

    def stop(self) -> None:
        """Stop accepting connections and requests; connections close after their last response."""
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            asyncio.get_running_loop().remove_reader(endpoint.socket)
            endpoint.socket.close()
        for opening in self._opening:
            # Not here: a task that has not started would not close its socket.
            asyncio.get_running_loop().call_soon(opening.cancel)
        for connection in tuple(self._connections):
            connection.finish()

    async def drain(self) -> None:
        """Wait after `stop` until all connections are closed; abort the rest at the timeout."""
        with anyio.move_on_after(self.settings.shutdown_timeout):
            if self._opening:
                await asyncio.wait(self._opening)
            while self._connections:
                self._all_closed = anyio.Event()
                await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort("the broker stops, and the client did not read its response in time")

    # -- accepting ---------------------------------------------------------------------------------

    def _accept(self, endpoint: Endpoint) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, address = endpoint.socket.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(error)
                return  # no connection is pending, or the client has closed it
            client.setblocking(False)  # noqa: FBT003
            self._admit(endpoint, client, str(address[0]).removeprefix(IPV4_MAPPED))

    def _watch(self, endpoint: Endpoint) -> None:
        """Have connections accepted, also after a pause.

        This is repeated because a listener can leave the loop's epoll set unnoticed: a forked process shares
        the set, and adding to it may fail.
        """
        loop = asyncio.get_running_loop()
        loop.remove_reader(endpoint.socket)
        loop.add_reader(endpoint.socket, self._accept, endpoint)

    def _pause_accepting(self, error: OSError) -> None:
        """Accept nothing until the next check of the listeners."""
        times = self._refusals.times(str(error))
        if times:
            logger.warning("cannot accept connections for now", reason=str(error), times=times)
        for endpoint in self._endpoints:
            asyncio.get_running_loop().remove_reader(endpoint.socket)

    def _admit(self, endpoint: Endpoint, client: socket.socket, host: str) -> None:
        refusal = self.admission.admit(host)
        if refusal is not None:
            self.metrics.connections_rejected.labels(refusal.setting).inc()
            times = self._refusals.times(refusal.setting)
            if times:
                logger.warning(
                    "connection refused", client_host=host, reason=str(refusal), times=times
                )
            client.close()
            return
        self.metrics.connections_accepted.inc()
        opening = asyncio.get_running_loop().create_task(self._open(endpoint, client, host))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, endpoint: Endpoint, client: socket.socket, host: str) -> None:
        """Run the TLS handshake if there is one, and start the protocol."""
        connection = Connection(self, endpoint.listener, endpoint.users, host)
        times: dict[str, float] = {}
        if endpoint.tls is not None:
            times["ssl_handshake_timeout"] = self.settings.authentication_timeout
            times["ssl_shutdown_timeout"] = _TLS_SHUTDOWN_TIMEOUT
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=endpoint.tls, **times
            )
        except OSError as error:
            if endpoint.tls is not None:
                why = str(error) or "the client closed it"
                reason = f"TLS handshake failed: {why}"
                logger.warning("connection closed", client_host=host, reason=reason)
                self.metrics.authentication_failures.labels("TLS").inc()
        finally:
            if not connection.was_opened:
                self.admission.closed(host, authenticated=False)

    def opened(self, connection: Connection) -> None:
        """Note a connection whose TLS handshake, if there is one, has succeeded."""
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget a connection that was opened."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()
