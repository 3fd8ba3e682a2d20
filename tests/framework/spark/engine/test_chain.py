"""The chain of reducers on Spark: each chunk is flushed through all of them; limits, retries, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import Capabilities, Refusal, RowsRefused
from kmr.spark.engine.chain import Chain
from kmr.testing import Journal, MemoryWriter, VirtualTimeLoop, batch_of

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


def chunk(first: int, count: int) -> Rows:
    batch = batch_of("t", 0, first, [b"x"] * count)
    offsets = np.arange(first, first + count)
    whole = Range("t", 0, batch.first, batch.last)
    return Rows(pa.table({"o": offsets}), (whole,), offsets, (batch,))


def counts(journal: Journal) -> list[int]:
    return [table.num_rows for table in journal.written]


async def test_a_chunk_goes_through_all_reducers_and_leaves_nothing_behind(
    clock: VirtualClock,
) -> None:
    first, last = Journal(), Journal()
    chain = Chain(
        {
            "reduce-1": MemoryWriter(first, forward=True, max_rows=2),
            "reduce-2": MemoryWriter(last, max_rows=4),
        }
    )
    outcome = await chain.deliver([chunk(0, 5)], "trigger")
    assert counts(first) == [2, 2, 1]
    assert counts(last) == [4, 1]
    assert [(flush.stage, flush.reason) for flush in outcome.flushes] == [
        ("reduce-1", "count"),
        ("reduce-1", "count"),
        ("reduce-2", "count"),
        ("reduce-1", "trigger"),
        ("reduce-2", "trigger"),
    ]
    assert (await chain.deliver([], "trigger")).flushes == []


async def test_the_output_of_the_last_reducer_comes_out_with_its_ranges(
    clock: VirtualClock,
) -> None:
    chain = Chain({"reduce-1": MemoryWriter(Journal(), forward=True)})
    (rows,) = (await chain.deliver([chunk(3, 4)], "count")).out
    assert (rows.ranges, rows.table.num_rows) == ((Range("t", 0, 3, 6),), 4)
    unchanged = chunk(0, 1)
    assert (await Chain({}).deliver([unchanged], "count")).out == [unchanged]


async def test_a_sink_that_names_ranges_gets_a_whole_chunk_whatever_its_limits(
    clock: VirtualClock,
) -> None:
    class Naming(MemoryWriter):
        capabilities = Capabilities(names_ranges=True)

    journal = Journal()
    await Chain({"reduce-1": Naming(journal, max_rows=2)}).deliver([chunk(0, 5)], "count")
    assert counts(journal) == [5]


async def test_refused_records_come_out_as_their_original_records(clock: VirtualClock) -> None:
    journal, rows = Journal(), chunk(0, 3)
    refused = Rows(rows.table.slice(1, 1), rows.ranges, np.array([1]), rows.sources)
    journal.outcomes.append(RowsRefused([Refusal(refused, "too odd")]))
    chain = Chain({"reduce-1": MemoryWriter(journal)})
    (failed,) = (await chain.deliver([rows], "trigger")).failed
    assert failed.table.select(["offset", "reason", "stage"]).to_pylist() == [
        {"offset": 1, "reason": "too odd", "stage": "reduce-1"}
    ]


async def test_refused_rows_of_many_records_come_out_as_letters_of_the_rows(
    clock: VirtualClock,
) -> None:
    journal, whole = Journal(), (Range("t", 0, 0, 8),)
    rows = Rows(pa.table({"n": [1, 2, 3]}), whole, refused={0: "no result"})
    journal.outcomes.append(RowsRefused([Refusal(rows.slice(2, 3), "too large")]))
    outcome = await Chain({"reduce-1": MemoryWriter(journal)}).deliver([rows], "trigger")
    assert [row["n"] for row in journal.rows()] == [2, 3], "what came as refused is not written"
    failed = [row for each in outcome.failed for row in each.table.to_pylist()]
    assert [(row["value"], row["reason"]) for row in failed] == [
        (b'{"n":1}', "no result"),
        (b'{"n":3}', "too large"),
    ]


async def test_a_retry_is_counted_and_has_the_same_rows(clock: VirtualClock) -> None:
    journal = Journal()
    journal.outcomes.extend([Retry("busy", after=0.0), Retry("busy", after=0.0)])
    chain = Chain({"reduce-1": MemoryWriter(journal)})
    outcome = await chain.deliver([chunk(0, 3)], "trigger")
    assert counts(journal) == [3]
    assert outcome.retries == {"reduce-1": 2}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("never"), SinkError, "reduce-1: MemoryWriter failed: ValueError: never"),
        (StrategyError("no such column"), StrategyError, "no such column"),
    ],
)
async def test_an_error_reaches_the_user_and_the_next_chunk_begins_empty(
    clock: VirtualClock, error: Exception, kind: type[Exception], message: str
) -> None:
    journal = Journal()
    journal.outcomes.append(error)
    chain = Chain({"reduce-1": MemoryWriter(journal, on_error="stop")})
    with pytest.raises(kind, match=message):
        await chain.deliver([chunk(0, 3)], "trigger")
    await chain.deliver([chunk(3, 2)], "trigger")
    assert counts(journal) == [2]


async def test_all_reducers_are_closed_though_one_cannot_close(clock: VirtualClock) -> None:
    closed: list[str] = []

    class Closing(MemoryWriter):
        async def close(self) -> None:
            closed.append(type(self).__name__)

    class Broken(Closing):
        async def close(self) -> None:
            await super().close()
            raise OSError("cannot close")

    journal = Journal()
    writers = (Closing(journal), Broken(journal), Closing(journal))
    chain = Chain({f"reduce-{number}": writer for number, writer in enumerate(writers)})
    with pytest.raises(OSError, match="cannot close"):
        await chain.close()
    assert sorted(closed) == ["Broken", "Closing", "Closing"]
