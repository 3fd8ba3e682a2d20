"""What a topic's settings ask of batches before they are appended.

Most topics take batches as they come: then nothing here looks into them. Compacted topics need keys
(KIP-87), limits of timestamps need the timestamps (KIP-937), and a topic's own codec needs another
compression of what came in a different one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from broker.compression import compress, decompress
from broker.log.config import NO_TIME_LIMIT
from broker.records import (
    CODECS,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchTooLarge,
    CorruptBatch,
    InvalidBatch,
    InvalidTimestamp,
    encode_batch,
    read_records,
    split_batches,
)

if TYPE_CHECKING:
    from broker.log.config import LogConfig
    from broker.records import BatchHeader

__all__ = ["conform"]

_CODECS: Final[dict[str, int]] = {"uncompressed": 0} | dict(CODECS.items())
_CODEC_MASK: Final = 0x07


def conform(
    data: memoryview | bytearray,
    batches: list[BatchHeader],
    config: LogConfig,
    *,
    now_ms: int,
) -> tuple[memoryview | bytearray, list[BatchHeader]]:
    """The batches as the topic stores them, and their headers.

    Args:
        data: nothing but the batches; it is returned itself when nothing has to change.
        batches: what `split_batches(data)` returned.
        config: the topic's.
        now_ms: milliseconds since the epoch.

    Raises:
        InvalidBatch: records have no key, in a compacted topic; all of them are named (KIP-467).
        InvalidTimestamp: timestamps are too far from `now_ms`; all of these records are named.
        CorruptBatch: the records cannot be read.
        BatchTooLarge: a batch is too large when compressed as the topic wants it.
    """
    limited = config.message_timestamp_type == "CreateTime"
    too_old = limited and config.message_timestamp_before_max_ms < NO_TIME_LIMIT
    latest = now_ms + config.message_timestamp_after_max_ms
    for batch in batches:
        # That none is too new can be seen from outside; the oldest of a batch is not in its header.
        if config.compacts or too_old or (limited and batch.max_timestamp > latest):
            _check_records(data, batch, config, now_ms=now_ms, limited=limited)
    if config.compression_type == "producer":
        return data, batches
    codec = _CODECS[config.compression_type]
    if all(batch.compression == codec for batch in batches):
        return data, batches
    compressed = bytearray()
    for batch in batches:
        compressed += _in_codec(data, batch, codec, config.compression_level)
    try:
        return compressed, split_batches(compressed, max_batch_bytes=config.max_message_bytes)
    except BatchTooLarge as error:
        raise BatchTooLarge(f"as {config.compression_type}, {error}") from None


def _check_records(
    data: memoryview | bytearray,
    batch: BatchHeader,
    config: LogConfig,
    *,
    now_ms: int,
    limited: bool,
) -> None:
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    without_key: list[tuple[int, str]] = []
    out_of_time: list[tuple[int, str]] = []
    for number, record in enumerate(read_records(data, batch)):
        if config.compacts and record.key is None:
            without_key.append((number, "it has no key, which a compacted topic needs"))
        timestamp = record.timestamp
        if limited and timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            out_of_time.append(
                (
                    number,
                    f"its timestamp is {timestamp}, the topic takes {earliest} to {latest} now",
                )
            )
    if out_of_time:
        raise InvalidTimestamp(_blame(out_of_time), out_of_time)
    if without_key:
        raise InvalidBatch(_blame(without_key), without_key)


def _blame(refused: list[tuple[int, str]]) -> str:
    """What is wrong with the batch, by its first bad record."""
    number, reason = refused[0]
    count = f"{len(refused)} records are" if len(refused) > 1 else "one record is"
    return f"{count} refused, and the batch with it; record {number}: {reason}"


def _in_codec(
    data: memoryview | bytearray, batch: BatchHeader, codec: int, level: int | None
) -> bytearray | memoryview:
    stored = memoryview(data)[batch.position : batch.end]
    if batch.compression == codec:
        return stored
    body = stored[HEADER_BYTES:]
    try:
        plain = decompress(batch.compression, body) if batch.compression else body
    except ValueError as error:
        raise CorruptBatch(str(error)) from error
    attributes = batch.attributes & ~_CODEC_MASK | codec
    header = msgspec.structs.replace(batch, attributes=attributes)
    return encode_batch(header, compress(codec, plain, level))
