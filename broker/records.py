"""Record batches of format v2 as opaque bytes: headers read, checked, split, built and iterated.

A batch is a header of 61 bytes and its records, which may be compressed as a whole. The broker
stores and serves batches as they came; it looks inside only to find a record by its timestamp and
to read its own logs. Format: KIP-98, https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

from broker.compression import decompress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "CODECS",
    "CRC_START",
    "HEADER_BYTES",
    "LEADER_EPOCH",
    "MAX_READ_RECORDS",
    "NO_PRODUCER_ID",
    "NO_TIMESTAMP",
    "BatchError",
    "BatchHeader",
    "BatchTooLarge",
    "Codec",
    "CorruptBatch",
    "InvalidBatch",
    "InvalidTimestamp",
    "NewRecord",
    "StoredRecord",
    "TruncatedBatch",
    "UnsupportedFormat",
    "build_batch",
    "check_batch",
    "encode_batch",
    "parse_header",
    "read_records",
    "split_batches",
    "stamp_append_time",
    "stamp_offset",
]

HEADER_BYTES: Final = 61
"""Size of a batch's header, that is of a batch without records."""
CRC_START: Final = 21
"""Byte of a batch from which on its CRC covers everything."""
NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1
LEADER_EPOCH: Final = 0
"""A single node leads every partition from the first record to the last."""
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: Final[dict[Codec, int]] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

MAX_READ_RECORDS: Final = 500_000
"""Of one batch: many more than clients send, and what there is memory and time for. (A megabyte of zstd
can hold thirty million records.)"""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAGIC: Final = 2
_PREFIX_BYTES: Final = 12  # base offset and length, which the length does not count
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = CRC_START
_MAX_TIMESTAMP_AT: Final = 35
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MIN_RECORD_BYTES: Final = 7  # seven fields of at least one byte
_NO_LIMIT: Final = 2**31 - 1


class BatchError(Exception):
    """A batch cannot be accepted; the message says why.

    Attributes:
        records: the records that are to blame, each by its number in the batch, from 0, and why; none
            when it is the batch as a whole.
    """

    def __init__(self, message: str, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


class CorruptBatch(BatchError):
    """The bytes are not a whole, intact batch (CORRUPT_MESSAGE)."""


class TruncatedBatch(CorruptBatch):
    """The bytes end before the batch does: of a client, whose next attempt would be no better, that is
    INVALID_RECORD (as Kafka answers), which it does not retry."""


class UnsupportedFormat(BatchError):
    """The batch has an older format than v2 (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""


class InvalidBatch(BatchError):
    """The batch is intact, but a client must not produce such a one (INVALID_RECORD)."""


class InvalidTimestamp(BatchError):
    """A timestamp is further from the broker's clock than the topic allows (INVALID_TIMESTAMP)."""


class BatchTooLarge(BatchError):
    """The batch is larger than `max.message.bytes` (MESSAGE_TOO_LARGE)."""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a batch, and the `position` in the data that it was read from (bytes)."""

    position: int
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
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, its base offset and length included."""
        return self.length + _PREFIX_BYTES

    @property
    def end(self) -> int:
        """Position just after the batch."""
        return self.position + self.length + _PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset that follows the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """Codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker instead of records."""
        return bool(self.attributes & _CONTROL)

    @property
    def timestamp_type(self) -> int:
        """0: CreateTime, 1: LogAppendTime (every record has the batch's `max_timestamp`)."""
        return 1 if self.attributes & _LOG_APPEND_TIME else 0


class NewRecord(NamedTuple):
    """A record to be written; `timestamp` in milliseconds since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int = NO_TIMESTAMP


class StoredRecord(NamedTuple):
    """A record read from a batch; `timestamp` in milliseconds since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def parse_header(data: memoryview | bytearray | bytes, position: int = 0) -> BatchHeader:
    """The header at `position`; raises `CorruptBatch` if there cannot be a batch.

    Checks the format and the length, but neither that the batch is complete nor its CRC. Raises
    `UnsupportedFormat` for the formats before v2.
    """
    left = len(data) - position
    if left <= _MAGIC_AT:
        raise TruncatedBatch(f"{left} bytes are too few for a header")
    magic = data[position + _MAGIC_AT]
    if magic != _MAGIC:
        if magic < _MAGIC:
            raise UnsupportedFormat(f"format v{magic}; only v2 is supported (Kafka 0.11 and later)")
        raise CorruptBatch(f"magic byte {magic} instead of {_MAGIC}")
    if left < HEADER_BYTES:
        raise TruncatedBatch(f"{left} bytes are too few for a header")
    header = BatchHeader(position, *_HEADER.unpack_from(data, position))
    if header.length < HEADER_BYTES - _PREFIX_BYTES:
        raise CorruptBatch(f"impossible length {header.length}")
    if header.last_offset_delta < 0:
        raise CorruptBatch(f"impossible last offset delta {header.last_offset_delta}")
    return header


def check_batch(data: memoryview, header: BatchHeader) -> None:
    """Raises `CorruptBatch` unless `data` holds the batch of `header` with a matching CRC, and its kind
    `TruncatedBatch` unless it holds the whole of it."""
    if header.end > len(data):
        left = len(data) - header.position
        raise TruncatedBatch(f"{header.size} bytes announced, {left} are there")
    crc = crc32c(data[header.position + CRC_START : header.end])
    if crc != header.crc:
        raise CorruptBatch(f"its CRC is {crc:#010x}, the header says {header.crc:#010x}")


def split_batches(
    data: memoryview | bytearray | bytes, *, max_batch_bytes: int | None = None
) -> list[BatchHeader]:
    """The headers of the batches that a client produced, in order; `data` is nothing but batches.

    Every batch is checked: format, length, CRC, size, and that a client may produce it. Raises
    `CorruptBatch`, `UnsupportedFormat`, `InvalidBatch` or `BatchTooLarge` for the first that fails.
    """
    view = memoryview(data)
    batches: list[BatchHeader] = []
    position = 0
    try:
        while position < len(view):
            header = parse_header(view, position)
            if max_batch_bytes is not None and header.size > max_batch_bytes:
                raise BatchTooLarge(f"{header.size} bytes, at most {max_batch_bytes} are allowed")
            check_batch(view, header)
            _check_produced(header)
            batches.append(header)
            position = header.end
    except BatchError as error:
        raise type(error)(f"batch at byte {position}: {error}") from None
    return batches


def _check_produced(header: BatchHeader) -> None:
    """Raises `InvalidBatch` for what only a broker may write, or what would mislead readers."""
    count = header.record_count
    body_bytes = header.size - HEADER_BYTES
    if count < 1 or count != header.last_offset_delta + 1:
        reason = f"{count} records, but offsets 0 to {header.last_offset_delta}"
    elif not header.compression and count * _MIN_RECORD_BYTES > body_bytes:
        # Otherwise a few bytes could use up two thousand million offsets.
        reason = f"{count} records cannot be in {body_bytes} bytes"
    elif header.is_control:
        reason = "control batches are written by brokers only"
    elif header.compression > max(CODECS.values()):
        reason = f"unknown compression codec {header.compression}"
    elif header.timestamp_type:
        reason = "the timestamp type is LogAppendTime, which brokers set"
    elif header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        reason = (
            f"producer id {header.producer_id} with epoch {header.producer_epoch} "
            f"and sequence {header.base_sequence}"
        )
    elif header.is_transactional and header.producer_id < 0:
        reason = "transactional, but without a producer id"
    else:
        return
    raise InvalidBatch(reason)


def stamp_offset(data: memoryview | bytearray, header: BatchHeader, base_offset: int) -> None:
    """Writes the offset and the leader epoch into the batch in place; the CRC does not cover them."""
    _OFFSET.pack_into(data, header.position, base_offset)
    _EPOCH.pack_into(data, header.position + _PREFIX_BYTES, LEADER_EPOCH)


def stamp_append_time(data: memoryview | bytearray, header: BatchHeader, timestamp_ms: int) -> None:
    """Makes `timestamp_ms` the time of every record of the batch (LogAppendTime), in place."""
    at = header.position
    _ATTRIBUTES.pack_into(data, at + _ATTRIBUTES_AT, header.attributes | _LOG_APPEND_TIME)
    _OFFSET.pack_into(data, at + _MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(data, at + _CRC_AT, crc32c(memoryview(data)[at + CRC_START : header.end]))


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    codec: Codec = "none",
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """One batch of `records` (at least one); the first record's timestamp is the base timestamp.

    A codec that would make the batch larger is left out.
    """
    builder = DefaultRecordBatchBuilder(
        _MAGIC, CODECS[codec], transactional, producer_id, producer_epoch, base_sequence, _NO_LIMIT
    )
    count = 0
    for record in records:
        builder.append(count, record.timestamp, record.key, record.value, list(record.headers))
        count += 1
    if not count:
        raise ValueError("a batch needs at least one record")
    batch: bytearray = builder.build()
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _PREFIX_BYTES, LEADER_EPOCH)
    if control:
        (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | _CONTROL)
        _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def encode_batch(header: BatchHeader, body: bytes | memoryview) -> bytearray:
    """The batch of `header` with other records: `body`, compressed as its attributes say.

    The length and the CRC are made anew; everything else, the number of records too, is the header's.
    """
    length = HEADER_BYTES - _PREFIX_BYTES + len(body)
    fields = msgspec.structs.astuple(msgspec.structs.replace(header, length=length))[1:]
    batch = bytearray(_HEADER.pack(*fields)) + body
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def read_records(data: memoryview | bytearray | bytes, header: BatchHeader) -> list[StoredRecord]:
    """The records of the batch that begins at `header.position` of `data`, decompressed.

    Raises `CorruptBatch` if they cannot be read, or if there are more than `MAX_READ_RECORDS`. Costs
    time per record: not for the hot path.
    """
    batch = memoryview(data)[header.position : header.end]
    try:
        if header.record_count > MAX_READ_RECORDS:
            raise ValueError(f"{header.record_count} records, more than {MAX_READ_RECORDS}")
        plain = bytes(batch) if not header.compression else _decompressed(batch, header)
        return [
            StoredRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
            for r in DefaultRecordBatch(plain)
        ]
    except (KafkaError, ValueError, IndexError, struct.error) as error:
        raise CorruptBatch(
            f"the records of the batch at offset {header.base_offset} cannot be read: {error}"
        ) from error


def _decompressed(batch: memoryview, header: BatchHeader) -> bytes:
    """The same batch without compression; its length and CRC are not brought up to date."""
    plain = bytearray(batch[:HEADER_BYTES])
    _ATTRIBUTES.pack_into(plain, _ATTRIBUTES_AT, header.attributes & ~_CODEC_MASK)
    plain += decompress(header.compression, batch[HEADER_BYTES:])
    return bytes(plain)
