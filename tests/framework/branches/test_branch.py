"""One branch: the context of its reducers, the name in its errors, and a reset after a failure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from kmr.branches.branch import Branch
from kmr.errors import StrategyError
from kmr.record import Range, Rows, of_records
from kmr.reducers.collect import Batcher
from kmr.reducers.reducer import Context, Retry
from kmr.reducers.sink import NEW
from kmr.testing import Journal, MemoryWriter, batch_of

SCHEMA = of_records(pa.schema([("n", pa.int64())]))
ROWS = Rows(
    pa.table({"n": [1, 2]}),
    (Range("t", 0, 0, 1),),
    np.arange(2),
    (batch_of("t", 0, 0, [b"", b""]),),
)


class Opened(MemoryWriter):
    async def open(self, context: Context) -> None:
        self.context = context


class Unfit(MemoryWriter):
    async def open(self, context: Context) -> None:
        raise StrategyError("no such table")


@pytest.mark.anyio
async def test_its_reducers_have_its_name_in_group_and_stage_and_know_its_columns() -> None:
    last = Opened(Journal())
    branch = Branch("views", [Batcher(), last])
    await branch.open(Context(group="g", stage="reduce-1"), SCHEMA)
    assert (last.context.group, last.context.stage) == ("g+views", "reduce-1 views")
    assert last.context.for_sinks.schema_of("reduce-1 views") == SCHEMA


@pytest.mark.anyio
async def test_one_that_does_not_fit_its_sink_is_named() -> None:
    branch = Branch("views", [Unfit(Journal())])
    with pytest.raises(StrategyError, match="branch views: no such table"):
        await branch.open(Context(group="g", stage="reduce-1"), None)


@pytest.mark.anyio
async def test_rows_that_are_on_their_way_are_forgotten_by_a_reset() -> None:
    journal = Journal()
    journal.outcomes.append(Retry("busy"))
    branch = Branch("views", [Batcher(), MemoryWriter(journal)])
    with pytest.raises(Retry, match="branch views: busy"):
        await branch.deliver([ROWS], NEW)
    branch.reset()
    assert await branch.deliver([replace(ROWS, table=pa.table({"n": [3, 4]}))], NEW) == []
    assert journal.rows() == [{"n": 3}, {"n": 4}]


@pytest.mark.anyio
async def test_one_whose_sink_takes_its_rows_no_longer_is_named() -> None:
    journal = Journal()
    journal.outcomes.append(StrategyError("t has no column n"))
    branch = Branch("views", [MemoryWriter(journal)])
    with pytest.raises(StrategyError, match="branch views: t has no column n"):
        await branch.deliver([ROWS], NEW)
