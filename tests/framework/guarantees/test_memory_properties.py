"""The memory budget: it counts all bytes in flight, stays within its bound, and is 0 in the end.

Proven by any schedule of records that become many rows, none, or fail, of sinks that hold or refuse,
rebalances and time, over all deliveries, with one reducer and with two; time is virtual.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.mapping.functions import map_record
from kmr.record import Record, TopicPartition
from kmr.reducers.reducer import ERROR_STAGE, Retry
from kmr.reducers.sink import Capabilities
from kmr.settings import FetchSettings, Settings
from kmr.strategy import Strategy
from kmr.testing import (
    Journal,
    MemoryConsumer,
    MemoryWriter,
    VirtualClock,
    VirtualTimeLoop,
    batch_of,
)
from kmr.worker import Worker
from tests.examples import examples

from ..workers import maps_are_idle

if TYPE_CHECKING:
    from kmr.intake.backpressure import Budget
    from kmr.reducers.sink import Delivery

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
LIMIT = 16_000

values = st.lists(
    st.sampled_from([b"1", b"1", b"0", b"40", b"poison"]), min_size=1, max_size=12
) | st.just([b"40"] * 12)
puts = st.tuples(st.just("put"), st.integers(0, 2), values)
rebalances = st.tuples(st.just("rebalance"), st.sets(st.sampled_from(PARTITIONS)))
passes = st.tuples(st.just("pass"), st.sampled_from([0.0, 1.0, 4.0, 30.0]))
troubles = st.tuples(st.just("trouble"), st.sampled_from(["retry", "errors", "hold", "release"]))
schedules = st.lists(st.one_of(puts, puts, puts, rebalances, passes, troubles), max_size=30)


@map_record
def repeat(record: Record) -> list[dict[str, Any]]:
    """Make as many rows as the value says."""
    return [{"p": record.partition, "o": record.offset, "x": "x" * 100}] * int(record.value or b"")


class ExactWriter(MemoryWriter):
    capabilities = Capabilities(delivery="exactly-once")


class Watched:
    """A worker, its budget, and the largest batch and rows of a batch that it has seen."""

    def __init__(self, worker: Worker, *, counts_refused: bool) -> None:
        self.worker = worker
        self.counts_refused = counts_refused
        self.budget: Budget = worker.pipeline.intake.budget
        self.largest_batch = self.largest_rows = 0
        self.lost_partitions = False
        learn = self.budget.learn

        def note(topic: str, batch_bytes: int, row_bytes: int) -> None:
            self.largest_batch = max(self.largest_batch, batch_bytes)
            # The failed records of a batch are counted too: copies, with reasons.
            self.largest_rows = max(self.largest_rows, row_bytes + 3 * batch_bytes + 2_000)
            learn(topic, batch_bytes, row_bytes)

        self.budget.learn = note  # type: ignore[method-assign]

    def check(self) -> None:
        used, stages = self.budget.used, self.worker.status().stages
        if not self.lost_partitions:  # whose rows stay in a shared lane until its next flush
            # With at most once, what the sink refuses is settled before it goes to the error sink.
            held = sum(s.bytes for s in stages if self.counts_refused or s.name != ERROR_STAGE)
            assert used >= held, "rows are held, and not counted"
        assert 0 <= self.budget.unmapped <= used
        assert used <= LIMIT + self.largest_batch + len(PARTITIONS) * self.largest_rows


async def run(schedule: list[tuple[Any, ...]], *, delivery: Delivery, chained: bool) -> None:
    journal, errors, consumer = Journal(), Journal(), MemoryConsumer()
    writer = ExactWriter(journal, max_rows=200, max_age=4.0)
    first = MemoryWriter(Journal(), forward=True, max_rows=100, max_age=None)
    strategy = Strategy(
        repeat,
        [first, writer] if chained else [writer],
        reduce_err=MemoryWriter(errors, max_rows=5, max_age=1.0),
        delivery=delivery,
    )
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    clock, ends = VirtualClock(loop), [0, 0, 0]
    options = Settings(
        topics=("t",),
        group="g",
        executor="inline",
        inflight_bytes=LIMIT,
        fetch=FetchSettings(max_partition_bytes=1000),
    )
    worker = Worker(strategy, options, consumer=consumer)
    watched = Watched(worker, counts_refused=delivery != "at-most-once")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        await consumer.rebalance(PARTITIONS)
        for action in schedule:
            match action:
                case "put", partition, added:
                    consumer.put(batch_of("t", partition, ends[partition], added))
                    ends[partition] += len(added)
                case "rebalance", ours:
                    release(journal)
                    watched.lost_partitions |= len(ours) < len(PARTITIONS)
                    await rebalance(consumer, clock, ours)
                case "pass", seconds:
                    await clock.advance(seconds)
                case "trouble", "retry":
                    journal.outcomes.append(Retry("busy", after=1.0))
                case "trouble", "errors":
                    errors.outcomes.append(Retry("busy"))
                case "trouble", "hold":
                    journal.hold = journal.hold or anyio.Event()
                case "trouble", "release":
                    release(journal)
            await clock.settle()
            watched.check()
        release(journal)
        await rebalance(consumer, clock, set(PARTITIONS))
        while not maps_are_idle(worker) or any(
            p.position != p.end for p in worker.status().partitions if p.end
        ):
            await clock.advance(0.5)
            watched.check()
        worker.shutdown("done")
        while worker.status().state != "stopped":
            await clock.advance(0.5)
            watched.check()
    assert (watched.budget.used, watched.budget.unmapped) == (0, 0)
    assert not any(p.lag for p in worker.status().partitions)
    found = {(row["p"], row["o"]) for row in journal.rows()}
    failed = {(row["partition"], row["offset"]) for row in errors.rows()}
    wanted = {
        (batch.partition, batch.first + at)
        for batches in consumer.log.values()
        for batch in batches
        for at, value in enumerate(batch.records.column("value").to_pylist())
        if value != b"0"
    }
    if delivery != "at-most-once":
        assert found | failed == wanted


async def rebalance(
    consumer: MemoryConsumer, clock: VirtualClock, ours: set[TopicPartition]
) -> None:
    """Revoke and assign while time passes: flushes that are repeated can end."""
    async with anyio.create_task_group() as tasks:

        async def pass_time() -> None:
            while True:
                await clock.advance(1.0)

        tasks.start_soon(pass_time)
        await consumer.rebalance(ours)
        tasks.cancel_scope.cancel()


def release(journal: Journal) -> None:
    if journal.hold is not None:
        journal.hold.set()
        journal.hold = None


@pytest.mark.parametrize("chained", [False, True], ids=["one reducer", "two reducers"])
@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once", "exactly-once"])
@settings(max_examples=examples(60), deadline=None)
@given(schedule=schedules)
def test_all_that_is_held_is_counted_and_bounded_and_nothing_stays_counted(
    schedule: list[tuple[Any, ...]], delivery: Delivery, *, chained: bool
) -> None:
    anyio.run(
        partial(run, schedule, delivery=delivery, chained=chained),
        backend_options={"loop_factory": VirtualTimeLoop},
    )
