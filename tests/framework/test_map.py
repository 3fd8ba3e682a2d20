"""The map stage: the rows, failures and settled offsets of a batch, and the end of a replayed range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from kmr.delivery.error_limit import LimitWindow
from kmr.delivery.failures import ErrorPort
from kmr.delivery.ledger import Ledgers
from kmr.intake.backpressure import Budget, Gate
from kmr.map import MapStage
from kmr.mapping.executor import Executor
from kmr.mapping.functions import map_batch, map_record
from kmr.observe.metrics import Metrics
from kmr.parts import MapParts, MapPorts, SharedParts
from kmr.record import Batch, Record, ReplayEnd, Rows
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter, VirtualTimeLoop, batch_of

from .workers import P0, locate

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class Bench:
    """A map stage of one partition, its inbox, and the streams that it sends to."""

    def __init__(
        self,
        function: Callable[..., Any] = locate,
        *,
        replay_to: int | None = None,
        max_records: int = 1_000,
    ) -> None:
        metrics = Metrics()
        self.bytes = 0
        self.ledgers = Ledgers(on_bytes=self.count_bytes)
        self.ledger = self.ledgers.open(P0, 0, replayed_to=-1 if replay_to is None else replay_to)
        self.inbox, inbox = anyio.create_memory_object_stream[Batch](math.inf)
        out, self.out = anyio.create_memory_object_stream[Rows | ReplayEnd](math.inf)
        errors, self.failed = anyio.create_memory_object_stream[Rows](math.inf)
        self.taken = 0
        self.budget = Budget(1_000_000_000)
        gate = Gate()
        gate.open()
        shared = SharedParts(self.ledgers, gate, self.budget, metrics, on_failure=lambda _: None)
        self.stage = MapStage(
            Strategy(function, [MemoryWriter(Journal())]),
            self.ledger,
            MapPorts(
                inbox,
                self.count_taken,
                out,
                lambda _rows: False,
                ErrorPort(errors, LimitWindow(None), self.ledgers.settle, metrics),
            ),
            MapParts(shared, Executor("inline"), max_records),
        )

    def count_bytes(self, nbytes: int, unmapped: int) -> None:
        self.bytes += nbytes

    def count_taken(self) -> None:
        self.taken += 1

    async def map(self, *batches: Batch) -> list[Rows | ReplayEnd]:
        """Run the stage on these batches to its end; what it sent to the first reducer."""
        self.put(*batches)
        await self.stage.run()
        assert self.taken == len(batches)
        return await self.sent()

    def put(self, *batches: Batch) -> None:
        for batch in batches:
            self.ledgers.take_in(batch)
            self.inbox.send_nowait(batch)
        self.inbox.close()

    async def sent(self) -> list[Rows | ReplayEnd]:
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


async def test_a_batch_is_mapped_in_parts_of_at_most_so_many_records() -> None:
    bench = Bench(max_records=4)
    sent = await bench.map(batch_of("t", 0, 0, [b"a"] * 4), batch_of("t", 0, 4, [b"a"] * 9))
    assert spans(sent) == [(0, 3), (4, 6), (7, 9), (10, 12)]


async def test_a_drain_ends_a_map_before_its_next_record_and_gives_the_others_back(
    clock: VirtualClock,
) -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    @map_record
    async def slow(record: Record) -> dict[str, int]:
        if record.offset == 2:
            begun.set()
            await go_on.wait()
        return {"o": record.offset}

    bench = Bench(slow)
    bench.put(batch_of("t", 0, 0, [b"a"] * 6), batch_of("t", 0, 8, [b"a"] * 4))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.stage.run)
        await begun.wait()
        bench.stage.drain()
        go_on.set()
    (rows,) = await bench.sent()
    assert spans([rows]) == [(0, 2)]
    assert bench.ledger.position == 3
    assert isinstance(rows, Rows)
    bench.ledgers.settle(rows.ranges)
    assert (bench.ledger.watermark, bench.ledger.has_holes, bench.bytes) == (3, False, 0)


async def test_a_drain_drops_the_parts_of_a_batch_whose_calls_have_not_begun() -> None:
    bench: Bench

    @map_batch
    def draining(records: pa.RecordBatch) -> pa.RecordBatch:
        bench.stage.drain()
        return records

    bench = Bench(draining, max_records=2)
    assert spans(await bench.map(batch_of("t", 0, 0, [b"a"] * 6))) == [(0, 1)]
    assert bench.ledger.position == 2


async def test_a_replayed_range_is_mapped_though_the_budget_is_used_up(
    clock: VirtualClock,
) -> None:
    """Its rows are written at its end: nothing that waits for them could give bytes back before."""
    bench = Bench(replay_to=4)
    bench.budget.add(2 * bench.budget.limit)
    bench.put(batch_of("t", 0, 0, [b"x"] * 5))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.stage.run)
        await clock.settle()
        tasks.cancel_scope.cancel()
    assert spans(await bench.sent()) == [(0, 4), None]


async def test_a_drain_within_a_replayed_range_does_not_end_the_range() -> None:
    bench: Bench

    @map_batch
    def draining(records: pa.RecordBatch) -> pa.RecordBatch:
        bench.stage.drain()
        return records

    bench = Bench(draining, max_records=2, replay_to=5)
    assert spans(await bench.map(batch_of("t", 0, 0, [b"a"] * 9))) == [(0, 1)]
    at_its_end = bench = Bench(draining, replay_to=5)
    assert spans(await at_its_end.map(batch_of("t", 0, 0, [b"a"] * 9))) == [(0, 5), None]


async def test_a_drain_wakes_a_map_that_waits_for_room(clock: VirtualClock) -> None:
    bench = Bench()
    bench.put(batch_of("t", 0, 0, [b"a"]))
    bench.budget.add(bench.budget.limit)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.stage.run)
        await clock.settle()
        bench.stage.drain()
    assert await bench.sent() == []


async def test_the_rows_of_a_slow_map_go_on_before_the_end_of_their_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @map_record
    async def slow(record: Record) -> dict[str, int]:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        return {"o": record.offset}

    monkeypatch.setattr("kmr.map.LONGEST", 0.0)
    sent = spans(await Bench(slow).map(batch_of("t", 0, 0, [b"a"] * 10)))
    assert len(sent) > 2
    assert [span[0] for span in sent if span] == [0, *(span[1] + 1 for span in sent if span)][:-1]
