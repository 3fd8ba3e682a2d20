"""A proxy for Kafka: brokers tell clients where to connect, so the addresses in their answers change too.

Works with any broker or cluster and any advertised address, as long as the connection is not encrypted.
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from struct import pack, unpack, unpack_from
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from kio.index import load_response_schema
from kio.serial import entity_reader, entity_writer

from chaos.proxies import Link

if TYPE_CHECKING:
    from anyio.abc import SocketStream

_METADATA: Final = 3
_FIND_COORDINATOR: Final = 10
_DESCRIBE_CLUSTER: Final = 60
_WITH_ADDRESSES: Final = (_METADATA, _FIND_COORDINATOR, _DESCRIBE_CLUSTER)
_ENDED: Final = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)


class KafkaLink(Link):
    """One way through to every broker of a cluster."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__()
        self._upstream = bootstrap_servers
        self._ports: dict[tuple[str, int], int] = {}

    async def bootstrap_servers(self) -> str:
        """The response that a client behind this link receives."""
        addresses = (part.strip().rpartition(":") for part in self._upstream.split(","))
        ports = [await self._stand_in(host, int(port)) for host, _, port in addresses]
        return ",".join(f"127.0.0.1:{port}" for port in ports)

    async def carry(self, client: SocketStream, server: SocketStream) -> None:
        asked: dict[int, tuple[int, int]] = {}
        async with anyio.create_task_group() as tasks:

            async def requests() -> None:
                try:
                    await self._requests(client, server, asked)
                except _ENDED:
                    tasks.cancel_scope.cancel()

            tasks.start_soon(requests)
            try:
                await self._responses(client, server, asked)
            except _ENDED:
                tasks.cancel_scope.cancel()

    async def _requests(
        self, client: SocketStream, server: SocketStream, asked: dict[int, tuple[int, int]]
    ) -> None:
        stream = BufferedByteReceiveStream(client)
        while True:
            frame = await _frame(stream)
            key, version, correlation_id = unpack_from(">hhi", frame)
            if key in _WITH_ADDRESSES:
                asked[correlation_id] = key, version
            await self.passable()
            await server.send(pack(">i", len(frame)) + frame)

    async def _responses(
        self, client: SocketStream, server: SocketStream, asked: dict[int, tuple[int, int]]
    ) -> None:
        stream = BufferedByteReceiveStream(server)
        while True:
            frame = await _frame(stream)
            request = asked.pop(unpack_from(">i", frame)[0], None)
            if request is not None:
                frame = await self._with_our_addresses(frame, *request)
            await self.passable()
            await client.send(pack(">i", len(frame)) + frame)

    async def _with_our_addresses(self, frame: bytes, key: int, version: int) -> bytes:
        schema = load_response_schema(key, version)
        header, at = entity_reader(schema.__header_schema__)(frame, 0)
        response: Any
        response, _ = entity_reader(schema)(frame, at)
        if key == _FIND_COORDINATOR and version < 4:
            response = await self._moved(response)
        else:
            lists = "coordinators" if key == _FIND_COORDINATOR else "brokers"
            moved = [await self._moved(node) for node in getattr(response, lists)]
            response = replace(response, **{lists: tuple(moved)})
        out = BytesIO()
        entity_writer(schema.__header_schema__)(out, header)
        entity_writer(schema)(out, response)
        return out.getvalue()

    async def _moved(self, node: Any) -> Any:
        """A broker, or a response that names one, at our address; one without an address as it is."""
        if node.port <= 0:
            return node
        port = await self._stand_in(node.host, node.port)
        return replace(node, host="127.0.0.1", port=type(node.port)(port))

    async def _stand_in(self, host: str, port: int) -> int:
        if (host, port) not in self._ports:
            self._ports[host, port] = await self.listen(host, port)
        return self._ports[host, port]


async def _frame(stream: BufferedByteReceiveStream) -> bytes:
    (size,) = unpack(">i", await stream.receive_exactly(4))
    return await stream.receive_exactly(size)
