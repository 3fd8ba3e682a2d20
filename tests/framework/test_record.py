"""Batches, records and rows."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kmr.record import SCHEMA, Batch, Header, Range, Rows, to_records
from kmr.testing import batch_of


def rows_of(offsets: list[int], first: int, last: int) -> Rows:
    return Rows(
        pa.table({"n": list(range(len(offsets)))}),
        (Range("t", 0, first, last, 1),),
        np.array(offsets, dtype=np.int64),
    )


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40).map(sorted), st.integers(1, 40))
def test_cutting_rows_loses_no_row_no_offset_and_splits_no_record(
    offsets: list[int], at: int
) -> None:
    rows = rows_of(offsets, 0, 30)
    head, tail = rows.cut(at)
    parts = [head] if tail is None else [head, tail]
    written = [n for part in parts for n in part.table.column("n").to_pylist()]
    assert written == list(range(len(offsets)))
    covered = [o for p in parts for r in p.ranges for o in range(r.first, r.last + 1)]
    assert covered == list(range(31))
    for part in parts:
        assert part.offsets is not None
        inside = {o for r in part.ranges for o in range(r.first, r.last + 1)}
        assert set(part.offsets.tolist()) <= inside
    assert head.offsets is not None
    assert len(head) <= at or len(set(head.offsets.tolist())) == 1


def test_rows_that_belong_to_no_single_record_are_not_cut() -> None:
    rows = Rows(pa.table({"n": [1, 2, 3]}), (Range("t", 0, 0, 9, 1),))
    assert rows.cut(1) == (rows, None)


def test_a_batch_is_decoded_when_its_records_are_asked_for_and_only_once() -> None:
    decoded = []
    columns = batch_of("t", 3, 7, [b"a", b"b"]).records

    def load() -> pa.RecordBatch:
        decoded.append(1)
        return columns

    batch = Batch("t", 3, 7, 9, nbytes=10, load=load)
    assert not decoded
    assert batch.records is batch.records
    assert decoded == [1]
    assert batch.offsets().tolist() == [7, 8]


def test_a_slice_has_the_rows_of_its_offsets_and_is_decoded_late() -> None:
    columns = batch_of("t", 3, 7, [b"a", b"b", b"c", b"d"]).records.take(pa.array([0, 1, 3]))
    whole = Batch("t", 3, 7, 12, nbytes=60, load=lambda: columns, max_timestamp_ms=5)
    head, tail, gap = whole.slice(7, 8), whole.slice(9, 12), whole.slice(11, 12)
    assert [part.offsets().tolist() for part in (head, tail, gap)] == [[7, 8], [10], []]
    assert [(part.first, part.last) for part in (head, tail, gap)] == [(7, 8), (9, 12), (11, 12)]
    assert (head.nbytes, tail.nbytes, tail.max_timestamp_ms) == (20, 40, 5)


def test_a_batch_is_divided_into_equal_parts_that_cover_its_range() -> None:
    batch = batch_of("t", 0, 5, [b"a"] * 10)
    batch.last = 100  # a gap: offsets without records
    parts = []
    rest: Batch | None = batch
    while rest is not None:
        part, rest = rest.cut(4)
        parts.append(part)
    assert [(part.first, part.last, len(part)) for part in parts] == [
        (5, 8, 4),
        (9, 11, 3),
        (12, 100, 3),
    ]
    assert batch.cut(100) == (batch, None)


def test_records_show_every_column_of_a_row() -> None:
    columns = pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k",
                "value": b"v",
                "topic": "t",
                "partition": 2,
                "offset": 5,
                "timestamp": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
                "timestampType": 1,
                "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
            },
            {
                "key": None,
                "value": None,
                "topic": "t",
                "partition": 2,
                "offset": 6,
                "timestampType": 0,
                "timestamp": datetime(1969, 12, 31, tzinfo=UTC),
                "headers": None,
            },
        ],
        schema=SCHEMA,
    )
    first, second = to_records(columns)
    assert (first.topic, first.partition, first.offset, first.key, first.value) == (
        "t",
        2,
        5,
        b"k",
        b"v",
    )
    assert first.timestamp == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert first.timestamp_ms == 1767323045678
    assert first.timestamp_type == 1
    assert first.headers == (Header("h", b"1"), Header("h", None))
    assert (second.key, second.value, second.headers) == (None, None, ())
    assert second.timestamp == datetime(1969, 12, 31, tzinfo=UTC)
