"""Messages of kio over aiokafka's connections, for versions that aiokafka lacks.

kio takes a tenth of a second to import, so this module is imported where a request is made, not at the start.
"""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from typing import Any

from aiokafka.protocol.api import (
    RequestHeader_v1,
    RequestHeader_v2,
    ResponseHeader_v0,
    ResponseHeader_v1,
)
from kio.serial import entity_reader, entity_writer


class KioRequest:
    """A request of aiokafka's clients, in exactly the version of its message; the answer is kio's, too.

    It is also the request's form on the wire, which aiokafka asks for by `prepare`.
    """

    def __init__(self, message: Any) -> None:
        kind = type(message)
        self._message = message
        self._flexible = bool(kind.__flexible__)
        self.API_KEY = int(kind.__api_key__)
        self.API_VERSION = int(kind.__version__)
        self.RESPONSE_TYPE = self

    def prepare(self, versions: dict[int, tuple[int, int]]) -> KioRequest:
        """Return itself. Raises NotImplementedError if the broker does not have the version."""
        low, high = versions.get(self.API_KEY, (0, -1))
        if not low <= self.API_VERSION <= high:
            name = type(self._message).__name__
            raise NotImplementedError(
                f"{name}: the broker has versions {low} to {high}, not {self.API_VERSION}"
            )
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> Any:
        """Return the header."""
        header = RequestHeader_v2 if self._flexible else RequestHeader_v1
        return header(self, correlation_id=correlation_id, client_id=client_id)

    def parse_response_header(self, buffer: BytesIO) -> Any:
        """Read the header of the answer."""
        return (ResponseHeader_v1 if self._flexible else ResponseHeader_v0).decode(buffer)

    def encode(self) -> bytes:
        """Return the bytes of the message."""
        buffer = BytesIO()
        entity_writer(type(self._message))(buffer, self._message)
        return buffer.getvalue()

    def decode(self, buffer: BytesIO) -> Any:
        """Read the answer's message."""
        kind = type(self._message)
        module = import_module(kind.__module__.removesuffix("request") + "response")
        answer = getattr(module, kind.__name__.removesuffix("Request") + "Response")
        return entity_reader(answer)(memoryview(buffer.read()), 0)[0]
