"""Headers of requests and responses."""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

from .cursor import Cursor, MalformedRequest

_FIXED = Struct(">hhih")
MIN_REQUEST_BYTES = _FIXED.size
"""API key, version, correlation id and the length of the client id: the shortest header."""

CORRELATION_ID_AT = 4
"""Where the correlation id of a request is, after the API key and version."""
CLIENT_ID_AT = 8
"""Where it ends, and the client id begins."""

LENGTH = Struct(">i")
"""Before each request and response: the number of bytes that follow."""
_RESPONSE = Struct(">ii")
_FLEXIBLE_RESPONSE = Struct(">iib")


class RequestHeader(NamedTuple):
    """The first fields of a request; `body` is the position of the message in a non-flexible version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: int


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read header version 1, with which version 2 begins. Raise MalformedRequest.

    In version 2, which the API and its version determine, tagged fields follow at `body`
    (`skip_header_tags`).
    """
    try:
        api_key, api_version, correlation_id, size = _FIXED.unpack_from(frame)
    except error:
        raise MalformedRequest(f"a request of {len(frame)} bytes has no header") from None
    at = MIN_REQUEST_BYTES
    if size <= 0:
        return RequestHeader(api_key, api_version, correlation_id, "", at)
    if at + size > len(frame):
        raise MalformedRequest(f"a client id of {size} bytes does not fit in the request")
    try:
        client_id = str(frame[at : at + size], "utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("the client id is not UTF-8") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, at + size)


def read_correlation_id(frame: memoryview) -> int:
    """Read the one field that differs in each request of a client; `frame` has a whole header."""
    correlation_id: int = LENGTH.unpack_from(frame, CORRELATION_ID_AT)[0]
    return correlation_id


def skip_header_tags(frame: memoryview, position: int) -> int:
    """Return the position of the message after the tagged fields of header version 2."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    cursor = Cursor(frame, position)
    cursor.skip_tagged_fields()
    return cursor.position


def response_frame_header(correlation_id: int, body_bytes: int, *, flexible: bool) -> bytes:
    """Return length, correlation id and, in flexible versions, an empty list of tagged fields."""
    if flexible:
        return _FLEXIBLE_RESPONSE.pack(body_bytes + 5, correlation_id, 0)
    return _RESPONSE.pack(body_bytes + 4, correlation_id)
