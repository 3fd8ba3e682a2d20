"""The reduce stage by itself: limits, age, retries, policies; time is virtual."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

from framework.backpressure import Budget, Gate
from framework.errors import KmrError, SinkError, StrategyError
from framework.failures import ErrorPort, LimitWindow
from framework.ledger import Ledgers
from framework.record import Range, Rows, TopicPartition
from framework.reduce import ReduceStage
from framework.reducer import Context, Empty, Flushed, Poisoned, Retry
from framework.telemetry import Metrics
from framework.testing import Journal, MemoryWriter, VirtualTimeLoop, batch_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from framework.reducer import Reducer
    from framework.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class Bench:
    """A stage with everything around it, and a partition whose records are fed in."""

    def __init__(self, reducer: Reducer, *, last: bool = True) -> None:
        self.metrics = Metrics()
        self.ledgers = Ledgers()
        self.gate = Gate()
        self.gate.open()
        self.budget = Budget(1_000_000)
        self.stale: list[Range] = []
        send, receive = anyio.create_memory_object_stream[Rows](100)
        self.inbox: MemoryObjectSendStream[Rows] = send
        errors, self.failed = anyio.create_memory_object_stream[Rows](100)
        out: MemoryObjectSendStream[Any] | None = None
        self.out: MemoryObjectReceiveStream[Rows] | None = None
        if not last:
            out, self.out = anyio.create_memory_object_stream[Any](100)
        self.stage = ReduceStage(
            "reduce-1",
            reducer,
            receive,
            out,
            ErrorPort(errors, LimitWindow(None), self.ledgers.settle, self.metrics),
            ledgers=self.ledgers,
            gate=self.gate,
            budget=self.budget,
            metrics=self.metrics,
            on_stale=self.stale.extend,
            on_progress=lambda: None,
        )
        self.assign(0)
        self.assign(1)

    def assign(self, partition: int) -> None:
        self.ledgers.open(TopicPartition("t", partition), 0)

    def watermark(self, partition: int = 0) -> int | None:
        ledger = self.ledgers.get(TopicPartition("t", partition))
        return None if ledger is None else ledger.watermark

    def feed(self, count: int, partition: int = 0) -> None:
        """Send the next `count` records of a partition, one row each, as one batch."""
        ledger = self.ledgers.get(TopicPartition("t", partition))
        assert ledger is not None
        assert ledger.delivered is not None
        batch = batch_of("t", partition, ledger.delivered, [b"x"] * count)
        ledger.deliver(batch)
        offsets = np.arange(batch.first, batch.last + 1)
        table = pa.table({"partition": [partition] * count, "offset": offsets})
        whole = Range("t", partition, batch.first, batch.last, ledger.generation)
        self.inbox.send_nowait(Rows(table, (whole,), offsets, (batch,)))

    def close(self) -> None:
        self.inbox.close()
        self.failed.close()
        if self.out is not None:
            self.out.close()


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[TaskGroup]:
    async with anyio.create_task_group() as tasks:
        await bench.stage.open(Context("g", "", "reduce-1", {}))
        tasks.start_soon(bench.stage.run)
        yield tasks
        bench.inbox.close()
    await bench.stage.close()
    bench.close()


def counts(journal: Journal) -> list[int]:
    return [table.num_rows for table in journal.written]


async def test_a_flush_by_count_has_exactly_that_many_rows(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(25)
        await journal.until(lambda j: len(j.written) == 2)
        assert counts(journal) == [10, 10]
        assert bench.watermark() == 20
    assert counts(journal) == [10, 10, 5]
    assert bench.watermark() == 25


async def test_rows_are_flushed_when_the_oldest_has_reached_its_age(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_age=4.0))
    async with running(bench):
        bench.feed(3)
        await clock.advance(3.0)
        bench.feed(2)
        await clock.advance(0.9)
        assert journal.attempts == 0
        await clock.advance(0.1)
        assert counts(journal) == [5]
        await clock.advance(100.0)
        assert journal.attempts == 1, "nothing collected, nothing flushed"


async def test_a_flush_by_bytes_happens_before_the_limit_is_passed(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_bytes=16 * 10, max_rows=None, max_age=None))
    async with running(bench):
        bench.feed(25)
        await journal.until(lambda j: len(j.written) == 2)
        assert counts(journal) == [10, 10]


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


async def test_a_retry_has_the_same_rows_whatever_arrives_meanwhile(clock: VirtualClock) -> None:
    journal = Journal()
    journal.outcomes.extend([Retry(5.0, "busy"), OSError("gone"), Retry(None, "busy")])
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(10)
        await journal.until(lambda j: j.attempts == 1)
        bench.feed(5)
        await clock.advance(4.9)
        assert journal.attempts == 1
        assert bench.stage.status().reason == "busy"
        await clock.advance(0.1)
        assert journal.attempts == 2
        await clock.advance(60.0)
        assert journal.attempts == 3
        await clock.advance(60.0)
    assert counts(journal) == [10, 5]


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


async def test_an_empty_flush_settles_what_was_collected(clock: VirtualClock) -> None:
    journal = Journal()
    journal.outcomes.append(Empty())
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(10)
    assert journal.written == []
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
    journal.outcomes.append(Flushed(poisoned=[Poisoned(poison, "too odd")]))
    async with running(bench):
        bench.feed(10)
        failed = await bench.failed.receive()
        assert failed.table.column("offset").to_pylist() == [3, 4]
        assert failed.table.column("reason").to_pylist() == ["too odd"] * 2
        assert failed.table.column("stage").to_pylist() == ["reduce-1"] * 2
        assert bench.watermark() == 3, "the failed records are not settled yet"
        bench.ledgers.settle(failed.ranges)
        assert bench.watermark() == 10


async def test_divert_sends_every_row_of_a_failing_flush_to_the_error_sink(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    journal.outcomes.append(ValueError("never"))
    bench = Bench(MemoryWriter(journal, max_rows=10, on_error="divert"))
    async with running(bench):
        bench.feed(10)
        failed = await bench.failed.receive()
        assert failed.table.column("offset").to_pylist() == list(range(10))
        bench.ledgers.settle(failed.ranges)
        assert bench.watermark() == 10


async def test_stop_ends_the_stage_with_the_error_of_the_sink() -> None:
    journal = Journal()
    journal.outcomes.append(ValueError("never"))
    bench = Bench(MemoryWriter(journal, max_rows=10, on_error="stop"))
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="never"))):
        async with running(bench):
            bench.feed(10)
            await anyio.sleep_forever()
    await bench.stage.close()
    bench.close()


async def test_a_mistake_that_retrying_cannot_mend_stops_even_when_errors_are_retried() -> None:
    journal = Journal()
    journal.outcomes.append(StrategyError("no such column"))
    bench = Bench(MemoryWriter(journal, max_rows=10, on_error="retry"))
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(KmrError, match="no such column"))):
        async with running(bench):
            bench.feed(10)
            await anyio.sleep_forever()
    await bench.stage.close()
    bench.close()


async def test_a_flush_that_returns_nonsense_is_refused() -> None:
    journal = Journal()
    journal.outcomes.append(None)  # type: ignore[arg-type]
    bench = Bench(MemoryWriter(journal, max_rows=10))
    with pytest.RaisesGroup(
        pytest.RaisesGroup(pytest.RaisesExc(SinkError, match="returned NoneType"))
    ):
        async with running(bench):
            bench.feed(10)
            await anyio.sleep_forever()
    await bench.stage.close()
    bench.close()


async def test_backpressure_holds_input_back_until_the_age_is_reached(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10, max_age=4.0, when_full="backpressure"))
    async with running(bench):
        bench.feed(10)
        bench.feed(10)
        await clock.advance(3.9)
        assert journal.attempts == 0
        assert bench.inbox.statistics().current_buffer_used == 1
        await clock.advance(0.1)
        assert counts(journal) == [10]
        bench.stage.drain()
    assert counts(journal) == [10, 10]


async def test_drop_on_shutdown_leaves_what_is_collected_unsettled(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10, on_shutdown="drop"))
    async with running(bench):
        bench.feed(15)
        await journal.until(lambda j: len(j.written) == 1)
    assert counts(journal) == [10]
    assert bench.watermark() == 10


async def test_a_closed_gate_lets_no_flush_begin(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10))
    bench.gate.close()
    async with running(bench):
        bench.feed(10)
        await clock.advance(100.0)
        assert journal.attempts == 0
        assert bench.stage.status().activity == "held"
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
    assert [(r.partition, r.first, r.last) for r in bench.stale] == [(0, 0, 9)]


async def test_a_retry_drops_the_rows_of_a_partition_that_went_in_between(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    journal.outcomes.append(Retry(1.0, "busy"))
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


async def test_a_used_up_budget_flushes_what_is_collected_without_waiting_for_more(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=1_000, max_age=None))
    async with running(bench):
        bench.feed(10)
        await clock.advance(1.0)
        assert journal.attempts == 0
        bench.budget.take(1_000_000)
        bench.stage.make_room()
        await journal.until(lambda j: len(j.written) == 1)
        assert bench.watermark() == 10


async def test_a_plain_flush_function_runs_in_a_thread() -> None:
    import threading

    threads: list[int] = []

    class Plain(MemoryWriter):
        def flush(self) -> Flushed:  # type: ignore[override]
            threads.append(threading.get_ident())
            return Flushed()

    bench = Bench(Plain(Journal(), max_rows=10))
    async with running(bench):
        bench.feed(10)
    assert threads
    assert threads[0] != threading.get_ident()
    assert bench.watermark() == 10
