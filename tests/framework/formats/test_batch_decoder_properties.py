"""The decoder equals the reference for any records, and refuses any damage or decodes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kmr.errors import CorruptRecords
from kmr.formats.batch_decoder import BatchDecoder
from kmr.formats.columns import Row, from_rows
from kmr.record import SCHEMA, Batch

from .encoding import GZIP, LZ4, NONE, SNAPPY, ZSTD, BatchSpec, seal
from .reference import decode as reference

if TYPE_CHECKING:
    import pyarrow as pa

timeless = settings(deadline=None)  # the first example may wait for the compiler

MILLISECONDS = st.integers(0, 2**42)
KEYS = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)


@st.composite
def specs(draw: st.DrawFn) -> list[BatchSpec]:
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
        spec = BatchSpec(
            base=base,
            last=offset - 1,
            rows=rows,
            codec=draw(st.sampled_from((NONE, GZIP, SNAPPY, LZ4, ZSTD))),
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


@timeless
@given(specs(), st.data())
def test_the_decoder_the_reference_and_the_input_are_equal(
    batches: list[BatchSpec], data: st.DataObject
) -> None:
    encoded = [spec.encode() for spec in batches]
    raw = b"".join(encoded)
    first = data.draw(st.integers(batches[0].base, batches[-1].last), "first")
    batch = BatchDecoder().batch("topic", 3, raw, first)
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
def test_records_of_aborted_transactions_are_left_out_as_in_the_reference(
    batches: list[BatchSpec], transactions: list[tuple[int, int]], read_committed: bool
) -> None:
    raw = b"".join(spec.encode() for spec in batches)
    start = batches[0].base
    aborted = [(producer, start + delta) for producer, delta in transactions]
    got = decode(BatchDecoder(read_committed=read_committed), raw, start, aborted)
    assert got == reference("topic", 3, raw, start, aborted, read_committed=read_committed)


@timeless
@given(specs(), st.data())
def test_an_incomplete_batch_at_the_end_is_left_for_the_next_fetch(
    batches: list[BatchSpec], data: st.DataObject
) -> None:
    assume(len(batches) > 1)
    whole = b"".join(spec.encode() for spec in batches[:-1])
    last = batches[-1].encode()
    cut = data.draw(st.integers(0, len(last) - 1), "cut")
    batch = BatchDecoder().batch("topic", 3, whole + last[:cut], batches[0].base)
    assert batch is not None
    assert batch.last == batches[-2].last
    assert check(batch) == reference("topic", 3, whole, batches[0].base)


@timeless
@given(specs(), st.data())
def test_damaged_records_under_a_valid_checksum_are_refused_or_read_as_by_the_reference(
    batches: list[BatchSpec], data: st.DataObject
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
def test_damaged_bytes_are_refused_or_decoded(
    batches: list[BatchSpec], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(spec.encode() for spec in batches))
    for place in data.draw(
        st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=6), "places"
    ):
        raw[place] = data.draw(st.integers(0, 255), "byte")
    try:
        batch = BatchDecoder(check_crcs=False).batch("topic", 3, bytes(raw), batches[0].base)
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
        got = decode(BatchDecoder(), raw, first)
    except CorruptRecords:
        got = None
    if raw[16] < 2 and got is not None:
        return  # the old formats: the twin does not know them
    if expected is not None and got is None:
        # The decoder says why there is nothing; to the twin, nothing is nothing.
        assert not expected.num_rows
    else:
        assert got == expected
