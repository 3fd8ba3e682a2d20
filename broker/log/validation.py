"""Validation of produced batches against a topic's settings, after Kafka's LogValidator.

Most topics take any batch, and its records are not read. Compacted topics require keys (KIP-87), limits on
timestamps require reading them (KIP-937), and a topic with a codec of its own recompresses batches that came
in another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .log_config import NO_TIME_LIMIT
from .records import (
    CODECS,
    NO_TIMESTAMP,
    BatchTooLarge,
    CorruptBatch,
    InvalidBatch,
    InvalidTimestamp,
    encode_batch,
    iterate_records,
    read_body,
    split_batches,
    with_codec,
)

if TYPE_CHECKING:
    from .log_config import LogConfig
    from .records import BatchHeader

_CODECS: Final[dict[str, int]] = {"uncompressed": 0} | dict(CODECS.items())
_RECORDS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 32 * 1024
_MOST_BLAMED: Final = 1000  # records in an error, of any number


class TakesLong(Exception):
    """The batches are too large to be validated in the event loop: nothing was done."""


def stores_as_sent(config: LogConfig) -> bool:
    """Whether the topic stores each batch as it came, unless its timestamps are ahead of the clock."""
    return (
        config.message_timestamp_type == "CreateTime"
        and config.compression_type == "producer"
        and not _reads_records(config)
    )


def validate_batches(
    data: memoryview | bytearray,
    batches: list[BatchHeader],
    config: LogConfig,
    *,
    now_ms: int,
    at_once: bool = False,
) -> tuple[memoryview | bytearray, list[BatchHeader]]:
    """Check the batches; return them as the topic stores them, and their headers.

    Args:
        data: the batches, without any other bytes; returned as it is if nothing has to change.
        batches: the result of `split_batches(data)`.
        config: the topic's.
        now_ms: milliseconds since the epoch.
        at_once: do no more than may be done in the event loop.

    Raises:
        TakesLong: it would, with `at_once`.
        InvalidBatch: records in a compacted topic have no key; the error lists them (KIP-467).
        InvalidTimestamp: timestamps are too far from `now_ms`; the error lists the records.
        CorruptBatch: the records cannot be read.
        BatchTooLarge: a batch is too large in the topic's codec, or without compression.
    """
    limited = config.message_timestamp_type == "CreateTime"
    latest = now_ms + config.message_timestamp_after_max_ms
    reads_records = _reads_records(config)
    most_bytes = _BYTES_AT_ONCE if at_once else config.max_uncompressed_bytes
    try:
        for batch in batches:
            if reads_records or (limited and batch.max_timestamp > latest):
                if at_once and batch.record_count > _RECORDS_AT_ONCE:
                    raise TakesLong
                _check_records(data, batch, config, most_bytes, now_ms=now_ms, limited=limited)
        if config.compression_type == "producer":
            return data, batches
        codec = _CODECS[config.compression_type]
        if all(batch.compression == codec for batch in batches):
            return data, batches
        compressed = bytearray()
        for batch in batches:
            compressed += _in_codec(data, batch, codec, config.compression_level, most_bytes)
    except BatchTooLarge:
        if at_once:
            raise TakesLong from None
        raise
    try:
        return compressed, split_batches(compressed, max_batch_bytes=config.max_message_bytes)
    except BatchTooLarge as error:
        raise BatchTooLarge(f"as {config.compression_type}, {error}") from None


def _reads_records(config: LogConfig) -> bool:
    """Whether the records of every batch are read: its header has neither keys nor the earliest timestamp."""
    limits_age = (
        config.message_timestamp_type == "CreateTime"
        and config.message_timestamp_before_max_ms < NO_TIME_LIMIT
    )
    return config.compacts or limits_age


def _check_records(
    data: memoryview | bytearray,
    batch: BatchHeader,
    config: LogConfig,
    most_bytes: int,
    *,
    now_ms: int,
    limited: bool,
) -> None:
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    without_key: list[tuple[int, str]] = []
    out_of_time: list[tuple[int, str]] = []
    for number, record in enumerate(iterate_records(data, batch, most_bytes)):
        if max(len(without_key), len(out_of_time)) >= _MOST_BLAMED:
            break
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
    """Return the error message, with the first refused record as an example."""
    number, reason = refused[0]
    count = f"{len(refused)} records are" if len(refused) > 1 else "one record is"
    return f"{count} refused, and the batch with it; record {number}: {reason}"


def _in_codec(
    data: memoryview | bytearray, batch: BatchHeader, codec: int, level: int | None, most_bytes: int
) -> bytearray | memoryview:
    if batch.compression == codec:
        return memoryview(data)[batch.position : batch.end]
    try:
        body = read_body(data, batch, most_bytes)
    except ValueError as error:
        raise CorruptBatch(str(error)) from error
    if len(body) > most_bytes:
        raise BatchTooLarge(f"{len(body)} bytes, at most {most_bytes} are compressed anew")
    return encode_batch(with_codec(batch, codec), body, level)
