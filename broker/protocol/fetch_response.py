"""Fetch responses, versions 4 to 18, written by hand into one buffer.

The records are read from the log directly into their place in the response.
Version 5 added the log start offset, 7 sessions, 11 the preferred replica, 12 compact types,
13 topic ids. Later versions differ for replicas only, and in optional tagged fields.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from .cursor import uvarint_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .produce_frames import TopicKey


Shown: TypeAlias = tuple[int, int, int]
"""What a response says about a partition: high watermark, last stable offset, log start offset."""

ABORTED_TRANSACTION_BYTES = 17
"""The largest size of one entry in the list of aborted transactions."""

FETCH_HEADROOM = 9
"""Bytes before the body that are reserved for the frame's length and header."""

_THROTTLE_V4 = Struct(">i")
_THROTTLE_ERROR_SESSION_V7 = Struct(">ihi")
_HEAD_V7 = Struct(">ihii")  # throttle time, error, session, and the number of topics
# A partition before its records: those fields, aborted transactions, preferred replica.
_PARTITION_V4 = Struct(">ihqqi")
_PARTITION_V5 = Struct(">ihqqqi")
_PARTITION_V11 = Struct(">ihqqqii")
_PARTITION_V12 = Struct(">ihqqqBi")
_BEFORE_ABORTED_V4 = 22
_BEFORE_ABORTED_V5 = 30
# A partition without records: those fields, aborted transactions, preferred replica, records, tagged fields.
_EMPTY_V4 = Struct(">ihqqii")
_EMPTY_V5 = Struct(">ihqqqii")
_EMPTY_V11 = Struct(">ihqqqiii")
_EMPTY_V12 = Struct(">ihqqqBiBB")
_INT32 = Struct(">i")
_INT16 = Struct(">h")
_ABORTED = Struct(">qq")
_FIXED_OVERHEAD = FETCH_HEADROOM + 32
_TOPIC_OVERHEAD = 16
_PARTITION_OVERHEAD = 64
_NO_PREFERRED_REPLICA = -1
_ID_BYTES = 16
_LETTER = 4  # bytes of UTF-8 at most


def fetch_response_overhead(
    topics: Sequence[tuple[TopicKey, Sequence[object]]], partitions: int
) -> int:
    """Return an upper bound of the bytes of a response that are not records."""
    size = _FIXED_OVERHEAD + partitions * _PARTITION_OVERHEAD
    for name, _ in topics:
        size += _TOPIC_OVERHEAD + (_ID_BYTES if isinstance(name, UUID) else _LETTER * len(name))
    return size


class FetchResponseWriter:
    """Writes one response into `buffer`.

    Calls: for each topic `topic`; for each of its partitions `empty_partition`, or `partition`,
    `begin_records` and `end_records`; after the last partition `end_topic`; finally `end`. Resetting
    `position` to its value before a partition discards that partition.
    """

    _length_bytes = 4
    _aborted_at = FETCH_HEADROOM

    def __init__(
        self, buffer: memoryview, version: int, topics: int, error: int = 0, session_id: int = 0
    ) -> None:
        self._buffer = buffer
        self._version = version
        self._compact = version >= 12
        self.position = FETCH_HEADROOM
        if not self._compact and version >= 7:
            self._pack(_HEAD_V7, 0, error, session_id, topics)
            return
        if self._compact:
            self._pack(_THROTTLE_ERROR_SESSION_V7, 0, error, session_id)
        else:
            self._pack(_THROTTLE_V4, 0)
        self._count(topics)

    def topic(self, name: TopicKey, partitions: int) -> None:
        """Begin a topic, named by its id from version 13 on."""
        if not self._compact and isinstance(name, str):
            encoded = name.encode()
            self._bytes(_INT16.pack(len(encoded)) + encoded + _INT32.pack(partitions))
            return
        if isinstance(name, UUID):
            encoded = name.bytes
        else:
            encoded = name.encode()
            self._uvarint(len(encoded) + 1)
        self._bytes(encoded)
        self._count(partitions)

    def partition(self, index: int, shown: Shown, *, read_committed: bool = False) -> None:
        high_watermark, last_stable_offset, log_start_offset = shown
        fields = (index, 0, high_watermark, last_stable_offset)
        # Aborted transactions: a list for read_committed, else null.
        aborted = 0 if read_committed else -1
        version = self._version
        if version < 5:
            self._aborted_at = self.position + _BEFORE_ABORTED_V4
            self._pack(_PARTITION_V4, *fields, aborted)
            return
        self._aborted_at = self.position + _BEFORE_ABORTED_V5
        if self._compact:
            replica = _NO_PREFERRED_REPLICA
            self._pack(_PARTITION_V12, *fields, log_start_offset, aborted + 1, replica)
        elif version >= 11:
            self._pack(_PARTITION_V11, *fields, log_start_offset, aborted, _NO_PREFERRED_REPLICA)
        else:
            self._pack(_PARTITION_V5, *fields, log_start_offset, aborted)

    def empty_partition(
        self,
        index: int,
        shown: Shown = (-1, -1, -1),
        *,
        error: int = 0,
        read_committed: bool = False,
    ) -> None:
        """Write a partition with empty records rather than null, which not every client understands."""
        high_watermark, last_stable_offset, log_start_offset = shown
        fields = (index, error, high_watermark, last_stable_offset)
        if self._compact:
            aborted = 1 if read_committed else 0
            replica = _NO_PREFERRED_REPLICA
            self._pack(_EMPTY_V12, *fields, log_start_offset, aborted, replica, 1, 0)
            return
        aborted = 0 if read_committed else -1
        if self._version >= 11:
            self._pack(_EMPTY_V11, *fields, log_start_offset, aborted, _NO_PREFERRED_REPLICA, 0)
        elif self._version >= 5:
            self._pack(_EMPTY_V5, *fields, log_start_offset, aborted, 0)
        else:
            self._pack(_EMPTY_V4, *fields, aborted, 0)

    def begin_records(self, max_bytes: int) -> memoryview:
        """Return the place for up to `max_bytes` of records; `end_records` takes their actual size."""
        if self._compact:
            self._length_bytes = uvarint_bytes(max_bytes + 1)
        start = self.position + self._length_bytes
        return self._buffer[start : start + max_bytes]

    def end_records(self, size: int, aborted: Sequence[tuple[int, int]] = ()) -> None:
        """Finish a partition with `size` bytes of records and its aborted transactions.

        `aborted` has producer id and first offset of each. The list is inserted before the records, which
        are moved: the caller leaves ABORTED_TRANSACTION_BYTES free for each entry, and for their count.
        """
        if aborted:
            self._insert_aborted(aborted, size)
        if not self._compact:
            _INT32.pack_into(self._buffer, self.position, size)
            self.position += _INT32.size + size
            return
        start = self.position + self._length_bytes
        self._uvarint(size + 1)
        if self.position != start:  # the length takes fewer bytes than were reserved
            self._buffer[self.position : self.position + size] = self._buffer[start : start + size]
        self.position += size
        self._no_tags()

    def _insert_aborted(self, aborted: Sequence[tuple[int, int]], size: int) -> None:
        old = self.position + self._length_bytes
        records = self._buffer[old : old + size]
        entries = bytearray()
        for each in aborted:
            entries += _ABORTED.pack(*each) + (b"\0" if self._compact else b"")
        grown = len(entries) + self._count_bytes(len(aborted)) - self._count_bytes(0)
        self._buffer[old + grown : old + grown + size] = records
        self.position = self._aborted_at
        self._count(len(aborted))
        self._bytes(entries)
        self._preferred_replica()

    def end_topic(self) -> None:
        if self._compact:
            self._no_tags()

    def end(self) -> memoryview:
        """Return the response, with its headroom."""
        if self._compact:
            self._no_tags()
        return self._buffer[: self.position]

    def _preferred_replica(self) -> None:
        if self._version >= 11:
            self._pack(_INT32, _NO_PREFERRED_REPLICA)

    def _no_tags(self) -> None:
        self._buffer[self.position] = 0
        self.position += 1

    def _count(self, count: int) -> None:
        if self._compact:
            self._uvarint(count + 1)
        else:
            self._pack(_INT32, count)

    def _count_bytes(self, count: int) -> int:
        return uvarint_bytes(count + 1) if self._compact else _INT32.size

    def _uvarint(self, value: int) -> None:
        while value >= 0x80:
            self._buffer[self.position] = value & 0x7F | 0x80
            self.position += 1
            value >>= 7
        self._buffer[self.position] = value
        self.position += 1

    def _bytes(self, data: bytes | bytearray) -> None:
        end = self.position + len(data)
        self._buffer[self.position : end] = data
        self.position = end

    def _pack(self, layout: Struct, *values: int) -> None:
        layout.pack_into(self._buffer, self.position, *values)
        self.position += layout.size
