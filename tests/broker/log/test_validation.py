from dataclasses import replace
from random import Random

import pytest

from kmr.broker.log.log_config import CompressionType, LogConfig
from kmr.broker.log.records import (
    CODECS,
    BatchTooLarge,
    Codec,
    InvalidBatch,
    InvalidTimestamp,
    NewRecord,
    build_batch,
    read_records,
    split_batches,
)
from kmr.broker.log.validation import validate_batches

NOW = 1_700_000_000_000
RECORDS = [NewRecord(b"k%d" % n, b"value " * 50, [("h", b"x")], NOW + n) for n in range(3)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_get_the_codec_of_their_topic(codec: Codec, wanted: CompressionType) -> None:
    data = build_batch(
        RECORDS, codec=codec, producer_id=7, producer_epoch=1, base_sequence=5, transactional=True
    )
    batches = split_batches(data)
    config = LogConfig(compression_type=wanted)
    stored, (header,) = validate_batches(data, batches, config, now_ms=NOW)
    assert header.compression == CODECS["none" if wanted == "uncompressed" else wanted]  # type: ignore[index]
    assert read_records(stored, header) == read_records(data, batches[0])
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 5)
    assert header.max_timestamp == NOW + 2


def test_batches_that_suit_their_topic_are_not_copied() -> None:
    data = build_batch(RECORDS, codec="zstd")
    batches = split_batches(data)
    for config in (LogConfig(), LogConfig(compression_type="zstd")):
        stored, headers = validate_batches(data, batches, config, now_ms=NOW)
        assert stored is data
        assert headers is batches


def test_only_batches_in_another_codec_are_compressed_anew() -> None:
    one, other = build_batch(RECORDS, codec="zstd"), build_batch(RECORDS)
    data = one + other
    stored, headers = validate_batches(
        data, split_batches(data), LogConfig(compression_type="zstd"), now_ms=NOW
    )
    assert bytes(stored[: len(one)]) == bytes(one)
    assert [header.compression for header in headers] == [CODECS["zstd"]] * 2


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (
            LogConfig(compression_type="gzip", compression_gzip_level=1),
            LogConfig(compression_type="gzip", compression_gzip_level=9),
        ),
        (
            LogConfig(compression_type="lz4", compression_lz4_level=1),
            LogConfig(compression_type="lz4", compression_lz4_level=12),
        ),
        (
            LogConfig(compression_type="zstd", compression_zstd_level=1),
            LogConfig(compression_type="zstd", compression_zstd_level=19),
        ),
    ],
)
def test_a_topic_says_how_hard_its_batches_are_compressed(
    weak: LogConfig, strong: LogConfig
) -> None:
    chosen = Random(1)
    words = [b"%x" % chosen.getrandbits(40) for _ in range(500)]
    text = b" ".join(chosen.choices(words, k=20_000))
    data = build_batch([NewRecord(None, text, (), NOW)])

    def size(config: LogConfig) -> int:
        stored, (header,) = validate_batches(data, split_batches(data), config, now_ms=NOW)
        assert read_records(stored, header)[0].value == text
        return header.size

    assert size(strong) < size(weak)


def test_a_batch_that_grows_beyond_the_limit_is_refused() -> None:
    data = build_batch(RECORDS, codec="zstd")
    config = LogConfig(compression_type="uncompressed", max_message_bytes=len(data))
    with pytest.raises(BatchTooLarge, match="as uncompressed, batch at byte 0"):
        validate_batches(data, split_batches(data), config, now_ms=NOW)


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_a_compacted_topic_takes_no_record_without_a_key(policy: str) -> None:
    records = [
        NewRecord(b"", b""),
        NewRecord(None, b""),
        NewRecord(b"k", None),
        NewRecord(None, b""),
    ]
    data = build_batch(records)
    config = LogConfig(cleanup_policy=policy)
    with pytest.raises(InvalidBatch, match=r"2 records are .* record 1: it has no key") as refused:
        validate_batches(data, split_batches(data), config, now_ms=NOW)
    assert [number for number, _ in refused.value.records] == [1, 3]
    validate_batches(data, split_batches(data), LogConfig(), now_ms=NOW)


@pytest.mark.parametrize(("timestamp", "fits"), [(-11, False), (-10, True), (5, True), (6, False)])
def test_timestamps_must_be_near_the_brokers_clock_where_a_topic_says_so(
    timestamp: int, fits: bool
) -> None:
    records = [NewRecord(None, b"", (), NOW), NewRecord(None, b"", (), NOW + timestamp)]
    data = build_batch([*records, NewRecord(None, b"", (), NOW)])
    config = LogConfig(message_timestamp_before_max_ms=10, message_timestamp_after_max_ms=5)
    if fits:
        validate_batches(data, split_batches(data), config, now_ms=NOW)
    else:
        with pytest.raises(InvalidTimestamp, match="record 1: its timestamp is") as refused:
            validate_batches(data, split_batches(data), config, now_ms=NOW)
        assert [number for number, _ in refused.value.records] == [1]
    stamped = replace(config, message_timestamp_type="LogAppendTime")
    validate_batches(data, split_batches(data), stamped, now_ms=NOW)


def test_records_without_a_timestamp_are_never_too_old() -> None:
    data = build_batch([NewRecord(None, b"")])
    validate_batches(
        data, split_batches(data), LogConfig(message_timestamp_before_max_ms=0), now_ms=NOW
    )


def test_timestamps_more_than_an_hour_ahead_are_refused_by_default() -> None:
    """KIP-937: somebody took microseconds for milliseconds, say."""
    hour = 3600 * 1000
    data = build_batch([NewRecord(None, b"", (), NOW), NewRecord(None, b"", (), NOW + hour + 1)])
    validate_batches(data, split_batches(data), LogConfig(), now_ms=NOW + 1)
    with pytest.raises(InvalidTimestamp, match="record 1: its timestamp is") as refused:
        validate_batches(data, split_batches(data), LogConfig(), now_ms=NOW)
    assert [number for number, _ in refused.value.records] == [1]
