"""Batches that are decoded together have the records that each has alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import CorruptRecords
from kmr.formats.batch_decoder import BatchDecoder, decode_together
from kmr.formats.columns import Row
from kmr.record import SCHEMA, Batch
from kmr.testing import batch_of

from .encoding import GZIP, LZ4, NONE, SNAPPY, ZSTD, BatchSpec

DECODER = BatchDecoder()


def spec(first: int, rows: int, codec: int, *, append_time: int | None = None) -> BatchSpec:
    made = [
        Row(
            first + 2 * n,
            1_000 + n,
            0,
            None if n % 2 else b"key",
            b"v" * n,
            [("h", b"x")] * (n % 3),
        )
        for n in range(rows)
    ]
    return BatchSpec(
        base=first, last=first + 2 * rows, rows=made, codec=codec, append_time=append_time
    )


def batch(partition: int, specs: list[BatchSpec], first: int | None = None) -> Batch:
    data = b"".join(each.encode() for each in specs)
    found = DECODER.batch("topic", partition, data, specs[0].base if first is None else first)
    assert found is not None
    return found


codecs = st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD])
sizes = st.lists(st.tuples(st.integers(1, 4), codecs), min_size=1, max_size=3)


@given(parts=st.lists(sizes, min_size=1, max_size=5), append_time=st.sampled_from([None, 77]))
def test_records_decoded_together_are_those_of_each_batch(
    parts: list[list[tuple[int, int]]], append_time: int | None
) -> None:
    batches = [
        batch(
            number % 3,
            [
                spec(100 * number + 20 * at, rows, codec, append_time=append_time)
                for at, (rows, codec) in enumerate(each)
            ],
        )
        for number, each in enumerate(parts)
    ]
    decoded = decode_together(batches)
    assert decoded is not None
    records, counts = decoded
    records.validate(full=True)
    assert records.schema == SCHEMA
    alone = pa.Table.from_batches([each.records for each in batches])
    assert pa.Table.from_batches([records]).equals(alone)
    assert counts.tolist() == [len(each) for each in batches]


def test_batches_without_the_bytes_of_a_fetch_are_joined() -> None:
    batches = [batch_of("t", 0, 5, [b"a", b"b"]), batch_of("t", 1, 0, [b"c"])]
    decoded = decode_together(batches)
    assert decoded is not None
    assert decoded[0].column("offset").to_pylist() == [5, 6, 0]
    assert np.array_equal(decoded[1], [2, 1])


@pytest.mark.parametrize(
    "special",
    [
        BatchSpec(base=0, last=0, rows=[Row(0, 1, 0, None, b"x")], producer=1, transactional=True),
        BatchSpec(base=0, last=0, rows=[Row(0, 1, 1, None, b"x")], append_time=5),
    ],
)
def test_transactions_and_mixed_timestamps_are_not_decoded_together(special: BatchSpec) -> None:
    assert decode_together([batch(0, [special]), batch(1, [spec(0, 2, NONE)])]) is None


def test_records_below_the_wanted_offset_are_not_decoded_together() -> None:
    below = batch(0, [spec(0, 3, NONE)], first=2)
    assert decode_together([below, batch(1, [spec(0, 2, NONE)])]) is None
    assert below.records.column("offset").to_pylist() == [2, 4]


def test_a_damaged_batch_is_left_to_be_decoded_alone() -> None:
    whole = spec(0, 2, LZ4)
    data = bytearray(whole.encode())
    data[-3:] = b"\xff\xff\xff"
    damaged = BatchDecoder(check_crcs=False).batch("topic", 0, bytes(data), 0)
    assert damaged is not None
    assert decode_together([damaged, batch(1, [spec(0, 2, NONE)])]) is None
    with pytest.raises(CorruptRecords, match="topic-0"):
        _ = damaged.records
