"""What a sink can do, how it is opened for `kmr doctor`, and the text of refused rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.collect import Batcher
from kmr.reducers.reducer import DEFAULT_MAX_ROWS, Context
from kmr.reducers.sink import (
    Capabilities,
    Refusal,
    RowsRefused,
    capabilities_of,
    opens,
    with_large_flushes,
)
from kmr.testing import Journal, MemoryWriter

CONTEXT = Context(group="g", stage="reduce-1")


class Opened(MemoryWriter):
    closed = 0

    async def close(self) -> None:
        self.closed += 1


class Unfit(Opened):
    async def open(self, context: Context) -> None:
        raise StrategyError("no such table")


def test_a_reducer_that_is_no_sink_makes_rows_for_the_next_one() -> None:
    assert capabilities_of(Batcher()) == Capabilities(forwards=True)
    assert not capabilities_of(MemoryWriter(Journal())).forwards


@pytest.mark.anyio
async def test_a_sink_that_opens_is_closed_again() -> None:
    sink = Opened(Journal())
    finding = await opens(sink, CONTEXT)
    assert (finding.level, finding.text, sink.closed) == ("ok", "Opened opens", 1)


@pytest.mark.anyio
async def test_a_sink_that_does_not_open_is_closed_and_says_why() -> None:
    sink = Unfit(Journal())
    with pytest.raises(StrategyError, match="no such table"):
        await opens(sink, CONTEXT)
    assert sink.closed == 1


def test_the_text_of_a_refusal_is_its_first_reason() -> None:
    rows = Rows(pa.table({"a": [1]}), (Range("t", 0, 0, 0),))
    refused = RowsRefused([Refusal(rows, "too long"), Refusal(rows, "too wide")])
    assert str(refused) == "too long"
    assert str(RowsRefused([], [rows])) == ""


def test_a_history_flushes_more_rows_where_nobody_said_how_many() -> None:
    usual, chosen = MemoryWriter(Journal()), MemoryWriter(Journal(), max_rows=10)
    assert with_large_flushes(usual).max_rows == 500_000
    assert usual.max_rows == DEFAULT_MAX_ROWS
    assert with_large_flushes(chosen) is chosen
    collector = Batcher()
    assert with_large_flushes(collector) is collector
