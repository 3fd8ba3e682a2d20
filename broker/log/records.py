"""Record batches of format v2: parse and check headers, split, build, read records, change the codec.

A batch is a header of 61 bytes and its records, which may be compressed as a whole. The broker stores and
serves batches as bytes. It reads records only to validate them, to find one by its timestamp, to compact a
log and to load its own state. Format: KIP-98, https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import cramjam
import msgspec
from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HEADER_BYTES: Final = 61
"""Size of a batch's header, that is of a batch without records."""
CRC_START: Final = 21
"""The CRC covers the batch from this byte to its end."""
NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1
LEADER_EPOCH: Final = 0
"""A single node is the leader of every partition, and never changes."""
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: Final[dict[Codec, int]] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

MAX_READ_RECORDS: Final = 500_000
"""Limit of records in one batch that is read, and of those that a compressed one may claim: a megabyte of
zstd can hold thirty million. Clients send far fewer."""
MAX_UNCOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""Limit of a decompressed batch: a kilobyte of zstd can hold gigabytes."""

_JAVA_SNAPPY: Final = b"\x82SNAPPY\x00"
_JAVA_SNAPPY_HEADER_BYTES: Final = 16
_BLOCK_LENGTH: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_EXTENT: Final = struct.Struct(">qiibIhi")
_PLACE: Final = struct.Struct(">qii")  # base offset, length, leader epoch
_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")
_COUNT: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAGIC: Final = 2
_PREFIX_BYTES: Final = 12  # base offset and length, which the length does not count
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = CRC_START
_MAX_TIMESTAMP_AT: Final = 35
_COUNT_AT: Final = 57
_CODEC_MASK: Final = 0x07
_LAST_CODEC: Final = max(CODECS.values())
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MIN_RECORD_BYTES: Final = 7  # seven fields of at least one byte
_NO_LIMIT: Final = 2**31 - 1


class BatchError(Exception):
    """A batch is refused.

    Attributes:
        records: the refused records, each with its number in the batch, from 0, and the reason; empty if
            the fault is the batch's as a whole.
    """

    def __init__(self, message: str, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


class CorruptBatch(BatchError):
    """The bytes are not a whole, intact batch (CORRUPT_MESSAGE)."""


class TruncatedBatch(CorruptBatch):
    """The bytes end before the batch does.

    A client that produced it gets INVALID_RECORD, as from Kafka, which it does not retry: a retry would
    send the same bytes."""


class UnsupportedFormat(BatchError):
    """The batch has an older format than v2 (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""


class InvalidBatch(BatchError):
    """The batch is intact, but a client must not produce it (INVALID_RECORD)."""


class InvalidTimestamp(BatchError):
    """A timestamp is further from the broker's clock than the topic allows (INVALID_TIMESTAMP)."""


class BatchTooLarge(BatchError):
    """The batch is larger than `max.message.bytes`, or much larger when decompressed (MESSAGE_TOO_LARGE)."""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a batch; `position` is its byte in the data that it was parsed from.

    The defaults are those of a batch without records.
    """

    position: int = 0
    base_offset: int = 0
    length: int = 0
    leader_epoch: int = LEADER_EPOCH
    magic: int = _MAGIC
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int = 0

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
    """A record to write; `timestamp` in milliseconds since the epoch."""

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
    """Parse the header at `position`.

    Checks the format and the length, but not that the batch is complete, nor its CRC. Raises `CorruptBatch`
    if there is no batch, `UnsupportedFormat` for a format before v2.
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


def first_batches(data: memoryview, fits: Callable[[BatchHeader], bool]) -> tuple[int, int]:
    """Return the size of the first batches in `data` that fit, and the offset after them; 0, 0 for none."""
    position = offset = 0
    while position < len(data) and fits(header := parse_header(data, position)):
        position, offset = header.end, header.next_offset
    return position, offset


def has_records(data: memoryview) -> bool:
    """Whether any of the batches in `data` has a record; false if there is no batch."""
    position = 0
    while position < len(data):
        if _COUNT.unpack_from(data, position + _COUNT_AT)[0]:
            return True
        position += _PREFIX_BYTES + _COUNT.unpack_from(data, position + _OFFSET.size)[0]
    return False


def whole_batches(data: memoryview, base_offset: int) -> tuple[int, int]:
    """Return where the whole batches at the beginning of `data` end, and the offset after them.

    Of each only a few bytes are read: it is what the broker stores, and the first has this base offset. What
    follows them is incomplete, or no such batch: `parse_header` says why.
    """
    unpack, size, last = _EXTENT.unpack_from, len(data), len(data) - HEADER_BYTES
    position, next_offset = 0, base_offset
    while position <= last:
        offset, length, epoch, magic, _, _, last_delta = unpack(data, position)
        end = position + _PREFIX_BYTES + length
        if (
            offset != next_offset
            or epoch != LEADER_EPOCH
            or magic != _MAGIC
            or length < HEADER_BYTES - _PREFIX_BYTES
            or last_delta < 0
            or end > size
        ):
            break
        position, next_offset = end, offset + last_delta + 1
    return position, next_offset


def check_batch(data: memoryview, header: BatchHeader) -> None:
    """Raise `TruncatedBatch` if `data` ends before the batch does, `CorruptBatch` if its CRC is wrong."""
    end = header.end
    if end > len(data):
        left = len(data) - header.position
        raise TruncatedBatch(f"{header.size} bytes announced, {left} are there")
    crc = crc32c(data[header.position + CRC_START : end])
    if crc != header.crc:
        raise CorruptBatch(f"its CRC is {crc:#010x}, the header says {header.crc:#010x}")


def split_batches(
    data: memoryview | bytearray | bytes, *, max_batch_bytes: int | None = None
) -> list[BatchHeader]:
    """Check the batches that a client produced, and return their headers in order.

    Checks each batch's format, length, CRC and size, and that a client may produce it. Raises
    `CorruptBatch`, `UnsupportedFormat`, `InvalidBatch` or `BatchTooLarge` for the first that fails.
    `data` is the batches, without any other bytes.
    """
    view = memoryview(data)
    batches: list[BatchHeader] = []
    position, end = 0, len(view)
    try:
        while position < end:
            header = parse_header(view, position)
            size = header.size
            if max_batch_bytes is not None and size > max_batch_bytes:
                raise BatchTooLarge(f"{size} bytes, at most {max_batch_bytes} are allowed")
            check_batch(view, header)
            refusal = _refusal(header)
            if refusal is not None:
                raise InvalidBatch(refusal)
            batches.append(header)
            position += size
    except BatchError as error:
        raise type(error)(f"batch at byte {position}: {error}") from None
    return batches


def plain_batch(data: memoryview) -> BatchHeader | None:
    """Return the header if `data` is one intact batch outside of transactions that a client may produce.

    `split_batches` accepts what this accepts, and more. None says only that it has to be asked.
    """
    if len(data) < HEADER_BYTES:
        return None
    header = BatchHeader(0, *_HEADER.unpack_from(data))
    count, codec = header.record_count, header.attributes
    if (
        header.magic != _MAGIC
        or header.length + _PREFIX_BYTES != len(data)
        or not 0 <= codec <= _LAST_CODEC
        or not 0 < count == header.last_offset_delta + 1
        or (count * _MIN_RECORD_BYTES > len(data) - HEADER_BYTES and _refusal(header))
        or (header.producer_id >= 0 and _refusal(header))
        or crc32c(data[CRC_START:]) != header.crc
    ):
        return None
    return header


def _refusal(header: BatchHeader) -> str | None:
    """Return the reason if only a broker may write the batch, or if it would mislead readers."""
    count, attributes = header.record_count, header.attributes
    body_bytes = header.length + _PREFIX_BYTES - HEADER_BYTES
    codec = attributes & _CODEC_MASK
    if count < 1 or count != header.last_offset_delta + 1:
        return f"{count} records, but offsets 0 to {header.last_offset_delta}"
    if count * _MIN_RECORD_BYTES > body_bytes and (not codec or count > MAX_READ_RECORDS):
        # Otherwise a batch of a few bytes could take up to 2**31 - 1 offsets. Compressed, a few bytes may
        # really hold many records, and are not decompressed to count them.
        return f"{count} records cannot be in {body_bytes} bytes"
    if attributes & _CONTROL:
        return "control batches are written by brokers only"
    if codec > _LAST_CODEC:
        return f"unknown compression codec {header.compression}"
    if attributes & _LOG_APPEND_TIME:
        return "the timestamp type is LogAppendTime, which brokers set"
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        return (
            f"producer id {header.producer_id} with epoch {header.producer_epoch} "
            f"and sequence {header.base_sequence}"
        )
    if attributes & _TRANSACTIONAL and header.producer_id < 0:
        return "transactional, but without a producer id"
    return None


def stamp_offset(data: memoryview | bytearray, header: BatchHeader, base_offset: int) -> None:
    """Write the offset and the leader epoch into the batch, in place; the CRC does not cover them."""
    _PLACE.pack_into(data, header.position, base_offset, header.length, LEADER_EPOCH)


def stamp_append_time(data: memoryview | bytearray, header: BatchHeader, timestamp_ms: int) -> None:
    """Set the time of every record of the batch to `timestamp_ms` (LogAppendTime), in place."""
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
    """Build one batch of `records` (at least one); the first record's timestamp is the base timestamp.

    The batch is not compressed if that would make it larger.
    """
    from .aiokafka_parts import DefaultRecordBatchBuilder

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


def encode_batch(
    header: BatchHeader, body: bytes | memoryview, level: int | None = None
) -> bytearray:
    """Return the batch of `header` with other records: `body`, which is not compressed yet.

    Compresses with the header's codec; computes the length and the CRC. All other fields are the header's,
    including the number of records. `level`: see `_compress`.
    """
    body = _compress(header.compression, body, level)
    length = HEADER_BYTES - _PREFIX_BYTES + len(body)
    fields = msgspec.structs.astuple(msgspec.structs.replace(header, length=length))[1:]
    batch = bytearray(_HEADER.pack(*fields)) + body
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def read_records(
    data: memoryview | bytearray | bytes,
    header: BatchHeader,
    most_bytes: int = MAX_UNCOMPRESSED_BYTES,
) -> list[StoredRecord]:
    """Return the records of the batch at `header.position` of `data`, decompressed.

    Raises the errors of `iterate_records`. Takes time for each record: not for the hot path.
    """
    return list(iterate_records(data, header, most_bytes))


def iterate_records(
    data: memoryview | bytearray | bytes,
    header: BatchHeader,
    most_bytes: int = MAX_UNCOMPRESSED_BYTES,
) -> Iterator[StoredRecord]:
    """Yield the records of the batch at `header.position` of `data`, decompressed.

    Raises:
        CorruptBatch: they cannot be read, or there are more than `MAX_READ_RECORDS`.
        BatchTooLarge: they take more than `most_bytes` without compression.
    """
    from .aiokafka_parts import DefaultRecordBatch, KafkaError

    try:
        if header.record_count > MAX_READ_RECORDS:
            raise ValueError(f"{header.record_count} records, more than {MAX_READ_RECORDS}")
        start = bytearray(memoryview(data)[header.position : header.position + HEADER_BYTES])
        _ATTRIBUTES.pack_into(start, _ATTRIBUTES_AT, header.attributes & ~_CODEC_MASK)
        for r in DefaultRecordBatch(bytes(start) + read_body(data, header, most_bytes)):
            yield StoredRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
    except (KafkaError, ValueError, IndexError, OverflowError, MemoryError, struct.error) as error:
        # A length of 2**62 bytes is no lack of memory.
        raise CorruptBatch(
            f"the records of the batch at offset {header.base_offset} cannot be read: {error}"
        ) from error


def read_body(
    data: memoryview | bytearray | bytes,
    header: BatchHeader,
    most_bytes: int = MAX_UNCOMPRESSED_BYTES,
) -> memoryview:
    """Return the bytes after the header of the batch at `header.position` of `data`, decompressed.

    Raises ValueError if they cannot be decompressed, BatchTooLarge if they are more than `most_bytes`.
    """
    body = memoryview(data)[header.position + HEADER_BYTES : header.end]
    return decompress(header.compression, body, most_bytes) if header.compression else body


def with_codec(header: BatchHeader, codec: int) -> BatchHeader:
    """Return the header with another codec; the length and the CRC are not updated."""
    attributes = header.attributes & ~_CODEC_MASK | codec
    return msgspec.structs.replace(header, attributes=attributes)


def _compress(codec: int, body: memoryview | bytes, level: int | None = None) -> bytes:
    """Compress `body` as clients do, with the codec's number in a batch's attributes (0 to 4).

    `level`: for gzip (1 to 9), lz4 (1 to 17) or zstd (-131072 to 22), other codecs ignore it; None is the
    default of Kafka's brokers.
    """
    if codec == 0:
        return bytes(body)
    from .aiokafka_parts import codecs

    encode: Callable[..., bytes] = getattr(codecs, _ENCODERS[codec])
    if codec in _LEVELS:
        return encode(bytes(body), _LEVELS[codec] if level is None else level)
    return encode(bytes(body))


def decompress(
    codec: int, body: memoryview, most_bytes: int = MAX_UNCOMPRESSED_BYTES
) -> memoryview:
    """Decompress `body`, with the codec's number in a batch's attributes (1 to 4).

    Raises ValueError if it is damaged or the codec is unknown, BatchTooLarge for more than `most_bytes`.
    """
    # Anonymous memory: a page takes no memory until it is written.
    area = mmap.mmap(-1, most_bytes)
    output = memoryview(area)
    try:
        size = int(_INTO[codec](body, output))
    except KeyError:
        raise ValueError(f"unknown compression codec {codec}") from None
    except (cramjam.DecompressionError, struct.error) as error:
        # Now: the traceback keeps what it refers to until the garbage is collected.
        output.release()
        area.close()
        if any(each in str(error) for each in _FULL):
            raise BatchTooLarge(
                f"its records take more than {most_bytes} bytes without compression"
            ) from error
        raise ValueError(f"decompression failed: {error}") from error
    return output[:size]


def _snappy_into(body: memoryview, output: memoryview) -> int:
    """Decompress one raw snappy block, or the Java library's stream of blocks with lengths."""
    if bytes(body[: len(_JAVA_SNAPPY)]) != _JAVA_SNAPPY:
        return int(cramjam.snappy.decompress_raw_into(body, output))
    position, size = _JAVA_SNAPPY_HEADER_BYTES, 0
    while position < len(body):
        (length,) = _BLOCK_LENGTH.unpack_from(body, position)
        position += _BLOCK_LENGTH.size
        block = body[position : position + length]
        size += int(cramjam.snappy.decompress_raw_into(block, output[size:]))
        position += length
    return size


_INTO: Final = {
    1: cramjam.gzip.decompress_into,
    2: _snappy_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}

_FULL: Final = ("failed to write whole buffer", "output buffer (size")
"""What the codecs say when there is more data than room for it."""
_LEVELS: Final = {1: 6, 3: 9, 4: 3}
_ENCODERS: Final = {1: "gzip_encode", 2: "snappy_encode", 3: "lz4_encode", 4: "zstd_encode"}
"""Functions of `aiokafka.codec`."""
