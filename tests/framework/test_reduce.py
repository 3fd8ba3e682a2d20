"""The reduce stage: two buffers, settling, failed records, lost partitions; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

from kmr.record import Range, Rows, TopicPartition
from kmr.reducers.collect import Batcher
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import Refusal, RowsRefused
from kmr.testing import Journal, MemoryWriter, VirtualTimeLoop, batch_of

from .stages import Bench, counts, running

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_collecting_goes_on_while_the_previous_rows_are_written(clock: VirtualClock) -> None:
    journal = Journal(hold=anyio.Event())
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(10)
        await journal.until(lambda j: j.attempts == 1)
        bench.feed(10)
        await clock.advance(0)
        assert bench.inbox.statistics().current_buffer_used == 0
        bench.feed(10)
        bench.feed(10)
        await clock.advance(0)
        assert bench.inbox.statistics().current_buffer_used == 2, "both buffers are full: wait"
        assert journal.hold is not None
        journal.hold.set()
    assert counts(journal) == [10, 10, 10, 10]


async def test_rows_past_the_inbox_are_flushed_at_their_age_though_no_task_is_woken(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10, max_age=4.0))
    async with running(bench):
        await clock.settle()
        for _ in range(3):
            assert bench.stage.accept(bench.rows(2))
            await clock.advance(1.0)
        assert counts(journal) == []
        await clock.advance(1.0)
        assert counts(journal) == [6]
        assert bench.watermark() == 6


async def test_rows_are_queued_where_they_would_overtake_others_or_reach_a_limit(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10, max_age=4.0))
    async with running(bench):
        assert not bench.stage.accept(bench.rows(1)), "it does not wait for rows yet"
        await clock.settle()
        bench.feed(2)
        assert not bench.stage.accept(bench.rows(1)), "others are queued"
        await clock.settle()
        assert not bench.stage.accept(bench.rows(8)), "they fill the buffer"
        assert bench.stage.accept(bench.rows(7))
        bench.stage.trigger.awaited(on=True)
        assert not bench.stage.accept(bench.rows(1)), "somebody waits for a flush"
        await clock.settle()
    assert counts(journal) == [9]


async def test_nothing_is_settled_before_its_flush_succeeds(clock: VirtualClock) -> None:
    journal = Journal()
    journal.outcomes.extend([OSError("gone")] * 3)
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(10)
        for attempt in range(1, 4):
            await journal.until(lambda j, attempt=attempt: j.attempts == attempt)  # type: ignore[misc]
            assert bench.watermark() == 0
            await clock.advance(60.0)
    assert bench.watermark() == 10


async def test_a_flush_without_rows_settles_what_was_collected(clock: VirtualClock) -> None:
    class Silent(Batcher):
        def flush(self) -> Any:
            """Deliver, and hand nothing on."""

    bench = Bench(Silent(max_rows=10))
    async with running(bench):
        bench.feed(10)
    assert bench.watermark() == 10


async def test_poisoned_rows_go_to_the_error_sink_as_their_original_records(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10))
    ledger = bench.ledgers.get(TopicPartition("t", 0))
    assert ledger is not None
    batch = batch_of("t", 0, 0, [b"x"] * 10)
    poison = Rows(
        pa.table({"n": [1, 1, 1]}),
        (Range("t", 0, 0, 9, ledger.generation),),
        np.array([3, 4, 4]),
        (batch,),
    )
    journal.outcomes.append(RowsRefused([Refusal(poison, "too odd")]))
    async with running(bench):
        bench.feed(10)
        failed = await bench.failed.receive()
        assert failed.table.column("offset").to_pylist() == [3, 4]
        assert failed.table.column("reason").to_pylist() == ["too odd"] * 2
        assert failed.table.column("stage").to_pylist() == ["reduce-1"] * 2
        assert bench.watermark() == 3, "the failed records are not settled yet"
        bench.ledgers.settle(failed.ranges)
        assert bench.watermark() == 10


async def test_a_closed_gate_lets_no_flush_begin(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10))
    bench.gate.close()
    async with running(bench):
        bench.feed(10)
        await clock.advance(100.0)
        assert journal.attempts == 0
        assert bench.stage.status(anyio.current_time()).activity == "held"
        bench.gate.open()
    assert counts(journal) == [10]


async def test_rows_of_a_partition_that_is_gone_are_taken_out_before_the_flush(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=100))
    bench.gate.close()
    async with running(bench):
        bench.feed(10, partition=0)
        bench.feed(10, partition=1)
        await clock.advance(5.0)
        bench.ledgers.drop(TopicPartition("t", 0))
        bench.gate.open()
        await journal.until(lambda j: len(j.written) == 1)
    assert {row["partition"] for row in journal.rows()} == {1}
    assert bench.watermark(1) == 10


async def test_a_retry_drops_the_rows_of_a_partition_that_went_in_between(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    journal.outcomes.append(Retry("busy", after=1.0))
    bench = Bench(MemoryWriter(journal, max_rows=20))
    async with running(bench):
        bench.feed(10, partition=0)
        bench.feed(10, partition=1)
        await journal.until(lambda j: j.attempts == 1)
        bench.assign(0)
        await clock.advance(1.0)
    assert [(row["partition"], row["offset"]) for row in journal.rows()] == [
        (1, o) for o in range(10)
    ]
    assert bench.watermark(0) == 0


async def test_a_reducer_in_a_chain_settles_nothing_and_hands_its_ranges_on(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=20, forward=True), last=False)
    assert bench.out is not None
    async with running(bench):
        bench.feed(10, partition=0)
        bench.feed(10, partition=1)
        made = await bench.out.receive()
        assert [(r.partition, r.first, r.last) for r in made.ranges] == [(0, 0, 9), (1, 0, 9)]
        assert made.table.num_rows == 20
        assert len(made.sources) == 2
        assert bench.watermark(0) == bench.watermark(1) == 0
