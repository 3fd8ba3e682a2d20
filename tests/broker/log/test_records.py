import random
import struct

import cramjam
import msgspec
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from kmr.broker.log.records import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    LEADER_EPOCH,
    MAX_READ_RECORDS,
    BatchError,
    BatchHeader,
    BatchTooLarge,
    Codec,
    CorruptBatch,
    InvalidBatch,
    NewRecord,
    TruncatedBatch,
    UnsupportedFormat,
    build_batch,
    check_batch,
    decompress,
    encode_batch,
    parse_header,
    read_records,
    split_batches,
    stamp_append_time,
    stamp_offset,
)

optional_bytes = st.none() | st.binary(max_size=50)
new_records = st.lists(
    st.builds(
        NewRecord,
        key=optional_bytes,
        value=optional_bytes,
        headers=st.lists(st.tuples(st.text(max_size=10), optional_bytes), max_size=3).map(tuple),
        timestamp=st.integers(min_value=0, max_value=2**45),
    ),
    min_size=1,
    max_size=30,
)
codecs = st.sampled_from(list(CODECS))
TEXT = b"the quick brown fox jumps over the lazy dog. " * 1000


def plain(count: int = 3, **options: int) -> bytearray:
    records = [NewRecord(b"key", b"value", (), 1000 + i) for i in range(count)]
    return build_batch(records, **options)  # type: ignore[arg-type]


def with_field(batch: bytearray, layout: str, at: int, value: int) -> bytearray:
    """The same batch with another header field, and a CRC that matches it."""
    struct.pack_into(layout, batch, at, value)
    struct.pack_into(">I", batch, CRC_START - 4, crc32c(batch[CRC_START:]))
    return batch


@given(new_records, codecs, st.integers(min_value=0, max_value=2**40))
def test_records_come_back_as_they_were_built(
    records: list[NewRecord], codec: Codec, base_offset: int
) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)
    (header,) = split_batches(batch)
    assert header.base_offset == base_offset
    assert header.next_offset == base_offset + len(records)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.size == len(batch)
    assert [(r.key, r.value, r.headers, r.timestamp) for r in read_records(batch, header)] == [
        (r.key, r.value, r.headers, r.timestamp) for r in records
    ]
    assert [r.offset for r in read_records(batch, header)] == list(
        range(base_offset, base_offset + len(records))
    )


@given(st.lists(st.integers(min_value=1, max_value=20), max_size=5))
def test_batches_are_split_with_their_positions(counts: list[int]) -> None:
    batches = [plain(count) for count in counts]
    data = b"".join(batches)
    headers = split_batches(data)
    assert [h.record_count for h in headers] == counts
    assert [data[h.position : h.end] for h in headers] == batches


@given(st.data())
def test_any_flipped_bit_that_the_crc_covers_is_found(data: st.DataObject) -> None:
    batch = plain()
    bit = data.draw(st.integers(min_value=CRC_START * 8, max_value=len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBatch):
        split_batches(batch)


@given(st.integers(min_value=1, max_value=199))
def test_a_truncated_batch_is_distinguished_from_a_damaged_one(cut: int) -> None:
    batch = plain(20)
    with pytest.raises(TruncatedBatch):
        split_batches(batch[: len(batch) * cut // 200 or 1])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_reason(data: bytes) -> None:
    if not data:
        assert split_batches(data) == []
        return
    with pytest.raises(BatchError, match=r"^batch at byte \d+: ."):
        split_batches(data)


@given(st.binary(max_size=300), codecs)
@example(b"\x80\x80\x80\x80\x02", "snappy")  # its length: 512 MB
def test_garbage_with_a_valid_crc_never_escapes_as_another_error(body: bytes, codec: Codec) -> None:
    batch = plain()
    batch[HEADER_BYTES:] = body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch = with_field(batch, ">h", CRC_START, CODECS[codec])
    header = parse_header(batch)
    check_batch(memoryview(batch), header)
    try:
        records = read_records(batch, header)
    except BatchTooLarge as error:
        assert "take more than" in str(error)  # noqa: PT017
    except CorruptBatch as error:
        assert "cannot be read" in str(error)  # noqa: PT017 - most bodies fail, but not all
    else:
        assert len(records) == header.record_count


def test_a_batch_of_absurdly_many_records_is_not_read() -> None:
    header = parse_header(build_batch([NewRecord(None, b"x" * 1_000)], codec="zstd"))
    bomb = msgspec.structs.replace(header, record_count=MAX_READ_RECORDS + 1)
    with pytest.raises(CorruptBatch, match=f"cannot be read: {MAX_READ_RECORDS + 1} records"):
        read_records(b"", bomb)


@pytest.mark.parametrize("codec", list(CODECS))
def test_a_batch_cannot_claim_more_records_than_it_may_have(codec: Codec) -> None:
    """Each claimed record takes an offset."""
    header = parse_header(build_batch([NewRecord(None, bytes(1000))], codec=codec))

    def claim(count: int, body: bytes) -> bytearray:
        claimed = msgspec.structs.replace(header, record_count=count, last_offset_delta=count - 1)
        return encode_batch(claimed, body)

    with pytest.raises(InvalidBatch, match=f"{2**31 - 1} records cannot be in"):
        split_batches(claim(2**31 - 1, TEXT))
    with pytest.raises(InvalidBatch, match=f"{MAX_READ_RECORDS + 1} records cannot be in"):
        split_batches(claim(MAX_READ_RECORDS + 1, TEXT))
    noise = random.Random(0).randbytes(7 * (MAX_READ_RECORDS + 1))
    (many,) = split_batches(claim(MAX_READ_RECORDS + 1, noise))  # each with seven bytes
    assert many.record_count == MAX_READ_RECORDS + 1
    if codec != "none":
        assert split_batches(claim(MAX_READ_RECORDS, TEXT))[0].record_count == MAX_READ_RECORDS


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_unsupported(magic: int) -> None:
    batch = plain()
    batch[16] = magic
    with pytest.raises(UnsupportedFormat, match=f"format v{magic}"):
        split_batches(batch)


def test_a_batch_beyond_the_limit_is_too_large() -> None:
    batch = plain()
    assert split_batches(batch, max_batch_bytes=len(batch))
    with pytest.raises(BatchTooLarge, match=f"{len(batch)} bytes, at most {len(batch) - 1}"):
        split_batches(batch, max_batch_bytes=len(batch) - 1)


@pytest.mark.parametrize(
    ("layout", "at", "value", "message"),
    [
        (">i", 23, 7, "offsets 0 to 7"),
        (">i", 57, 2, "2 records, but offsets 0 to 2"),
        (">i", 57, 0, "0 records"),
        (">h", CRC_START, 0x20, "control"),
        (">h", CRC_START, 0x08, "LogAppendTime"),
        (">h", CRC_START, 0x07, "codec 7"),
        (">h", CRC_START, 0x10, "transactional"),
        (">q", 43, 5, "producer id 5 with epoch -1"),
    ],
)
def test_a_batch_that_only_brokers_may_write_is_invalid(
    layout: str, at: int, value: int, message: str
) -> None:
    with pytest.raises(InvalidBatch, match=message):
        split_batches(with_field(plain(), layout, at, value))


def test_a_few_bytes_cannot_claim_two_thousand_million_records() -> None:
    batch = with_field(plain(), ">i", 23, 2**31 - 2)
    batch = with_field(batch, ">i", 57, 2**31 - 1)
    with pytest.raises(InvalidBatch, match="cannot be in"):
        split_batches(batch)


@pytest.mark.parametrize("last_offset_delta", [-1, -(2**31)])
def test_offsets_cannot_run_backwards(last_offset_delta: int) -> None:
    with pytest.raises(CorruptBatch, match="last offset delta"):
        split_batches(with_field(plain(), ">i", 23, last_offset_delta))


def test_the_offset_is_stamped_without_touching_the_crc() -> None:
    batch = plain(base_sequence=0, producer_id=3, producer_epoch=0)
    (before,) = split_batches(batch)
    struct.pack_into(">i", batch, 12, 77)
    stamp_offset(batch, before, 2**40)
    (after,) = split_batches(batch)
    assert (after.base_offset, after.leader_epoch, after.crc) == (2**40, LEADER_EPOCH, before.crc)


def test_append_time_becomes_the_time_of_every_record() -> None:
    batch = plain()
    stamp_append_time(batch, parse_header(batch), 5_000)
    header = parse_header(batch)
    check_batch(memoryview(batch), header)
    assert header.timestamp_type == 1
    assert [record.timestamp for record in read_records(batch, header)] == [5_000] * 3


def test_a_control_batch_is_marked_and_intact() -> None:
    batch = build_batch([NewRecord(b"k", b"v")], control=True, transactional=True, producer_id=1)
    header = parse_header(batch)
    check_batch(memoryview(batch), header)
    assert header.is_control
    assert header.is_transactional


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


@given(new_records, codecs)
def test_clients_can_read_built_batches(records: list[NewRecord], codec: Codec) -> None:
    batch = DefaultRecordBatch(bytes(build_batch(records, codec=codec)))
    assert batch.validate_crc()
    assert [record.value for record in batch] == [record.value for record in records]


def test_every_codec_is_decompressed() -> None:
    for codec, compressed in enumerate(
        (
            cramjam.gzip.compress(TEXT),
            cramjam.snappy.compress_raw(TEXT),
            cramjam.lz4.compress(TEXT),
            cramjam.zstd.compress(TEXT),
        ),
        start=1,
    ):
        assert decompress(codec, memoryview(bytes(compressed))) == TEXT


def test_the_java_librarys_snappy_blocks_are_joined() -> None:
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (TEXT[:20_000], TEXT[20_000:])]
    stream = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    stream += b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    assert decompress(2, memoryview(stream)) == TEXT


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_garbage_is_refused(codec: int) -> None:
    with pytest.raises(ValueError, match="decompression failed"):
        decompress(codec, memoryview(b"\xff\xfe this is not compressed at all"))


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown compression codec 6"):
        decompress(6, memoryview(b"x"))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_is_refused_before_it_fills_the_memory(codec: int) -> None:
    batch = encode_batch(BatchHeader(attributes=codec, record_count=1), bytes(2**20))
    with pytest.raises(BatchTooLarge, match="its records take more than 1000000 bytes"):
        read_records(batch, parse_header(batch), 1_000_000)
    with pytest.raises(CorruptBatch):
        read_records(batch, parse_header(batch), 2**20)


def test_a_length_that_no_memory_holds_is_damage() -> None:
    record = b"\x40\0\0\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + bytes(30)  # a key of 2**63 bytes
    batch = encode_batch(BatchHeader(record_count=1), record)
    with pytest.raises(CorruptBatch):
        read_records(batch, parse_header(batch))
