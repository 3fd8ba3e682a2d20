"""Which records a look takes; `kmr peek` and `kmr.read` as a whole are in `cli/test_peek.py`."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from kmr.peeking import newest
from kmr.record import SCHEMA, Batch, with_schema


def batch(partition: int, *seconds: int) -> Batch:
    """Records whose timestamps are so many seconds after 1970."""
    times = [datetime.fromtimestamp(each, UTC) for each in seconds]
    columns = {
        "topic": ["t"] * len(seconds),
        "partition": [partition] * len(seconds),
        "offset": list(range(len(seconds))),
        "timestamp": pa.array(times, SCHEMA.field("timestamp").type),
    }
    return Batch.of(with_schema(pa.RecordBatch.from_pydict(columns)))


def taken(*batches: Batch, count: int) -> list[tuple[int, list[int | None]]]:
    return [
        (found.partition, found.records.column("offset").to_pylist())
        for found in newest(batches, count)
    ]


def test_the_newest_records_of_all_partitions_keep_their_order() -> None:
    assert taken(batch(1, 5, 1, 9), batch(0, 7, 8), count=3) == [(1, [2]), (0, [0, 1])]


def test_a_partition_without_new_records_has_no_batch() -> None:
    assert taken(batch(0, 1, 2), batch(1, 3), count=1) == [(1, [0])]


def test_fewer_records_than_asked_for_are_all_taken() -> None:
    assert taken(batch(0, 2, 1), count=10) == [(0, [0, 1])]
    assert taken(count=10) == []
