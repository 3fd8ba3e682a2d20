"""A reference decoder in plain Python: slow, easy to check against KIP-98; the compiled one must equal it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import crc32c

from kmr.errors import CorruptRecords
from kmr.formats.batch_decoder import CodecError, Decompressed
from kmr.formats.columns import Row, from_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

__all__ = ["decode"]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


class _BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def decode(
    topic: str,
    partition: int,
    data: bytes,
    first: int,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    read_committed: bool = True,
) -> pa.RecordBatch:
    """All records from offset `first` on as columns of `SCHEMA`; see `BatchDecoder.batch`.

    Raises `CorruptRecords`, with no more than the reason.
    """
    rows: list[Row] = []
    starting = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    for header, body in _batches(data, first):
        control = header.attributes & _CONTROL
        if header.attributes & _TRANSACTIONAL and read_committed:
            while starting and starting[0][1] <= header.last_offset:
                aborting.add(starting.pop(0)[0])
            if header.producer_id in aborting:
                if not control:
                    continue
                if _is_abort_marker(header, body):
                    aborting.discard(header.producer_id)
        if not control:
            rows += [row for row in _records(header, body) if row.offset >= first]
    return from_rows(topic, partition, rows)


def _batches(data: bytes, first: int) -> Iterator[tuple[_BatchHeader, bytes]]:
    """Every whole batch that reaches `first`, up to one that is incomplete or damaged."""
    position, previous, found = 0, -1, False
    while len(data) - position >= 12:
        (length,) = struct.unpack_from(">i", data, position + 8)
        end = position + 12 + length
        if length >= 14 and end > len(data):
            break
        batch = data[position:end]
        header = _BatchHeader(*_HEADER.unpack(batch[: _HEADER.size].ljust(_HEADER.size, b"\0")))
        if (
            length < _HEADER.size - 12
            or header.magic != 2
            or not previous < header.base_offset <= 2**62
            or header.last_offset_delta < 0
            or not 0 <= header.records <= header.last_offset_delta + 1
            or (header.last_offset >= first and crc32c.crc32c(batch[_CRC_FROM:]) != header.crc)
        ):
            if found:
                break
            raise CorruptRecords("header or checksum")
        if header.last_offset >= first:
            found = True
            yield header, batch[_HEADER.size :]
        position, previous = end, header.last_offset


def _is_abort_marker(header: _BatchHeader, body: bytes) -> bool:
    records = list(_records(header, body))
    key = records[0].key if records else None
    if header.attributes & _CODEC or key is None or len(key) < 4:
        raise CorruptRecords("not a transaction marker")
    _version, kind = struct.unpack_from(">hh", key)
    return bool(kind == 0)


def _records(header: _BatchHeader, body: bytes) -> Iterator[Row]:
    plain = Decompressed(len(body), 1 << 30)
    try:
        plain.append(header.attributes & _CODEC, memoryview(body))
    except CodecError as error:
        raise CorruptRecords(str(error)) from error
    batch = _Reader(plain.data.tobytes())
    append_time = bool(header.attributes & _LOG_APPEND_TIME)
    previous = -1
    for _ in range(header.records):
        record = _Reader(batch.take(batch.varint(5)))
        record.take(1)
        elapsed = record.varint(10)
        delta = record.varint(5)
        key = record.bytes()
        value = record.bytes()
        pairs = record.varint(5)
        if pairs < 0:
            raise CorruptRecords("headers")
        headers = [(record.string(), record.bytes()) for _ in range(pairs)]
        if not record.finished:
            raise CorruptRecords("record")
        if not previous < delta <= header.last_offset_delta:
            raise CorruptRecords("offsets")
        previous = delta
        timestamp = header.max_timestamp if append_time else header.base_timestamp + elapsed
        yield Row(
            header.base_offset + delta, _wrap(timestamp), int(append_time), key, value, headers
        )
    if not batch.finished:
        raise CorruptRecords("rest")


def _wrap(value: int) -> int:
    """Wrap a sum as a 64-bit integer does."""
    return (value + 2**63) % 2**64 - 2**63


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def finished(self) -> bool:
        return self._position == len(self._data)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._position:
            raise CorruptRecords("cut off")
        self._position += size
        return self._data[self._position - size : self._position]

    def varint(self, most: int) -> int:
        value = 0
        for index in range(most):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                value %= 2**64
                return (value >> 1) ^ -(value & 1)
        raise CorruptRecords("number")

    def bytes(self) -> bytes | None:
        size = self.varint(5)
        return None if size < 0 else self.take(size)

    def string(self) -> str:
        key = self.bytes()
        if key is None:
            raise CorruptRecords("header key")
        return key.decode("utf-8", "replace")
