"""Receive large responses in place: aiokafka's stream reader copies them several times, in small pieces.

A connection is switched to `ResponseReceiver` before its first request. A small response is then handled by
aiokafka as before; fetch responses are large.
"""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

import asyncio
import time
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka.conn import CloseReason

from ..formats.blocks import BLOCKS, SMALLEST

if TYPE_CHECKING:
    from ..formats.blocks import Block

_log = structlog.get_logger(__name__)

_SMALL: Final = 64 * 1024
"""Bytes of a response that is handled as aiokafka does it."""

_SIZE = Struct(">i")


class ResponseReceiver(asyncio.BufferedProtocol):
    """The protocol of a connection, in place of aiokafka's stream reader.

    Args:
        connection: aiokafka's. No response may be under way.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._replaced = connection._protocol
        self._small = memoryview(bytearray(_SIZE.size + _SMALL))
        self._large: Block | None = None
        self._filled = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong."""
        return (self._small if self._large is None else self._large.data.data)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the responses that are whole; an error closes the connection, as with aiokafka's reader."""
        self._filled += nbytes
        try:
            if self._large is None:
                self._cut()
            elif self._filled == len(self._large.data):
                response, self._large, self._filled = self._large, None, 0
                self._handle(response.data.data)
        except Exception as error:  # noqa: BLE001  a response may be damaged in any way
            _log.warning("a response of the broker cannot be read", reason=repr(error))
            self._connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)

    def eof_received(self) -> bool | None:
        kept: bool | None = self._replaced.eof_received()
        return kept

    def connection_lost(self, exc: Exception | None) -> None:
        """Let aiokafka's reader end."""
        self._replaced.connection_lost(exc)

    def pause_writing(self) -> None:
        self._replaced.pause_writing()

    def resume_writing(self) -> None:
        self._replaced.resume_writing()

    def _cut(self) -> None:
        """Handle the small responses of the buffer, and make room for a large one that has begun."""
        begin, end = 0, self._filled
        while end - begin >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._small, begin)
            start = begin + _SIZE.size
            if size < 0:
                raise ValueError(f"a response of {size} bytes")
            if size > _SMALL:
                self._large = BLOCKS.allocate(size)
                self._filled = end - start
                self._large.data.data[: self._filled] = self._small[start:end]
                return
            if end - start < size:
                break
            self._connection._handle_frame(bytes(self._small[start : start + size]))
            begin = start + size
        self._small[: end - begin] = self._small[begin:end]
        self._filled = end - begin

    def _handle(self, response: memoryview) -> None:
        """Do as `AIOKafkaConnection._handle_frame`, which would copy the response once more."""
        connection = self._connection
        correlation_id, request, future = connection._requests[0]
        source = _ResponseBytes(response)
        if (
            request is None
            or request.parse_response_header(source).correlation_id != correlation_id
        ):
            connection._handle_frame(bytes(response))
            return
        if not future.done():
            future.set_result(request.RESPONSE_TYPE.decode(source))
        connection._last_action = time.monotonic()
        connection._requests.popleft()


class _ResponseBytes:
    """What aiokafka decodes a response from."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def read(self, size: int | None = None) -> bytes | memoryview:
        """Return a copy of the next bytes; without `size`, of all that are left. Large ones are in blocks."""
        begin, self._at = self._at, len(self._data) if size is None else self._at + size
        copied = self._data[begin : self._at]
        if len(copied) < SMALLEST:
            return bytes(copied)
        block = BLOCKS.allocate(len(copied))
        block.data[:] = copied
        return memoryview(block.buffer).cast("B")


def receive_in_place(client: Any) -> None:
    """Let the connections that a client of aiokafka gets from now on receive so."""
    connect = client._get_conn

    async def connection_of(*args: Any, **options: Any) -> Any:
        connection = await connect(*args, **options)
        if connection is not None and connection.connected():
            transport = connection._writer.transport
            if not isinstance(transport.get_protocol(), ResponseReceiver):
                transport.set_protocol(ResponseReceiver(connection))
        return connection

    client._get_conn = connection_of
