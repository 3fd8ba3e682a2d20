"""Batches from which compaction has taken records.

Offsets never move: a batch keeps its first and its last offset, its producer and its sequence, with
fewer records. Where no record is left, a batch without records takes its place, one for a run of
neighbours; clients pass over it. So the offsets of a log stay without gaps, and a gap is damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from broker.compression import compress
from broker.records import (
    HEADER_BYTES,
    LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    encode_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.records import StoredRecord

__all__ = ["empty_batches", "with_records", "without_records"]

_MAGIC: Final = 2
_NO_LIMIT: Final = 2**31 - 1
_CODEC_MASK: Final = 0x07
_MAX_DELTA: Final = 2**31 - 1


def with_records(header: BatchHeader, records: Sequence[StoredRecord]) -> bytearray:
    """The batch of `header` with these of its records (at least one), compressed as it was."""
    # The builder takes -1 for "no time yet"; only differences count, and the header has the first.
    earliest = min(record.timestamp for record in records)
    builder = DefaultRecordBatchBuilder(_MAGIC, 0, False, NO_PRODUCER_ID, -1, -1, _NO_LIMIT)  # noqa: FBT003
    for record in records:
        builder.append(
            record.offset - header.base_offset,
            record.timestamp - earliest,
            record.key,
            record.value,
            list(record.headers),
        )
    body = memoryview(builder.build())[HEADER_BYTES:]
    fewer = msgspec.structs.replace(
        header,
        record_count=len(records),
        base_timestamp=records[0].timestamp,
        max_timestamp=(
            header.max_timestamp
            if header.timestamp_type
            else max(record.timestamp for record in records)
        ),
    )
    return encode_batch(fewer, compress(header.compression, body))


def without_records(header: BatchHeader) -> bytearray:
    """The batch of `header` with nothing but what it tells of its producer."""
    empty = msgspec.structs.replace(
        header,
        attributes=header.attributes & ~_CODEC_MASK,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return encode_batch(empty, b"")


def empty_batches(first_offset: int, next_offset: int) -> Iterator[bytearray]:
    """Batches without records that take the offsets from `first_offset` to `next_offset` (exclusive)."""
    while first_offset < next_offset:
        delta = min(next_offset - 1 - first_offset, _MAX_DELTA)
        header = BatchHeader(
            position=0,
            base_offset=first_offset,
            length=0,
            leader_epoch=LEADER_EPOCH,
            magic=_MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=delta,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=0,
        )
        yield encode_batch(header, b"")
        first_offset += delta + 1
