"""The compiled decoder: formats, limits, errors; `test_decode_properties` has what holds for any input."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from framework.decode import batches as headers
from framework.decode import kernels
from framework.decode.columns import Constants, Row, from_rows
from framework.decode.decoder import Decoder, warm_up
from framework.decode.encoding import GZIP, LZ4, NONE, SNAPPY, ZSTD, BatchSpec, seal
from framework.errors import CorruptRecords
from framework.record import SCHEMA, Batch

if TYPE_CHECKING:
    from pathlib import Path


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


def test_an_abort_marker_ends_what_is_left_out(decoder: Decoder) -> None:
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
    batch = decoder.batch("topic", 3, raw, 0, [(1, 0)])
    assert batch is not None
    assert check(batch)["offset"].to_pylist() == [2, 4, 5]
    assert (batch.first, batch.last) == (0, 7)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
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
    new = BatchSpec(
        base=5, last=6, rows=[Row(5, 9, 0, None, b"new"), Row(6, 9, 0, b"", None)], codec=ZSTD
    )
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


ONE = BatchSpec(base=7, last=7, rows=[Row(7, 1, 0, b"key", b"value")])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (ONE.encode()[:-1], "cut off after 75 of 76 bytes"),
        (ONE.encode()[:5], "cut off after 5 of 12 bytes"),
        (ONE.encode()[:8] + b"\x00\x00\x00\x01" + ONE.encode()[12:], "length is impossible"),
        (ONE.encode()[:16] + b"\x03" + ONE.encode()[17:], "format version is unknown"),
        (BatchSpec(base=2**62 + 1, last=2**62 + 1, rows=[]).encode(), "do not follow those before"),
        (ONE.encode()[:-1] + b"\xff", "checksum is wrong"),
        (BatchSpec(base=3, last=3, rows=ONE.rows).encode(), "only records before that offset"),
    ],
)
def test_damaged_batches_are_refused_at_once(decoder: Decoder, raw: bytes, message: str) -> None:
    with pytest.raises(CorruptRecords, match=f"topic-3: .* offset 7 is damaged: .*{message}"):
        decoder.batch("topic", 3, raw, 7)


LATER = BatchSpec(base=8, last=8, rows=[Row(8, 1, 0, None, b"later")]).encode()


@pytest.mark.parametrize(
    "damaged", [ONE.encode(), LATER[:-1] + b"\xff", LATER[:16] + b"\x05" + LATER[17:]]
)
def test_batches_before_a_damaged_one_are_not_lost(decoder: Decoder, damaged: bytes) -> None:
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
    bomb = BatchSpec(base=0, last=0, rows=[Row(0, 0, 0, None, bytes(8 << 20))], codec=codec)
    batch = Decoder(limit=1 << 20).batch("topic", 3, bomb.encode(), 0)
    assert batch is not None
    with pytest.raises(CorruptRecords, match=r"offset 0 .* cannot be decompressed"):
        _ = batch.records
    assert len(decode(Decoder(), bomb.encode())["value"][0].as_py()) == 8 << 20


def test_a_batch_of_markers_has_a_range_and_no_rows(decoder: Decoder) -> None:
    raw = BatchSpec(base=5, last=5, rows=[], producer=1, transactional=True, marker=1).encode()
    batch = decoder.batch("topic", 3, raw, 4)
    assert batch is not None
    assert (batch.first, batch.last, len(batch)) == (4, 5, 0)
    assert check(batch) == from_rows("topic", 3, [])


def test_no_data_is_no_batch(decoder: Decoder) -> None:
    assert decoder.batch("topic", 3, b"", 0) is None


def test_timestamps_beyond_what_a_column_holds_are_held_at_its_ends(decoder: Decoder) -> None:
    nanoseconds = 1_700_000_000_000_000_000
    raw = BatchSpec(base=0, last=0, rows=[Row(0, nanoseconds, 0, None, None)]).encode()
    largest = decode(decoder, raw)["timestamp"].cast(pa.int64())[0].as_py()
    assert largest == (2**63 - 1) // 1000 * 1000


def test_a_header_key_that_is_not_unicode_is_shown_as_far_as_it_is(decoder: Decoder) -> None:
    raw = BatchSpec(base=0, last=0, rows=[Row(0, 0, 0, None, None, [("ab", b"x")])]).encode()
    raw = seal(raw.replace(b"\x04ab", b"\x04a\xff"))
    assert decode(decoder, raw)["headers"].to_pylist() == [[{"key": "a\ufffd", "value": b"x"}]]


def test_the_size_of_compressed_batches_is_learnt() -> None:
    decoder = Decoder()
    raw = BatchSpec(base=0, last=0, rows=[Row(0, 0, 0, None, bytes(100_000))], codec=ZSTD).encode()
    guess = decoder.batch("topic", 3, raw, 0)
    assert guess is not None
    _ = guess.records
    informed = decoder.batch("topic", 3, raw, 0)
    assert informed is not None
    assert guess.nbytes < 50_000 < informed.nbytes < 200_000
    assert guess.max_timestamp_ms == 0


def test_several_threads_may_decode_with_one_decoder(decoder: Decoder) -> None:
    rows = [Row(offset, offset, 0, b"k", b"v" * (offset % 50)) for offset in range(2000)]
    raw = BatchSpec(base=0, last=1999, rows=rows, codec=LZ4).encode()
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
    raw = BatchSpec(
        base=0, last=1, rows=[Row(0, 0, 0, None, b"v", [("k", None)])], codec=GZIP
    ).encode()
    before = signatures()
    decode(decoder, raw, 0)
    assert signatures() == before


def signatures() -> dict[str, list[Any]]:
    functions = {"scan": headers.scan, **vars(kernels)}
    return {
        name: list(function.signatures)
        for name, function in functions.items()
        if hasattr(function, "signatures")
    }


def test_without_a_place_for_its_cache_the_code_is_compiled_in_memory(tmp_path: Path) -> None:
    nowhere = tmp_path / "__pycache__"
    nowhere.write_text("a file, where a directory should be")
    (tmp_path / "doubled.py").write_text(
        "from framework.decode.jit import compiled\n@compiled\ndef double(x):\n    return 2 * x\n"
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
from framework.decode.decoder import Decoder
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
    raw = (
        BatchSpec(base=0, last=4, rows=rows).encode()
        + BatchSpec(base=5, last=5, rows=[Row(5, 1, 0, None, None)]).encode()
    )
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, raw.hex()],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("survived\n", "")
