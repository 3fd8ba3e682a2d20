"""The compiled decoder against its plain Python twin, aiokafka's encoder, and damaged bytes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cramjam
import crc32c
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from framework.columns import Constants, Row, from_rows
from framework.decode import Decoder, warm_up
from framework.decode_reference import decode as reference
from framework.errors import CorruptRecords
from framework.record import SCHEMA, Batch

if TYPE_CHECKING:
    from pathlib import Path

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    value %= 2**64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def compress(codec: int, body: bytes, *, xerial: bool = False) -> bytes:
    if codec == SNAPPY and xerial:
        blocks = [
            bytes(cramjam.snappy.compress_raw(body[i : i + 50])) for i in range(0, len(body), 50)
        ]
        framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
        return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(body))
    if codec == NONE:
        return body
    return bytes({GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec].compress(body))


def seal(batch: bytes) -> bytes:
    """The batch with the length and the checksum that it should have."""
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


@dataclass
class Spec:
    """A record batch to be: offsets of `rows` are absolute."""

    base: int
    last: int
    rows: list[Row]
    codec: int = NONE
    xerial: bool = False
    append_time: int | None = None
    producer: int = -1
    transactional: bool = False
    marker: int | None = None  # a control batch: 0 abort, 1 commit
    base_timestamp: int = field(default=0)

    def encode(self) -> bytes:
        rows = self.rows
        if self.marker is not None:
            key = struct.pack(">hh", 0, self.marker)
            rows = [Row(self.base, self.base_timestamp, 0, key, struct.pack(">hi", 0, 0))]
        body = b""
        for row in rows:
            record = (
                b"\x00"
                + varint(row.timestamp_ms - self.base_timestamp)
                + varint(row.offset - self.base)
                + sized(row.key)
                + sized(row.value)
                + varint(len(row.headers))
                + b"".join(sized(key.encode()) + sized(value) for key, value in row.headers)
            )
            body += varint(len(record)) + record
        attributes = self.codec
        attributes |= 0x08 if self.append_time is not None else 0
        attributes |= 0x10 if self.transactional else 0
        attributes |= 0x20 if self.marker is not None else 0
        largest = max((row.timestamp_ms for row in rows), default=-1)
        return seal(
            struct.pack(
                ">qiibIhiqqqhii",
                self.base,
                0,
                7,
                2,
                0,
                attributes,
                self.last - self.base,
                self.base_timestamp,
                largest if self.append_time is None else self.append_time,
                self.producer,
                0 if self.producer >= 0 else -1,
                -1,
                len(rows),
            )
            + compress(self.codec, body, xerial=self.xerial)
        )

    def expected(self) -> list[Row]:
        if self.append_time is None:
            return self.rows
        return [row._replace(timestamp_ms=self.append_time, timestamp_type=1) for row in self.rows]


timeless = settings(deadline=None)  # the first example may wait for the compiler

MILLISECONDS = st.integers(0, 2**42)
KEYS = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)


@st.composite
def specs(draw: st.DrawFn) -> list[Spec]:
    """Batches as a log holds them: offsets ascend, with the gaps that compaction leaves."""
    offset = draw(st.integers(0, 2**40))
    out = []
    for _ in range(draw(st.integers(1, 5))):
        offset += draw(st.integers(0, 3))
        base = offset
        rows = []
        for _ in range(draw(st.integers(0, 6))):
            offset += draw(st.integers(0, 2))
            rows.append(Row(offset, draw(MILLISECONDS), 0, draw(KEYS), draw(KEYS), draw(HEADERS)))
            offset += 1
        offset = max(offset, base + 1) + draw(st.integers(0, 3))
        spec = Spec(
            base,
            offset - 1,
            rows,
            codec=draw(st.sampled_from(CODECS)),
            xerial=draw(st.booleans()),
            append_time=draw(st.none() | MILLISECONDS),
            base_timestamp=draw(MILLISECONDS),
        )
        if draw(st.booleans()):
            spec.producer = draw(st.integers(0, 2))
            spec.transactional = draw(st.booleans())
            if spec.transactional and draw(st.booleans()):
                spec.marker, spec.codec, spec.last = draw(st.sampled_from((0, 1))), NONE, base
                offset = base + 1
        out.append(spec)
    return out


def decode(decoder: Decoder, data: bytes, first: int = 0, aborted: Any = ()) -> pa.RecordBatch:
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
def decoder() -> Decoder:
    return Decoder()


@timeless
@given(specs(), st.data())
def test_the_decoder_the_twin_and_the_input_are_equal(
    batches: list[Spec], data: st.DataObject
) -> None:
    encoded = [spec.encode() for spec in batches]
    raw = b"".join(encoded)
    first = data.draw(st.integers(batches[0].base, batches[-1].last), "first")
    batch = Decoder().batch("topic", 3, raw, first)
    assert batch is not None
    assert (batch.first, batch.last) == (first, batches[-1].last)
    rows = [
        row
        for spec in batches
        if spec.marker is None
        for row in spec.expected()
        if row.offset >= first
    ]
    assert check(batch) == from_rows("topic", 3, rows)
    assert batch.records == reference("topic", 3, raw, first)


@timeless
@given(
    specs(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=4), st.booleans()
)
def test_records_of_aborted_transactions_are_left_out_like_in_the_twin(
    batches: list[Spec], transactions: list[tuple[int, int]], read_committed: bool
) -> None:
    raw = b"".join(spec.encode() for spec in batches)
    start = batches[0].base
    aborted = [(producer, start + delta) for producer, delta in transactions]
    got = decode(Decoder(read_committed=read_committed), raw, start, aborted)
    assert got == reference("topic", 3, raw, start, aborted, read_committed=read_committed)


def test_an_abort_marker_ends_what_is_left_out(decoder: Decoder) -> None:
    def rows(*offsets: int) -> list[Row]:
        return [Row(offset, 1, 0, None, b"%d" % offset) for offset in offsets]

    log = [
        Spec(0, 1, rows(0, 1), producer=1, transactional=True),
        Spec(2, 2, rows(2), producer=2, transactional=True),
        Spec(3, 3, [], producer=1, transactional=True, marker=0),
        Spec(4, 4, rows(4), producer=1, transactional=True),
        Spec(5, 5, rows(5)),
        Spec(6, 6, [], producer=1, transactional=True, marker=1),
        Spec(7, 7, [], producer=2, transactional=True, marker=1),
    ]
    raw = b"".join(spec.encode() for spec in log)
    batch = decoder.batch("topic", 3, raw, 0, [(1, 0)])
    assert batch is not None
    assert check(batch)["offset"].to_pylist() == [2, 4, 5]
    assert (batch.first, batch.last) == (0, 7)


@timeless
@given(specs(), st.data())
def test_an_incomplete_batch_at_the_end_is_left_for_the_next_fetch(
    batches: list[Spec], data: st.DataObject
) -> None:
    assume(len(batches) > 1)
    whole = b"".join(spec.encode() for spec in batches[:-1])
    last = batches[-1].encode()
    cut = data.draw(st.integers(0, len(last) - 1), "cut")
    batch = Decoder().batch("topic", 3, whole + last[:cut], batches[0].base)
    assert batch is not None
    assert batch.last == batches[-2].last
    assert check(batch) == reference("topic", 3, whole, batches[0].base)


@timeless
@given(specs(), st.data())
def test_damaged_records_under_a_valid_checksum_are_refused_or_read_as_by_the_twin(
    batches: list[Spec], data: st.DataObject
) -> None:
    encoded = [spec.encode() for spec in batches]
    victim = data.draw(st.integers(0, len(batches) - 1), "victim")
    body = bytearray(encoded[victim])
    # Not the base offset, the length and the version: those are damaged in the test below.
    places = [21, 22, *range(23, len(body))]
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4), "places"):
        body[place] = data.draw(st.integers(0, 255) | st.just(body[place] ^ 1), "byte")
    cut = data.draw(st.sampled_from((0, 0, 1, 5)), "cut")
    encoded[victim] = seal(bytes(body[: max(len(body) - cut, 61)]))
    assert_like_the_twin(b"".join(encoded), batches[0].base)


@timeless
@given(specs(), st.data())
def test_damaged_bytes_never_do_worse_than_to_be_refused(
    batches: list[Spec], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(spec.encode() for spec in batches))
    for place in data.draw(
        st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=6), "places"
    ):
        raw[place] = data.draw(st.integers(0, 255), "byte")
    try:
        batch = Decoder(check_crcs=False).batch("topic", 3, bytes(raw), batches[0].base)
        assert batch is not None
        check(batch)
    except CorruptRecords:
        pass


@timeless
@given(st.binary(max_size=300), st.integers(0, 100))
def test_random_bytes_are_refused(data: bytes, first: int) -> None:
    assert_like_the_twin(seal(data.ljust(61, b"\x00")), first)


def assert_like_the_twin(raw: bytes, first: int) -> None:
    try:
        expected = reference("topic", 3, raw, first)
    except CorruptRecords:
        expected = None
    try:
        got = decode(Decoder(), raw, first)
    except CorruptRecords:
        got = None
    if raw[16] < 2 and got is not None:
        return  # the old formats: the twin does not know them
    if expected is not None and got is None:
        # The decoder says why there is nothing; to the twin, nothing is nothing.
        assert not expected.num_rows
    else:
        assert got == expected


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_aiokafkas_encoder_come_back(decoder: Decoder, codec: int) -> None:
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
def test_the_old_message_formats_are_read_too(decoder: Decoder, magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 16)
    for offset in range(5):
        builder.append(offset, timestamp=1000 + offset, key=b"k", value=b"v%d" % offset)
    new = Spec(5, 6, [Row(5, 9, 0, None, b"new"), Row(6, 9, 0, b"", None)], codec=ZSTD)
    old = bytes(builder.build())
    if codec:  # a broker gives the wrapper the offset of its last message
        old = struct.pack(">q", 4) + old[8:]
    batch = decoder.batch("topic", 3, old + new.encode(), 2)
    assert batch is not None
    assert (batch.first, batch.last) == (2, 6)
    stamp = (-1, -1) if magic == 0 else None
    rows = [
        Row(offset, *(stamp or (1000 + offset, 0)), b"k", b"v%d" % offset) for offset in (2, 3, 4)
    ]
    assert check(batch) == from_rows("topic", 3, rows + new.rows)


def test_a_damaged_message_of_an_old_format_is_refused(decoder: Decoder) -> None:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=NONE, batch_size=1 << 16)
    builder.append(0, timestamp=1, key=b"k", value=b"value")
    raw = bytearray(builder.build())
    raw[-1] ^= 1
    with pytest.raises(CorruptRecords, match=r"topic-3: .* offset 0 .* checksum is wrong"):
        decode(decoder, bytes(raw))


ONE = Spec(7, 7, [Row(7, 1, 0, b"key", b"value")])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (ONE.encode()[:-1], "cut off after 75 of 76 bytes"),
        (ONE.encode()[:5], "cut off after 5 of 12 bytes"),
        (ONE.encode()[:8] + b"\x00\x00\x00\x01" + ONE.encode()[12:], "length is impossible"),
        (ONE.encode()[:16] + b"\x03" + ONE.encode()[17:], "format version is unknown"),
        (Spec(2**62 + 1, 2**62 + 1, []).encode(), "do not follow those before"),
        (Spec(3, 3, ONE.rows).encode(), "only records before that offset"),
    ],
)
def test_impossible_headers_are_refused_at_once(decoder: Decoder, raw: bytes, message: str) -> None:
    with pytest.raises(CorruptRecords, match=f"topic-3: .* offset 7 is damaged: .*{message}"):
        decoder.batch("topic", 3, raw, 7)


def test_batches_before_an_impossible_header_are_not_lost(decoder: Decoder) -> None:
    batch = decoder.batch("topic", 3, ONE.encode() * 2, 7)
    assert batch is not None
    assert check(batch) == from_rows("topic", 3, ONE.rows)
    assert (batch.first, batch.last) == (7, 7)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (ONE.encode()[:-1] + b"\xff", "checksum is wrong"),
        (seal(ONE.encode() + b"\x00"), "bytes after its last record"),
        (seal(ONE.encode()[:-1]), "does not fit"),
        (seal(ONE.encode()[:57] + struct.pack(">i", 0) + ONE.encode()[61:]), "after its last"),
        (seal(ONE.encode()[:21] + b"\x00\x05" + ONE.encode()[23:]), "codec 5 is unknown"),
        (seal(ONE.encode()[:21] + b"\x00\x03" + ONE.encode()[23:]), "cannot be decompressed"),
        (
            Spec(7, 9, [Row(9, 1, 0, None, None), Row(8, 1, 0, None, None)]).encode(),
            "do not ascend",
        ),
        (
            seal(Spec(7, 99, []).encode()[:57] + struct.pack(">i", 50) + b"\x00" * 60),
            "as many records as it says",
        ),
    ],
)
def test_what_only_decoding_finds_is_refused_then(
    decoder: Decoder, raw: bytes, message: str
) -> None:
    batch = decoder.batch("topic", 3, raw, 7)
    assert batch is not None
    with pytest.raises(CorruptRecords, match=f"topic-3: .* offset 7 is damaged: .*{message}"):
        _ = batch.records


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_small_batch_cannot_take_all_memory(codec: int) -> None:
    bomb = Spec(0, 0, [Row(0, 0, 0, None, bytes(8 << 20))], codec=codec)
    batch = Decoder(limit=1 << 20).batch("topic", 3, bomb.encode(), 0)
    assert batch is not None
    with pytest.raises(CorruptRecords, match=r"offset 0 .* cannot be decompressed"):
        _ = batch.records
    assert len(decode(Decoder(), bomb.encode())["value"][0].as_py()) == 8 << 20


def test_a_batch_of_markers_has_a_range_and_no_rows(decoder: Decoder) -> None:
    raw = Spec(5, 5, [], producer=1, transactional=True, marker=1).encode()
    batch = decoder.batch("topic", 3, raw, 4)
    assert batch is not None
    assert (batch.first, batch.last, len(batch)) == (4, 5, 0)
    assert check(batch) == from_rows("topic", 3, [])


def test_no_data_is_no_batch(decoder: Decoder) -> None:
    assert decoder.batch("topic", 3, b"", 0) is None


def test_timestamps_beyond_what_a_column_holds_are_held_at_its_ends(decoder: Decoder) -> None:
    nanoseconds = 1_700_000_000_000_000_000
    raw = Spec(0, 0, [Row(0, nanoseconds, 0, None, None)]).encode()
    largest = decode(decoder, raw)["timestamp"].cast(pa.int64())[0].as_py()
    assert largest == (2**63 - 1) // 1000 * 1000


def test_a_header_key_that_is_not_unicode_is_shown_as_far_as_it_is(decoder: Decoder) -> None:
    raw = Spec(0, 0, [Row(0, 0, 0, None, None, [("ab", b"x")])]).encode()
    raw = seal(raw.replace(b"\x04ab", b"\x04a\xff"))
    assert decode(decoder, raw)["headers"].to_pylist() == [[{"key": "a\ufffd", "value": b"x"}]]


def test_the_size_of_compressed_batches_is_learnt() -> None:
    decoder = Decoder()
    raw = Spec(0, 0, [Row(0, 0, 0, None, bytes(100_000))], codec=ZSTD).encode()
    guess = decoder.batch("topic", 3, raw, 0)
    assert guess is not None
    _ = guess.records
    informed = decoder.batch("topic", 3, raw, 0)
    assert informed is not None
    assert guess.nbytes < 50_000 < informed.nbytes < 200_000
    assert guess.max_timestamp_ms == 0


def test_several_threads_may_decode_with_one_decoder(decoder: Decoder) -> None:
    rows = [Row(offset, offset, 0, b"k", b"v" * (offset % 50)) for offset in range(2000)]
    raw = Spec(0, 1999, rows, codec=LZ4).encode()
    batches = [decoder.batch(f"topic-{n % 5}", n, raw, n) for n in range(100)]
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda batch: batch.records if batch else None, batches))
    for n, records in enumerate(decoded):
        assert records == from_rows(f"topic-{n % 5}", n, rows[n:])


def test_constant_columns_are_bounded() -> None:
    constants = Constants()
    for n in range(1000):
        assert constants.column("topic", f"t{n}", 2).to_pylist() == [f"t{n}"] * 2
    assert len(constants._columns) <= 64
    assert len(constants.column("topic", "t0", 200_000)) == 200_000
    assert sum(len(column) for column in constants._columns.values()) < 200_000


def test_warming_up_compiles_everything_that_decoding_needs(decoder: Decoder) -> None:
    warm_up()
    raw = Spec(0, 1, [Row(0, 0, 0, None, b"v", [("k", None)])], codec=GZIP).encode()
    before = signatures()
    decode(decoder, raw, 0)
    assert signatures() == before


def signatures() -> dict[str, list[Any]]:
    from framework import batches, kernels

    functions = {"scan": batches.scan, **vars(kernels)}
    return {
        name: list(function.signatures)
        for name, function in functions.items()
        if hasattr(function, "signatures")
    }


def test_without_a_place_for_its_cache_the_code_is_compiled_in_memory(tmp_path: Path) -> None:
    nowhere = tmp_path / "__pycache__"
    nowhere.write_text("a file, where a directory should be")
    (tmp_path / "doubled.py").write_text(
        "from framework.jit import compiled\n@compiled\ndef double(x):\n    return 2 * x\n"
    )
    environment = {**os.environ, "HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", "import doubled; print(doubled.double(21), doubled.double._cache)"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("42 <numba.core.caching.NullCache")
    assert done.stderr == ""


FUZZ = """
import random, sys
from framework.decode import Decoder
from framework.errors import CorruptRecords
raw = bytes.fromhex(sys.argv[1])
choose = random.Random(1)
for _ in range(20000):
    damaged = bytearray(raw)
    for _ in range(choose.randint(1, 4)):
        damaged[choose.randrange(len(raw))] = choose.randrange(256)
    del damaged[choose.choice((len(raw), len(raw), choose.randrange(len(raw)))):]
    try:
        batch = Decoder(check_crcs=False).batch("topic", 0, bytes(damaged), 0)
        if batch is not None:
            batch.records.validate(full=True)
    except CorruptRecords:
        pass
print("survived")
"""


@pytest.mark.slow
def test_the_compiled_code_stays_inside_its_arrays(tmp_path: Path) -> None:
    """With numba's own bounds checks, an access outside raises IndexError and fails the process."""
    rows = [Row(n, n, 0, b"key", b"v" * n, [("h", b"x"), ("i", None)]) for n in range(5)]
    raw = Spec(0, 4, rows).encode() + Spec(5, 5, [Row(5, 1, 0, None, None)]).encode()
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, raw.hex()],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("survived\n", "")
