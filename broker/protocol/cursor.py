"""Read protocol primitives from a buffer without copying it.

kio reads most messages. This reads what comes before the message's type is known (the request header), and
produce requests, whose records kio would copy.
Source: https://kafka.apache.org/protocol#protocol_types, KIP-482 (compact types, tagged fields).
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from uuid import UUID

MAX_ELEMENTS: Final = 20_000
"""Usual limit of the elements of all arrays, and of the tagged fields, of one request together. Clients name
each partition once, with its topic: brokers of more partitions have a larger limit."""

_NULL = -1
_INT8 = Struct(">b").unpack_from
_INT16 = Struct(">h").unpack_from
_INT32 = Struct(">i").unpack_from
_INT64 = Struct(">q").unpack_from


class MalformedRequest(Exception):
    """The bytes are not a request of the version in its header."""


class TooManyElements(MalformedRequest):
    """The request has more elements than the cursor may read."""


class Cursor:
    """A position in `view` that moves forward with every read, and counts elements up to `max_elements`.

    `compact` selects the encoding of flexible versions: lengths as unsigned varints plus one. Every method
    raises MalformedRequest instead of reading beyond the end.
    """

    __slots__ = ("_elements", "_end", "_max_elements", "_view", "position")

    def __init__(
        self, view: memoryview, position: int = 0, max_elements: int = MAX_ELEMENTS
    ) -> None:
        self._view = view
        self._end = len(view)
        self._elements = 0
        self._max_elements = max_elements
        self.position = position

    def int8(self) -> int:
        at = self._advance(1)
        return int(_INT8(self._view, at)[0])

    def int16(self) -> int:
        at = self._advance(2)
        return int(_INT16(self._view, at)[0])

    def int32(self) -> int:
        at = self._advance(4)
        return int(_INT32(self._view, at)[0])

    def int64(self) -> int:
        at = self._advance(8)
        return int(_INT64(self._view, at)[0])

    def uuid(self) -> UUID:
        at = self._advance(16)
        return UUID(bytes=bytes(self._view[at : at + 16]))

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._view[self._advance(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedRequest("an unsigned varint is longer than 5 bytes")

    def string(self, *, compact: bool) -> str | None:
        size = self.uvarint() - 1 if compact else self.int16()
        if size < 0:
            _check_null(size)
            return None
        at = self._advance(size)
        try:
            return str(self._view[at : at + size], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"a string is not UTF-8: {error}") from None

    def data(self, *, compact: bool) -> memoryview | None:
        """Return bytes as a view of the buffer; None for null."""
        size = self.uvarint() - 1 if compact else self.int32()
        if size < 0:
            _check_null(size)
            return None
        at = self._advance(size)
        return self._view[at : at + size]

    def array_length(self, *, compact: bool, nullable: bool = True) -> int:
        """Return the number of elements, at most the number of bytes left; 0 for null."""
        length = self.uvarint() - 1 if compact else self.int32()
        if length > self._end - self.position:
            raise MalformedRequest(f"an array of {length} elements does not fit in the request")
        if length < 0:
            _check_null(length)
            if not nullable:
                raise MalformedRequest("an array is null that must not be")
            return 0
        self._count(length)
        return length

    def tag_count(self) -> int:
        """Return the number of tagged fields that follow."""
        count = self.uvarint()
        self._count(count)
        return count

    def skip(self, size: int) -> None:
        self._advance(size)

    def skip_tagged_fields(self) -> None:
        for _ in range(self.tag_count()):
            self.uvarint()
            self.skip(self.uvarint())

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > self._max_elements:
            raise TooManyElements(f"it has more than {self._max_elements} elements")

    def _advance(self, size: int) -> int:
        at = self.position
        position = at + size
        if position > self._end:
            raise MalformedRequest(f"the request ends {position - self._end} bytes too early")
        self.position = position
        return at


def _check_null(length: int) -> None:
    if length != _NULL:
        raise MalformedRequest(f"the length {length} is negative, and not -1 for null")


def uvarint_bytes(value: int) -> int:
    """Return the number of bytes that `write_uvarint` adds."""
    return max(1, (value.bit_length() + 6) // 7)


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
