"""TCP proxies between a worker and its services: they cut, freeze, delay, hold and swallow."""

from __future__ import annotations

import socket
import struct
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit, urlunsplit

import anyio
from anyio.abc import SocketAttribute

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import SocketStream

_CHUNK: Final = 65_536
BROKEN: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""The errors that mean that a connection has ended."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Link(ABC):
    """A way through to a service, that can be cut or frozen; an async context manager."""

    def __init__(self) -> None:
        self._passable = anyio.Event()
        self._passable.set()
        self._cut = False
        self._open: set[anyio.CancelScope] = set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._tasks.cancel_scope.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def cut(self) -> None:
        """Reset every connection, and each new one, until `heal`."""
        self._cut = True
        for connection in list(self._open):
            connection.cancel()

    def freeze(self) -> None:
        """Drop everything silently until `heal`, like a broken network."""
        if self._passable.is_set():
            self._passable = anyio.Event()

    def heal(self) -> None:
        """Let everything pass, frozen bytes first."""
        self._cut = False
        self._passable.set()

    async def listen(self, host: str, port: int) -> int:
        """Take connections for this address; returns the port of loopback that stands for it."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

        async def handle(client: SocketStream) -> None:
            await self._connect(client, host, port)

        async def serve() -> None:
            async with listener:
                await listener.serve(handle)

        self._tasks.start_soon(serve)
        return int(listener.extra(SocketAttribute.local_port))  # noqa: S610  no Django here

    @abstractmethod
    async def carry(self, client: SocketStream, server: SocketStream) -> None:
        """Pass bytes between the two until one of them ends; await `passable` before each piece."""

    async def passable(self) -> None:
        """Wait while the link is frozen."""
        await self._passable.wait()

    async def _connect(self, client: SocketStream, host: str, port: int) -> None:
        """Serve one connection to its end; then reset both sides."""
        try:
            with anyio.CancelScope() as scope:
                self._open.add(scope)
                await self.passable()
                if not self._cut:
                    await self._carry_on(client, host, port)
        finally:
            self._open.discard(scope)
            await _reset(client)

    async def _carry_on(self, client: SocketStream, host: str, port: int) -> None:
        try:
            server = await anyio.connect_tcp(host, port)
            try:
                await self.carry(client, server)
            finally:
                await _reset(server)
        except BROKEN:
            return


async def _reset(stream: SocketStream) -> None:
    """Close a connection so that unread bytes are lost."""
    raw = stream.extra(SocketAttribute.raw_socket, None)  # noqa: S610
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    with anyio.CancelScope(shield=True):
        await stream.aclose()


class HttpLink(Link):
    """A way to ClickHouse that knows what an INSERT is, and when it was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = 0
        """INSERTs that are being held."""
        self.dropped = 0
        """INSERTs that were written and whose answer was swallowed."""
        self._to_drop = 0
        self._delay = 0.0
        self._release: anyio.Event | None = None
        self._changed = anyio.Event()

    async def stand_in(self, url: str) -> str:
        """The URL that a client behind this link is to be given."""
        parts = urlsplit(url)
        port = await self.listen(parts.hostname or "127.0.0.1", parts.port or 8123)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))

    def drop_answers(self, count: int) -> None:
        """Let the next INSERTs be written, and close their connections before the answer."""
        self._to_drop = count

    def delay_answers(self, seconds: float) -> None:
        """Let each INSERT take so much longer; 0 ends it."""
        self._delay = seconds

    def hold_inserts(self) -> None:
        """Keep INSERTs on their way, until `release_inserts`; all else passes."""
        self._release = self._release or anyio.Event()

    def release_inserts(self) -> None:
        """Let the INSERTs that are held go on."""
        if self._release is not None:
            self._release.set()
            self._release = None

    def heal(self) -> None:
        """Let everything pass."""
        super().heal()
        self._to_drop, self._delay = 0, 0.0
        self.release_inserts()

    async def until_held(self) -> None:
        """Wait until an INSERT is being held."""
        while not self.holds:
            await self._changed.wait()

    async def until_dropped(self, count: int) -> None:
        """Wait until so many answers have been swallowed, since the beginning."""
        while self.dropped < count:
            await self._changed.wait()

    async def carry(self, client: SocketStream, server: SocketStream) -> None:
        exchange = _Exchange()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._requests, client, server, exchange, tasks.cancel_scope)
            await self._answers(client, server, exchange)
            tasks.cancel_scope.cancel()

    async def _requests(
        self,
        client: SocketStream,
        server: SocketStream,
        exchange: _Exchange,
        connection: anyio.CancelScope,
    ) -> None:
        try:
            while True:
                piece = await client.receive(_CHUNK)
                if piece.startswith((b"POST ", b"GET ")):
                    exchange.inserts = b"INSERT" in piece.partition(b"\r\n")[0]
                if exchange.inserts and self._release is not None:
                    await self._hold(self._release)
                await self.passable()
                await server.send(piece)
        except BROKEN:
            connection.cancel()

    async def _hold(self, release: anyio.Event) -> None:
        self.holds += 1
        self._wake()
        try:
            await release.wait()
        finally:
            self.holds -= 1

    async def _answers(
        self, client: SocketStream, server: SocketStream, exchange: _Exchange
    ) -> None:
        """Until the server closes, or an answer is to be dropped."""
        try:
            while True:
                piece = await server.receive(_CHUNK)
                if exchange.inserts and self._to_drop:
                    self._to_drop -= 1
                    self.dropped += 1
                    self._wake()
                    return
                if exchange.inserts and self._delay:
                    await anyio.sleep(self._delay)
                await self.passable()
                await client.send(piece)
        except BROKEN:
            return

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _Exchange:
    """The last request on a connection."""

    inserts = False
