"""The sparse index of a segment: from offsets and timestamps to where to begin reading.

Its two files, `.index` and `.timeindex`, are written when the segment is complete or the log is
closed. They can be rebuilt from the segment, so a missing, damaged or outdated one does no harm.
"""

from __future__ import annotations

import bisect
import struct
from typing import TYPE_CHECKING, Final

from broker.log.errors import LogCorrupt
from broker.log.files import read_sealed, write_sealed

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["INDEX_SUFFIXES", "UNKNOWN_TIMESTAMP", "SegmentIndex"]

INDEX_SUFFIXES: Final = (".index", ".timeindex")
UNKNOWN_TIMESTAMP: Final = 2**63 - 1
"""Latest timestamp of a segment with damage, in which any timestamp may hide."""
_ENTRY: Final = struct.Struct(">qq")
_SEGMENT: Final = struct.Struct(">qqq")  # base offset, next offset, bytes: what it belongs to


class _SparseTable:
    """Pairs of integers whose first element strictly increases; 16 bytes each."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def append(self, key: int, value: int) -> None:
        self.data += _ENTRY.pack(key, value)

    def floor(self, key: int) -> tuple[int, int] | None:
        """The pair with the greatest first element that is not above `key`."""
        count = len(self.data) // _ENTRY.size
        at = bisect.bisect_right(range(count), key, key=lambda i: self._pair(i)[0])
        return self._pair(at - 1) if at else None

    def last(self) -> tuple[int, int] | None:
        return self._pair(len(self.data) // _ENTRY.size - 1) if self.data else None

    def pairs(self) -> list[tuple[int, int]]:
        return [self._pair(at) for at in range(len(self.data) // _ENTRY.size)]

    def _pair(self, index: int) -> tuple[int, int]:
        key, value = _ENTRY.unpack_from(self.data, index * _ENTRY.size)
        return key, value


class SegmentIndex:
    """Every few kilobytes of a segment: offset -> position, and timestamp -> offset.

    An entry `(timestamp, offset)` says that no batch before `offset` has a later timestamp.
    """

    def __init__(self, base_offset: int, offsets: bytes = b"", times: bytes = b"") -> None:
        self._base_offset = base_offset
        self._offsets = _SparseTable(offsets)
        self._times = _SparseTable(times)
        last_offset, last_time = self._offsets.last(), self._times.last()
        self._indexed_position = last_offset[1] if last_offset else 0
        self._indexed_timestamp = last_time[0] if last_time else -1
        self.max_timestamp = self._indexed_timestamp
        """Latest timestamp of the segment's batches, -1 if none has one."""

    def add(self, offset: int, position: int, timestamp: int, interval_bytes: int) -> None:
        """Takes note of the next batch; `timestamp` is its latest."""
        if position - self._indexed_position > interval_bytes:
            self.mark(offset, position)
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    def mark(self, offset: int, position: int) -> None:
        """Makes an entry: the batch at `position` begins with `offset`."""
        self._offsets.append(offset, position)
        self._indexed_position = position
        self._add_time(offset)

    def entries(self) -> list[tuple[int, int]]:
        """`(offset, position)` of the batches that are indexed."""
        return self._offsets.pairs()

    def position_before(self, offset: int) -> tuple[int, int]:
        """`(offset, position)` of an indexed batch that does not begin after `offset`."""
        return self._offsets.floor(offset) or (self._base_offset, 0)

    def offset_before(self, timestamp: int) -> int:
        """An offset before which no record has this timestamp or a later one."""
        entry = self._times.floor(timestamp - 1)
        return entry[1] if entry else self._base_offset

    def save(self, log_path: Path, *, log_size: int, next_offset: int) -> None:
        """Writes both files; the segment has `log_size` bytes and ends before `next_offset`."""
        self._add_time(next_offset)
        segment = _SEGMENT.pack(self._base_offset, next_offset, log_size)
        for suffix, table in zip(INDEX_SUFFIXES, (self._offsets, self._times), strict=True):
            write_sealed(log_path.with_suffix(suffix), segment + table.data, durable=False)

    @classmethod
    def load(
        cls, log_path: Path, base_offset: int, *, log_size: int, next_offset: int
    ) -> SegmentIndex | None:
        """The saved index, or None if there is none of just this segment."""
        tables, segment = [], _SEGMENT.pack(base_offset, next_offset, log_size)
        for suffix in INDEX_SUFFIXES:
            try:
                payload = read_sealed(log_path.with_suffix(suffix))
            except LogCorrupt:
                return None
            if payload is None or not payload.startswith(segment):
                return None
            tables.append(payload[_SEGMENT.size :])
        return cls(base_offset, *tables)

    def _add_time(self, offset: int) -> None:
        if self.max_timestamp > self._indexed_timestamp:
            self._times.append(self.max_timestamp, offset)
            self._indexed_timestamp = self.max_timestamp
