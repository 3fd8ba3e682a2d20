"""A client that sends and receives raw protocol messages."""

import asyncio
from contextlib import suppress
from dataclasses import fields
from functools import cache
from io import BytesIO
from struct import pack, unpack
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from kmr.broker.protocol.messages import default_message, entity_in

__all__ = ["RawClient", "build", "request_type", "response_type"]

request_type = cache(load_request_schema)  # kio looks them up by their names each time
response_type = cache(load_response_schema)


def build(entity_type: Any, values: dict[str, Any]) -> Any:
    """An entity of kio from plain data; raises KeyError for fields that it does not have."""
    entities, defaults = _fields(entity_type)
    return entity_type(**{**defaults, **{k: _value(entities[k], v) for k, v in values.items()}})


def _value(entity_type: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple([_value(entity_type, each) for each in value])
    return build(entity_type, value) if isinstance(value, dict) else value


@cache
def _fields(entity_type: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entities in the fields of an entity, and the fields' defaults, by name."""
    entities = {field.name: entity_in(field.type) for field in fields(entity_type)}
    default = default_message(entity_type)
    return entities, {name: getattr(default, name) for name in entities}


class RawClient:
    """One connection. Messages are written and read by kio alone, none of the broker's code."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    @classmethod
    async def connect(cls, address: str) -> Self:
        """A connection to `host:port`."""
        host, port = address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port), limit=2**26))

    def message(self, key: int, version: int, /, **fields: Any) -> Any:
        """Build a request; nested entities are dictionaries, other fields get their defaults."""
        return build(request_type(key, version), fields)

    async def call(self, key: int, version: int, /, **fields: Any) -> Any:
        """`ask` a `message`."""
        return await self.ask(self.message(key, version, **fields))

    async def ask(self, request: Any) -> Any:
        """Send one request and wait for its response."""
        correlation_id = await self.send(request)
        return await self.receive(request, correlation_id)

    async def send(self, request: Any) -> int:
        """Send one request; returns its correlation id."""
        self._correlation_id += 1
        await self.send_bytes(self.frame(request, self._correlation_id))
        return self._correlation_id

    def frame(self, request: Any, correlation_id: int) -> bytes:
        """The bytes of a request, its length included."""
        out = BytesIO()
        header_type = request.__header_schema__
        header = header_type(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=correlation_id,
            client_id="raw",
        )
        entity_writer(header_type)(out, header)
        entity_writer(type(request))(out, request)
        return pack(">i", out.tell()) + out.getvalue()

    async def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, request: Any, correlation_id: int) -> Any:
        """Wait for the response to `request`."""
        frame = await self.receive_frame()
        answer_type: Any = response_type(request.__api_key__, request.__version__)
        header, at = entity_reader(answer_type.__header_schema__)(frame, 0)
        assert header.correlation_id == correlation_id
        response, size = entity_reader(answer_type)(frame, at)
        assert at + size == len(frame)
        return response

    async def receive_frame(self) -> bytes:
        (size,) = unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def is_closed_by_broker(self) -> bool:
        """Wait until the broker closes the connection; false if it sends something before."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
