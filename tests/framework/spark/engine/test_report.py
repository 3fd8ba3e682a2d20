"""Rows that tasks send to the driver arrive unchanged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kmr.record import Batch, Range, Rows, with_schema
from kmr.reducers.buffer import Buffer
from kmr.reducers.collect import Collecting
from kmr.reducers.flushing import attempt_flush
from kmr.reducers.sink import NEW, Refusal, RowsRefused
from kmr.spark.engine.report import pack_rows, unpack_rows


def records(first: int, count: int) -> pa.RecordBatch:
    table = pa.table(
        {
            "value": [b"%d" % number for number in range(first, first + count)],
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": np.arange(first, first + count),
        }
    )
    return with_schema(table.to_batches()[0])


def mapped(count: int, *, single: bool) -> Rows:
    """Rows of `count` records, two rows each."""
    batch = Batch.of(records(5, count))
    offsets = np.repeat(batch.offsets(), 2)
    table = pa.table({"n": offsets, "text": ["x" * 50] * len(offsets)})
    ranges = (Range("t", 0, 5, 4 + count),)
    return Rows(table, ranges, offsets if single else None, (batch,))


def never(_wanted: Range) -> pa.RecordBatch:
    raise AssertionError("the records are not needed")


@pytest.mark.parametrize("single", [True, False])
def test_rows_arrive_in_order_in_pieces_that_keep_records_whole(single: bool) -> None:
    rows = mapped(100, single=single)
    pieces = [unpack_rows(value, never) for value in pack_rows(rows, piece_bytes=700)]
    assert len(pieces) > 10
    assert pa.concat_tables([piece.table for piece in pieces]).equals(rows.table)
    if single:
        assert all(piece.offsets is not None for piece in pieces)
        found = [np.unique(piece.offsets) for piece in pieces if piece.offsets is not None]
        assert np.concatenate(found).tolist() == list(range(5, 105))
        assert next(r for piece in pieces for r in piece.ranges).first == 5
    else:
        assert {piece.ranges for piece in pieces} == {rows.ranges}


class Picky(Collecting):
    """Refuses a row, the second time."""

    calls = 0

    def flush(self) -> None:
        self.calls += 1
        if self.calls > 1:
            raise RowsRefused([Refusal(self.rows[0].cut(2)[0], "too early")])


async def test_the_records_of_rows_are_read_again_only_when_rows_are_refused() -> None:
    asked: list[Range] = []

    def read(wanted: Range) -> pa.RecordBatch:
        asked.append(wanted)
        return records(wanted.first, wanted.last + 1 - wanted.first)

    (value,) = pack_rows(mapped(10, single=True))
    rows = unpack_rows(value, read)
    buffer = Buffer(Picky())
    buffer.add(rows)
    assert (await attempt_flush(buffer, "reduce-1", 1, NEW)).failed == []
    assert asked == []
    (failed,) = (await attempt_flush(buffer, "reduce-1", 2, NEW)).failed
    assert failed.table.select(["offset", "value", "reason"]).to_pylist() == [
        {"offset": 5, "value": b"5", "reason": "too early"}
    ]
    assert asked == [Range("t", 0, 5, 14)]
