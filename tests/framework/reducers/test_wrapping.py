"""A wrapping reducer passes all calls to the reducer in it."""

from __future__ import annotations

import copy

import pyarrow as pa
import pytest

from kmr.record import Range, Rows
from kmr.reducers.collect import Batcher
from kmr.reducers.reducer import Context
from kmr.reducers.sink import Capabilities
from kmr.reducers.wrapping import Wrapping
from kmr.testing import Journal, MemoryWriter

ROWS = Rows(pa.table({"a": [1, 2]}), (Range("t", 0, 0, 1),))


@pytest.mark.anyio
async def test_rows_go_to_the_reducer_inside_and_its_result_comes_out() -> None:
    wrapped = Wrapping(Batcher(max_rows=7))
    assert (wrapped.max_rows, wrapped.keeps_rows) == (7, True)
    assert wrapped.capabilities == Capabilities(forwards=True)
    await wrapped.open(Context(group="g", stage="reduce-1"))
    wrapped.reset()
    wrapped.add(ROWS)
    assert await wrapped.flush() == ROWS.table
    await wrapped.close()


@pytest.mark.anyio
async def test_a_copy_collects_rows_of_its_own() -> None:
    journal = Journal()
    wrapped = Wrapping(MemoryWriter(journal))
    wrapped.reset()
    other = copy.deepcopy(wrapped)
    other.reset()
    wrapped.add(ROWS)
    other.add(Rows(pa.table({"a": [3]}), ROWS.ranges))
    await wrapped.flush()
    assert journal.rows() == [{"a": 1}, {"a": 2}]
