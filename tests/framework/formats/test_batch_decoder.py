"""The decoder: formats, limits, errors; `test_batch_decoder_properties` has what holds for any input."""

from __future__ import annotations

import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from kmr.errors import CorruptRecords
from kmr.formats.batch_decoder import BatchDecoder, FetchedPart
from kmr.formats.columns import Row, from_rows
from kmr.record import SCHEMA, Batch

from .encoding import GZIP, LZ4, NONE, SNAPPY, ZSTD, BatchSpec, seal


def decode(decoder: BatchDecoder, data: bytes, first: int = 0, aborted: Any = ()) -> pa.RecordBatch:
    batch = decoder.batch("topic", 3, data, first, aborted)
    assert batch is not None
    return check(batch)


def check(batch: Batch) -> pa.RecordBatch:
    records = batch.records
    records.validate(full=True)
    assert records.schema == SCHEMA
    assert all(batch.first <= offset <= batch.last for offset in batch.offsets().tolist())
    return records


@pytest.fixture(scope="module")
def decoder() -> BatchDecoder:
    return BatchDecoder()


def test_an_abort_marker_ends_the_aborted_records(decoder: BatchDecoder) -> None:
    def rows(*offsets: int) -> list[Row]:
        return [Row(offset, 1, 0, None, b"%d" % offset) for offset in offsets]

    log = [
        BatchSpec(base=0, last=1, rows=rows(0, 1), producer=1, transactional=True),
        BatchSpec(base=2, last=2, rows=rows(2), producer=2, transactional=True),
        BatchSpec(base=3, last=3, rows=[], producer=1, transactional=True, marker=0),
        BatchSpec(base=4, last=4, rows=rows(4), producer=1, transactional=True),
        BatchSpec(base=5, last=5, rows=rows(5)),
        BatchSpec(base=6, last=6, rows=[], producer=1, transactional=True, marker=1),
        BatchSpec(base=7, last=7, rows=[], producer=2, transactional=True, marker=1),
    ]
    raw = b"".join(spec.encode() for spec in log)
    for response in (raw, memoryview(raw)):
        batch = decoder.batch("topic", 3, response, 0, [(1, 0)])
        assert batch is not None
        assert check(batch)["offset"].to_pylist() == [2, 4, 5]
        assert (batch.first, batch.last) == (0, 7)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_batches_of_aiokafkas_encoder_are_decoded(decoder: BatchDecoder, codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    rows = []
    for offset in range(500):
        row = Row(
            offset,
            1_700_000_000_000 + 37 * offset % 1000,
            0,
            None if offset % 7 == 0 else b"key-%d" % offset,
            None if offset % 11 == 0 else b"value " * (offset % 13),
            [("trace", b"%d" % offset), ("größe", None)] if offset % 3 == 0 else [],
        )
        builder.append(offset, row.timestamp_ms, row.key, row.value, list(row.headers))
        rows.append(row)
    assert decode(decoder, bytes(builder.build())) == from_rows("topic", 3, rows)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY])
def test_the_old_message_formats_are_read_too(
    decoder: BatchDecoder, magic: int, codec: int
) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 16)
    for offset in range(5):
        builder.append(offset, timestamp=1000 + offset, key=b"k", value=b"v%d" % offset)
    new = BatchSpec(
        base=5, last=6, rows=[Row(5, 9, 0, None, b"new"), Row(6, 9, 0, b"", None)], codec=ZSTD
    )
    old = bytes(builder.build())
    if codec:  # a broker gives the wrapper the offset of its last message
        old = struct.pack(">q", 4) + old[8:]
    stamp = (-1, -1) if magic == 0 else None
    rows = [
        Row(offset, *(stamp or (1000 + offset, 0)), b"k", b"v%d" % offset) for offset in (2, 3, 4)
    ]
    data = old + new.encode()
    for response in (data, memoryview(data)):
        batch = decoder.batch("topic", 3, response, 2)
        assert batch is not None
        assert (batch.first, batch.last) == (2, 6)
        assert check(batch) == from_rows("topic", 3, rows + new.rows)


def test_a_damaged_message_of_an_old_format_is_refused(decoder: BatchDecoder) -> None:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=NONE, batch_size=1 << 16)
    builder.append(0, timestamp=1, key=b"k", value=b"value")
    raw = bytearray(builder.build())
    raw[-1] ^= 1
    with pytest.raises(CorruptRecords, match=r"topic-3: .* offset 0 .* checksum is wrong"):
        decode(decoder, bytes(raw))


ONE = BatchSpec(base=7, last=7, rows=[Row(7, 1, 0, b"key", b"value")])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (ONE.encode()[:-1], "cut off after 75 of 76 bytes"),
        (ONE.encode()[:5], "cut off after 5 of 12 bytes"),
        (ONE.encode()[:8] + b"\x00\x00\x00\x01" + ONE.encode()[12:], "length is impossible"),
        (ONE.encode()[:16] + b"\x03" + ONE.encode()[17:], "format version is unknown"),
        (BatchSpec(base=2**62 + 1, last=2**62 + 1, rows=[]).encode(), "do not ascend"),
        (ONE.encode()[:-1] + b"\xff", "checksum is wrong"),
        (BatchSpec(base=3, last=3, rows=ONE.rows).encode(), "only records before that offset"),
    ],
)
def test_damaged_batches_are_refused_at_once(
    decoder: BatchDecoder, raw: bytes, message: str
) -> None:
    with pytest.raises(CorruptRecords, match=f"topic-3: .* offset 7 is damaged: .*{message}"):
        decoder.batch("topic", 3, raw, 7)


LATER = BatchSpec(base=8, last=8, rows=[Row(8, 1, 0, None, b"later")]).encode()


@pytest.mark.parametrize(
    "damaged", [ONE.encode(), LATER[:-1] + b"\xff", LATER[:16] + b"\x05" + LATER[17:]]
)
def test_batches_before_a_damaged_one_are_not_lost(decoder: BatchDecoder, damaged: bytes) -> None:
    batch = decoder.batch("topic", 3, ONE.encode() + damaged, 7)
    assert batch is not None
    assert check(batch) == from_rows("topic", 3, ONE.rows)
    assert (batch.first, batch.last) == (7, 7)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (seal(ONE.encode() + b"\x00"), "bytes after its last record"),
        (seal(ONE.encode()[:-1]), "does not fit"),
        (seal(ONE.encode()[:57] + struct.pack(">i", 0) + ONE.encode()[61:]), "after its last"),
        (seal(ONE.encode()[:21] + b"\x00\x05" + ONE.encode()[23:]), "codec 5 is unknown"),
        (seal(ONE.encode()[:21] + b"\x00\x03" + ONE.encode()[23:]), "cannot be decompressed"),
        (
            BatchSpec(
                base=7, last=9, rows=[Row(9, 1, 0, None, None), Row(8, 1, 0, None, None)]
            ).encode(),
            "do not ascend",
        ),
        (
            seal(
                BatchSpec(base=7, last=99, rows=[]).encode()[:57]
                + struct.pack(">i", 50)
                + b"\x00" * 60
            ),
            "record count is impossible",
        ),
    ],
)
def test_damage_that_only_decoding_finds_is_refused_then(
    decoder: BatchDecoder, raw: bytes, message: str
) -> None:
    batch = decoder.batch("topic", 3, raw, 7)
    assert batch is not None
    with pytest.raises(CorruptRecords, match=f"topic-3: .* offset 7 is damaged: .*{message}"):
        _ = batch.records


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_small_batch_cannot_exhaust_memory(codec: int) -> None:
    bomb = BatchSpec(base=0, last=0, rows=[Row(0, 0, 0, None, bytes(8 << 20))], codec=codec)
    batch = BatchDecoder(limit=1 << 20).batch("topic", 3, bomb.encode(), 0)
    assert batch is not None
    with pytest.raises(CorruptRecords, match=r"offset 0 .* cannot be decompressed"):
        _ = batch.records
    assert len(decode(BatchDecoder(), bomb.encode())["value"][0].as_py()) == 8 << 20


def test_a_batch_of_markers_has_a_range_and_no_rows(decoder: BatchDecoder) -> None:
    raw = BatchSpec(base=5, last=5, rows=[], producer=1, transactional=True, marker=1).encode()
    batch = decoder.batch("topic", 3, raw, 4)
    assert batch is not None
    assert (batch.first, batch.last, len(batch)) == (4, 5, 0)
    assert check(batch) == from_rows("topic", 3, [])


def test_no_data_is_no_batch(decoder: BatchDecoder) -> None:
    assert decoder.batch("topic", 3, b"", 0) is None


def test_parts_of_a_response_are_read_together_as_each_alone(decoder: BatchDecoder) -> None:
    many = b"".join(
        BatchSpec(base=7 + n, last=7 + n, rows=[Row(7 + n, 1, 0, None, b"x")]).encode()
        for n in range(500)
    )
    raws = [
        ONE.encode() + LATER,
        ONE.encode()[:-1],
        b"",
        many,
        ONE.encode()[:-1] + b"\xff",
        ONE.encode() + LATER[:-1] + b"\xff",
        BatchSpec(base=3, last=3, rows=ONE.rows).encode(),
        many * 4,
        many[:-5],
        LATER,
    ]
    parts = [FetchedPart("topic", number, raw, 7) for number, raw in enumerate(raws)]
    found = decoder.batches(parts)
    damaged = {1: "cut off", 4: "checksum is wrong", 6: "only records before"}
    for number, (part, made) in enumerate(zip(parts, found, strict=True)):
        if number in damaged:
            assert isinstance(made, CorruptRecords)
            with pytest.raises(CorruptRecords, match=damaged[number]) as alone:
                decoder.batch(*part)
            assert str(made) == str(alone.value)
            continue
        expected = decoder.batch(*part)
        assert repr(made) == repr(expected)
        if expected is not None:
            assert isinstance(made, Batch)
            assert check(made) == check(expected)
            assert made.max_timestamp_ms == expected.max_timestamp_ms


def test_timestamps_beyond_the_range_of_a_column_are_clamped(decoder: BatchDecoder) -> None:
    nanoseconds = 1_700_000_000_000_000_000
    raw = BatchSpec(base=0, last=0, rows=[Row(0, nanoseconds, 0, None, None)]).encode()
    largest = decode(decoder, raw)["timestamp"].cast(pa.int64())[0].as_py()
    assert largest == (2**63 - 1) // 1000 * 1000


def test_invalid_unicode_in_a_header_key_is_replaced(decoder: BatchDecoder) -> None:
    raw = BatchSpec(base=0, last=0, rows=[Row(0, 0, 0, None, None, [("ab", b"x")])]).encode()
    raw = seal(raw.replace(b"\x04ab", b"\x04a\xff"))
    assert decode(decoder, raw)["headers"].to_pylist() == [[{"key": "a\ufffd", "value": b"x"}]]


def test_the_size_of_compressed_batches_is_estimated_from_earlier_ones() -> None:
    decoder = BatchDecoder()
    raw = BatchSpec(base=0, last=0, rows=[Row(0, 0, 0, None, bytes(100_000))], codec=ZSTD).encode()
    guess = decoder.batch("topic", 3, raw, 0)
    assert guess is not None
    _ = guess.records
    informed = decoder.batch("topic", 3, raw, 0)
    assert informed is not None
    assert guess.nbytes < 50_000 < informed.nbytes < 200_000
    assert guess.max_timestamp_ms == 0


def test_a_decoded_batch_lets_the_bytes_of_its_response_go(decoder: BatchDecoder) -> None:
    raw = BatchSpec(base=0, last=0, rows=[Row(0, 0, 0, b"key", b"value")]).encode()
    unused = sys.getrefcount(raw)
    batch = decoder.batch("topic", 3, raw, 0)
    assert batch is not None
    assert sys.getrefcount(raw) > unused
    assert batch.records.num_rows == 1
    assert sys.getrefcount(raw) == unused


def test_several_threads_may_decode_with_one_decoder(decoder: BatchDecoder) -> None:
    rows = [Row(offset, offset, 0, b"k", b"v" * (offset % 50)) for offset in range(2000)]
    raw = BatchSpec(base=0, last=1999, rows=rows, codec=LZ4).encode()
    batches = [decoder.batch(f"topic-{n % 5}", n, raw, n) for n in range(100)]
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda batch: batch.records if batch else None, batches))
    for n, records in enumerate(decoded):
        assert records == from_rows(f"topic-{n % 5}", n, rows[n:])
