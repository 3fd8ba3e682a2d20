"""The fields of the records that coordinators keep, in the encoding of Kafka's internal topics."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["MalformedRecord", "RecordReader", "encode_string"]

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class MalformedRecord(Exception):
    """A record is not of a format that this version can read."""


def encode_string(value: str | None) -> bytes:
    """Bytes of a nullable string; raises `ValueError` if they are more than 32,767."""
    if value is None:
        return _INT16.pack(-1)
    data = value.encode()
    if len(data) > 0x7FFF:
        raise ValueError(f"a name of {len(data)} bytes; at most 32767 can be stored")
    return _INT16.pack(len(data)) + data


class RecordReader:
    """Reads fields one after the other; raises `MalformedRecord` where there is none."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int8(self) -> int:
        return int(_INT8.unpack(self._take(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(8))[0])

    def blob(self) -> bytes:
        return self._take(self.int32())

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedRecord(f"no name at byte {self._at}")
        return value

    def nullable_string(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"a name at byte {self._at} is not UTF-8") from error

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedRecord(f"{size} bytes at byte {self._at} of {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken
