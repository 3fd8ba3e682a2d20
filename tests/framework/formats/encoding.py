"""Encode record batches as any producer, broker or compaction may leave them, and as none would."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import cramjam
import crc32c

from kmr.formats.columns import Row

__all__ = ["GZIP", "LZ4", "NONE", "SNAPPY", "ZSTD", "BatchSpec", "seal"]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
_COMPRESS = {GZIP: cramjam.gzip.compress, LZ4: cramjam.lz4.compress, ZSTD: cramjam.zstd.compress}
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LEADER_EPOCH = 7
_XERIAL_BLOCK = 50  # bytes; small, so that there are several


def seal(batch: bytes) -> bytes:
    """The record batch with the length and the checksum that it should have."""
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


@dataclass(kw_only=True)
class BatchSpec:
    """The content of a record batch.

    Attributes:
        base: its first offset.
        last: its last offset; compaction keeps it when records are gone.
        rows: the records, with absolute offsets.
        codec: of `rows`; `xerial` frames snappy as the Java client does.
        append_time: the broker's timestamp in milliseconds, for all records.
        producer: a producer id; -1 for none.
        marker: makes it a control batch without rows: 0 ends a transaction as aborted, 1 as committed.
    """

    base: int
    last: int
    rows: list[Row] = field(default_factory=list)
    codec: int = NONE
    xerial: bool = False
    append_time: int | None = None
    producer: int = -1
    transactional: bool = False
    marker: int | None = None
    base_timestamp: int = 0

    def encode(self) -> bytes:
        """The bytes of the record batch."""
        rows = self.rows
        if self.marker is not None:
            key = struct.pack(">hh", 0, self.marker)
            rows = [Row(self.base, self.base_timestamp, 0, key, struct.pack(">hi", 0, 0))]
        attributes = self.codec
        attributes |= 0x08 if self.append_time is not None else 0
        attributes |= 0x10 if self.transactional else 0
        attributes |= 0x20 if self.marker is not None else 0
        latest = max((row.timestamp_ms for row in rows), default=-1)
        header = _HEADER.pack(
            self.base,
            0,
            _LEADER_EPOCH,
            2,
            0,
            attributes,
            self.last - self.base,
            self.base_timestamp,
            latest if self.append_time is None else self.append_time,
            self.producer,
            0 if self.producer >= 0 else -1,
            -1,
            len(rows),
        )
        body = b"".join(self._record(row) for row in rows)
        return seal(header + _compress(self.codec, body, xerial=self.xerial))

    def expected(self) -> list[Row]:
        """The rows as a consumer should see them."""
        if self.append_time is None:
            return self.rows
        return [row._replace(timestamp_ms=self.append_time, timestamp_type=1) for row in self.rows]

    def _record(self, row: Row) -> bytes:
        record = (
            b"\x00"
            + _varint(row.timestamp_ms - self.base_timestamp)
            + _varint(row.offset - self.base)
            + _sized(row.key)
            + _sized(row.value)
            + _varint(len(row.headers))
            + b"".join(_sized(key.encode()) + _sized(value) for key, value in row.headers)
        )
        return _varint(len(record)) + record


def _varint(value: int) -> bytes:
    value = ((value << 1) ^ (value >> 63)) % 2**64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _compress(codec: int, body: bytes, *, xerial: bool) -> bytes:
    if codec == NONE:
        return body
    if codec != SNAPPY:
        return bytes(_COMPRESS[codec](body))
    if not xerial:
        return bytes(cramjam.snappy.compress_raw(body))
    pieces = [body[i : i + _XERIAL_BLOCK] for i in range(0, len(body), _XERIAL_BLOCK)]
    blocks = [bytes(cramjam.snappy.compress_raw(piece)) for piece in pieces]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed
