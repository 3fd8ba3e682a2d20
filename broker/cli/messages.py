"""Requests that aiokafka has no classes for, in kio's messages, sent through aiokafka's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from broker.cli.errors import CommandError
from broker.wire.messages import default_message, entity_in, write_message

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BytesIO

    from aiokafka.protocol.api import Response

__all__ = ["Message", "element"]


class Message:
    """One request in one version; stands where aiokafka's client wants a request of its own."""

    def __init__(
        self, key: int, version: int, *, response: type[Response] | None = None, **values: object
    ) -> None:
        """`values`: the fields; those that are left out have their defaults.

        `response`: aiokafka's class for what kio cannot read.
        """
        self.API_KEY = key
        self.API_VERSION = version
        self.RESPONSE_TYPE = response or _Response(load_response_schema(key, version))
        self._response_header = load_response_schema(key, version).__header_schema__
        self._type: Any = load_request_schema(key, version)
        self._message = default_message(self._type, **values)

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Message:
        """Called with the versions that a broker serves. Raises CommandError."""
        low, high = versions.get(self.API_KEY, (0, -1))
        if not low <= self.API_VERSION <= high:
            name = self._type.__name__.removesuffix("Request")
            raise CommandError(f"the cluster does not serve {name} (version {self.API_VERSION})")
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _Encoded:
        header = default_message(
            self._type.__header_schema__,
            request_api_key=self.API_KEY,
            request_api_version=self.API_VERSION,
            correlation_id=correlation_id,
            client_id=client_id,
        )
        return _Encoded(write_message(header))

    def encode(self) -> bytes:
        return write_message(self._message)

    def parse_response_header(self, data: BytesIO) -> Any:
        return _read(self._response_header, data)


class _Encoded:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def encode(self) -> bytes:
        return self._data


class _Response:
    """Reads the response."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def decode(self, data: BytesIO) -> Any:
        return _read(self._schema, data)


def _read(schema: Any, data: BytesIO) -> Any:
    """The next entity of a stream."""
    at = data.tell()
    entity, size = entity_reader(schema)(data.getvalue(), at)
    data.seek(at + size)
    return entity


def element(key: int, version: int, *path: str, **values: object) -> Any:
    """An element of the list that `path` leads to in this request."""
    schema: Any = load_request_schema(key, version)
    for name in path:
        schema = entity_in(schema.__dataclass_fields__[name].type)
    return default_message(schema, **values)
