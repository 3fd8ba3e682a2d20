"""The map stage: the rows, failures and settled offsets of a batch, and the end of a replayed range."""

from __future__ import annotations

import math

import anyio

from kmr.delivery.failures import ErrorPort, LimitWindow
from kmr.delivery.ledger import Ledgers
from kmr.intake.backpressure import Budget, Gate
from kmr.map import MapStage
from kmr.mapping.executor import Executor
from kmr.observe.metrics import Metrics
from kmr.record import Batch, ReplayEnd, Rows
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter, batch_of

from .workers import P0, locate


class Bench:
    """A map stage of one partition, its inbox, and the streams that it sends to."""

    def __init__(self, *, replay_to: int | None = None) -> None:
        metrics = Metrics()
        self.ledgers = Ledgers()
        self.ledger = self.ledgers.open(P0, 0)
        self.inbox, inbox = anyio.create_memory_object_stream[Batch](math.inf)
        out, self.out = anyio.create_memory_object_stream[Rows | ReplayEnd](math.inf)
        errors, self.failed = anyio.create_memory_object_stream[Rows](math.inf)
        self.taken = 0
        gate = Gate()
        gate.open()
        self.stage = MapStage(
            Strategy(locate, [MemoryWriter(Journal())]),
            Executor("inline"),
            self.ledger,
            self.ledgers,
            inbox,
            out,
            ErrorPort(errors, LimitWindow(None), self.ledgers.settle, metrics),
            gate,
            Budget(1_000_000),
            metrics,
            on_failure=lambda _: None,
            on_taken=self.count_taken,
            replay_to=replay_to,
        )

    def count_taken(self) -> None:
        self.taken += 1

    async def map(self, *batches: Batch) -> list[Rows | ReplayEnd]:
        """Run the stage on these batches to its end; what it sent to the first reducer."""
        for batch in batches:
            self.ledger.take_in(batch)
            self.inbox.send_nowait(batch)
        self.inbox.close()
        await self.stage.run()
        assert self.taken == len(batches)
        with self.out, self.failed:
            return [item async for item in self.out]


def spans(sent: list[Rows | ReplayEnd]) -> list[tuple[int, int] | None]:
    """The first and last offset of rows; None for the end of the replayed range."""
    return [
        (item.ranges[0].first, item.ranges[-1].last) if isinstance(item, Rows) else None
        for item in sent
    ]


async def test_rows_have_the_offsets_of_their_batch_without_the_failed_ones() -> None:
    bench = Bench()
    (rows,) = await bench.map(batch_of("t", 0, 0, [b"a", b"poison", b"skip", b"b"]))
    assert isinstance(rows, Rows)
    assert rows.table.column("o").to_pylist() == [0, 3]
    assert [(r.first, r.last) for r in rows.ranges] == [(0, 0), (2, 3)]


async def test_failed_records_go_to_the_error_stage() -> None:
    bench = Bench()
    failed = bench.failed.clone()
    await bench.map(batch_of("t", 0, 0, [b"a", b"poison"]))
    with failed:
        rows = failed.receive_nowait()
    assert rows.table.column("offset").to_pylist() == [1]
    assert rows.table.column("stage").to_pylist() == ["map"]


async def test_a_batch_that_is_filtered_as_a_whole_is_settled_at_once() -> None:
    bench = Bench()
    assert await bench.map(batch_of("t", 0, 0, [b"skip"] * 3)) == []
    assert bench.ledger.watermark == 3


async def test_the_end_of_a_replayed_range_divides_the_batch_that_it_is_in() -> None:
    bench = Bench(replay_to=4)
    batches = [batch_of("t", 0, 0, [b"a"] * 3), batch_of("t", 0, 3, [b"a"] * 3)]
    assert spans(await bench.map(*batches)) == [(0, 2), (3, 4), None, (5, 5)]


async def test_a_replayed_range_that_ends_with_a_batch_or_in_a_gap_is_ended_there() -> None:
    at_the_end = Bench(replay_to=2)
    batch, following = batch_of("t", 0, 0, [b"a"] * 3), batch_of("t", 0, 7, [b"a"])
    assert spans(await at_the_end.map(batch, following)) == [(0, 2), None, (7, 7)]
    in_a_gap = Bench(replay_to=5)
    assert spans(await in_a_gap.map(batch, following)) == [(0, 2), None, (7, 7)]


async def test_a_cancelled_stage_drops_its_inbox_unsettled() -> None:
    bench = Bench()
    bench.stage.cancel()
    bench.taken = 1
    assert await bench.map(batch_of("t", 0, 0, [b"a"])) == []
    assert bench.ledger.watermark == 0
