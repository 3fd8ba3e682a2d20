"""Produce requests and responses, versions 0 to 13, read and written by hand.

The records are not copied: they are patched in the receive buffer and written to the log from there.
Version 3 added the transactional id, 5 the log start offset, 8 error messages, 9 compact types, 13 topic ids.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID

from .cursor import MAX_ELEMENTS, Cursor, uvarint_bytes, write_uvarint
from .headers import response_frame_header

if TYPE_CHECKING:
    from collections.abc import Sequence


_PARTITION_V0 = Struct(">ihq")
_PARTITION_V2 = Struct(">ihqq")
_PARTITION_V5 = Struct(">ihqqq")
_OFFSETS_V2 = Struct(">qq")
_OFFSETS_V5 = Struct(">qqq")
_OFFSETS_AT = 6  # after the index and the error
_COUNT = Struct(">i")
_LENGTH = Struct(">h")
_NO_RECORD_ERRORS_NO_MESSAGE = _COUNT.pack(0) + _LENGTH.pack(-1)
_NO_THROTTLE = _COUNT.pack(0)


TopicKey: TypeAlias = str | UUID
"""A topic in a message: its id from version 13 on, else its name."""

_FIRST_COMPACT = 9
_FIRST_WITH_IDS = 13
_NO_TAGS = bytes(3)  # of the partition, the topic and the request


class ProduceFrame(NamedTuple):
    """A request; `topics`: names or ids, with partitions: an index and the records, a view of the request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]


class PartitionResult(NamedTuple):
    """The result of one partition's records; `error` is the protocol's error code.

    `record_errors`: the records to blame, by their index in the batch, with the reasons (KIP-467).
    """

    partition_index: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()


def read_produce_request(
    body: memoryview, version: int, max_elements: int = MAX_ELEMENTS
) -> ProduceFrame:
    """Read a request; raise MalformedRequest, TooManyElements for more than `max_elements`."""
    compact = version >= _FIRST_COMPACT
    cursor = Cursor(body, max_elements=max_elements)
    transactional_id = cursor.string(compact=compact) if version >= 3 else None
    acks = cursor.int16()
    timeout_ms = cursor.int32()
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(cursor.array_length(compact=compact)):
        if version >= _FIRST_WITH_IDS:
            key: TopicKey = cursor.uuid()
        else:
            key = cursor.string(compact=compact) or ""
        partitions = []
        for _ in range(cursor.array_length(compact=compact)):
            index = cursor.int32()
            partitions.append((index, cursor.data(compact=compact)))
            if compact:
                cursor.skip_tagged_fields()
        if compact:
            cursor.skip_tagged_fields()
        topics.append((key, partitions))
    return ProduceFrame(transactional_id, acks, timeout_ms, topics)


def records_after(data: memoryview, at: int, stop: int, version: int) -> memoryview | None:
    """Return the records whose length is at `at`; None unless a request for one partition ends with them.

    The request ends at `stop`, 8 bytes or more after `at`, and has no tagged fields behind the records.
    """
    if version < _FIRST_COMPACT:
        start, end = at + _COUNT.size, stop
        size = _COUNT.unpack_from(data, at)[0]
    else:
        start, end, size, shift = at + 1, stop - len(_NO_TAGS), data[at], 7
        if size >= 0x80:
            size &= 0x7F
            while (byte := data[start]) >= 0x80 and shift < 28:
                size |= (byte & 0x7F) << shift
                shift += 7
                start += 1
            size |= byte << shift
            start += 1
        size -= 1
        if data[end:stop] != _NO_TAGS:
            return None
    return data[start:end] if start + size == end and size > 0 else None


def records_length_at(size: int, records_bytes: int, version: int) -> int:
    """Return the position of the records' length in a request of `size` bytes that ends with them."""
    if version < _FIRST_COMPACT:
        return size - records_bytes - _COUNT.size
    return size - len(_NO_TAGS) - records_bytes - uvarint_bytes(records_bytes + 1)


class ResponseTemplate:
    """The frame of a response about one partition that took records; others differ only in four fields."""

    __slots__ = ("_at", "_frame", "_has_log_start")

    def __init__(self, topic: TopicKey, result: PartitionResult, version: int) -> None:
        """`result`: any of them."""
        self._frame = write_produce_frame(topic, result, version, 0)
        after = len(_NO_THROTTLE) + (
            2 if version >= _FIRST_COMPACT else 0
        )  # two lists of tagged fields
        without = write_produce_response([(topic, [])], version)
        header = len(self._frame) - len(write_produce_response([(topic, [result])], version))
        self._at = header + len(without) - after + _OFFSETS_AT
        self._has_log_start = version >= 5

    def append_to(
        self,
        out: bytearray,
        correlation_id: int,
        base_offset: int,
        append_time_ms: int,
        log_start_offset: int,
    ) -> None:
        """Append the frame of another request and result, of which these are the fields."""
        start = len(out)
        out += self._frame
        _COUNT.pack_into(out, start + _COUNT.size, correlation_id)
        at = start + self._at
        if self._has_log_start:
            _OFFSETS_V5.pack_into(out, at, base_offset, append_time_ms, log_start_offset)
        else:
            _OFFSETS_V2.pack_into(out, at, base_offset, append_time_ms)


def write_produce_frame(
    topic: TopicKey, result: PartitionResult, version: int, correlation_id: int
) -> bytearray:
    """Return the whole response about one partition, with its header."""
    body = write_produce_response([(topic, [result])], version)
    header = response_frame_header(correlation_id, len(body), flexible=version >= _FIRST_COMPACT)
    return bytearray(header) + body


def write_produce_response(
    topics: Sequence[tuple[TopicKey, list[PartitionResult]]], version: int
) -> bytearray:
    """Return the response's body, with a throttle time of 0."""
    compact = version >= _FIRST_COMPACT
    out = bytearray()
    _write_count(out, len(topics), compact=compact)
    for key, partitions in topics:
        if isinstance(key, UUID):
            out += key.bytes
        else:
            _write_string(out, key, compact=compact)
        _write_count(out, len(partitions), compact=compact)
        for result in partitions:
            _write_partition(out, result, version)
        if compact:
            out.append(0)
    if version >= 1:
        out += _NO_THROTTLE
    if compact:
        out.append(0)
    return out


def _write_partition(out: bytearray, result: PartitionResult, version: int) -> None:
    index, error, base_offset, append_time, log_start_offset, message, record_errors = result
    if version >= 5:
        out += _PARTITION_V5.pack(index, error, base_offset, append_time, log_start_offset)
    elif version >= 2:
        out += _PARTITION_V2.pack(index, error, base_offset, append_time)
    else:
        out += _PARTITION_V0.pack(index, error, base_offset)
    if version < 8:
        return
    compact = version >= _FIRST_COMPACT
    if message is None and not compact:
        out += _NO_RECORD_ERRORS_NO_MESSAGE
        return
    _write_count(out, len(record_errors), compact=compact)
    for number, reason in record_errors:
        out += _COUNT.pack(number)
        _write_string(out, reason, compact=compact)
        if compact:
            out.append(0)
    _write_string(out, message, compact=compact)
    if compact:
        out.append(0)


def _write_count(out: bytearray, count: int, *, compact: bool) -> None:
    if compact:
        write_uvarint(out, count + 1)
    else:
        out += _COUNT.pack(count)


def _write_string(out: bytearray, value: str | None, *, compact: bool) -> None:
    encoded = b"" if value is None else value.encode()
    if compact:
        write_uvarint(out, 0 if value is None else len(encoded) + 1)
    else:
        out += _LENGTH.pack(-1 if value is None else len(encoded))
    out += encoded
