"""Record batches of format v2 as opaque bytes: headers read, checked, split, built and iterated.

A batch is a header of 61 bytes and its records, which may be compressed as a whole. The broker
stores and serves batches as they came; it looks inside only to find a record by its timestamp and
to read its own logs. Format: KIP-98, https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import cramjam
import msgspec
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "HEADER_BYTES",
    "NO_PRODUCER_ID",
    "NO_TIMESTAMP",
    "BatchError",
    "BatchHeader",
    "BatchTooLarge",
    "CorruptBatch",
    "InvalidBatch",
    "NewRecord",
    "StoredRecord",
    "UnsupportedFormat",
    "build_batch",
    "check_batch",
    "parse_header",
    "read_records",
    "split_batches",
    "stamp_append_time",
    "stamp_offset",
]

HEADER_BYTES: Final = 61
"""Size of a batch's header, that is of a batch without records."""
NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1
CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MAX_UNCOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""A compressed batch that grows beyond this is refused when it is looked into: memory is bounded."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX_BYTES: Final = 12  # base offset and length, which the length does not count
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21  # the CRC covers everything from here on
_MAX_TIMESTAMP_AT: Final = 35
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_XERIAL: Final = b"\x82SNAPPY\x00"


class BatchError(Exception):
    """A batch cannot be accepted; the message says why and at which byte of the data it begins."""


class CorruptBatch(BatchError):
    """The bytes are not a whole, intact batch (CORRUPT_MESSAGE)."""


class UnsupportedFormat(BatchError):
    """The batch has an older format than v2 (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""


class InvalidBatch(BatchError):
    """The batch is intact, but a client must not produce such a one (INVALID_RECORD)."""


class BatchTooLarge(BatchError):
    """The batch is larger than `max.message.bytes` (MESSAGE_TOO_LARGE)."""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a batch, and the `position` in the data that it was read from (bytes)."""

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
    position: int = 0

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
    """The header at `position`; raises `CorruptBatch` if there cannot be a batch of this format.

    Checks the length and the magic byte, but neither that the batch is complete nor its CRC.
    """
    raise NotImplementedError


def check_batch(data: memoryview, header: BatchHeader) -> None:
    """Raises `CorruptBatch` unless `data` holds the whole batch of `header` with a matching CRC."""
    raise NotImplementedError


def split_batches(
    data: memoryview | bytearray | bytes, *, max_batch_bytes: int | None = None
) -> list[BatchHeader]:
    """The headers of the batches that a client produced, in order; `data` is nothing but batches.

    Every batch is checked: format, length, CRC, size, and that a client may produce it. Raises
    `CorruptBatch`, `UnsupportedFormat`, `InvalidBatch` or `BatchTooLarge` for the first that fails.
    """
    raise NotImplementedError


def stamp_offset(data: memoryview, header: BatchHeader, base_offset: int) -> None:
    """Writes the offset and the leader epoch into the batch in place; the CRC does not cover them."""
    raise NotImplementedError


def stamp_append_time(data: memoryview, header: BatchHeader, timestamp_ms: int) -> None:
    """Makes `timestamp_ms` the time of every record of the batch (LogAppendTime), in place."""
    raise NotImplementedError


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    codec: str = "none",
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """One batch of `records` (at least one); the first record's timestamp is the base timestamp."""
    raise NotImplementedError


def read_records(data: memoryview | bytearray | bytes, header: BatchHeader) -> list[StoredRecord]:
    """The records of the batch that begins at `header.position` of `data`, decompressed.

    Raises `CorruptBatch` if they cannot be read. Costs time per record: not for the hot path.
    """
    raise NotImplementedError
