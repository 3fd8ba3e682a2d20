"""The rows that a reducer has collected: limits, their age, and the removal of failed records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from kmr.record import Range, Rows
from kmr.reducers.buffer import Buffer
from kmr.testing import Journal, MemoryWriter, VirtualTimeLoop, batch_of

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_failed_records_leave_a_buffer_with_all_of_their_rows() -> None:
    writer = MemoryWriter(Journal())
    buffer = Buffer(writer)
    batch = batch_of("t", 0, 0, [b"x"] * 6)
    offsets = np.array([0, 1, 1, 2, 4])  # two rows of one record; one record without a row
    table = pa.table({"o": offsets})
    buffer.add(Rows(table, (Range("t", 0, 0, 4, 1),), offsets, (batch,)))
    whole = Rows(pa.table({"o": [5]}), (Range("t", 0, 5, 5, 1),), None, (batch,))
    buffer.add(whole)
    failed = Rows(pa.table({"o": [1]}), (Range("t", 0, 1, 1, 1),), np.array([1]), (batch,))
    buffer.remove([failed])
    assert [rows.table.column("o").to_pylist() for rows in buffer.held] == [[0, 2, 4], [5]]
    assert buffer.ranges() == (Range("t", 0, 0, 0, 1), Range("t", 0, 2, 5, 1))
    assert buffer.rows == 4
    buffer.remove([whole])
    assert buffer.ranges() == (Range("t", 0, 0, 0, 1), Range("t", 0, 2, 4, 1))


async def test_limits_cut_what_is_added_and_name_themselves() -> None:
    buffer = Buffer(MemoryWriter(Journal(), max_rows=4, max_bytes=None))
    batch = batch_of("t", 0, 0, [b"x"] * 6)
    table = pa.table({"o": range(6)})
    rest, reason = buffer.add(Rows(table, (Range("t", 0, 0, 5, 1),), np.arange(6), (batch,)))
    assert (buffer.rows, reason) == (4, "count")
    assert rest is not None
    assert rest.table.column("o").to_pylist() == [4, 5]
    assert not buffer.has_room(rest)
    buffer.clear()
    assert buffer.add(rest) == (None, None)


async def test_the_age_of_a_row_counts_from_the_time_when_its_record_could_be_fetched(
    clock: VirtualClock,
) -> None:
    await clock.advance(10.0)
    batch = batch_of("t", 0, 0, [b"x"])
    batch.gathered = 0.4
    buffer = Buffer(MemoryWriter(Journal(), max_age=4.0))
    rows = Rows(pa.table({"n": [1]}), (Range("t", 0, 0, 0),), sources=(batch,))
    buffer.add_unlimited(rows)
    assert buffer.deadline == pytest.approx(13.6)
