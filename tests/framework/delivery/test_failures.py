"""Failed records in a worker: the error sink settles them, the limit counts them; time is virtual."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

from kmr.delivery.error_limit import MOSTLY_FAILED, ErrorLimit
from kmr.delivery.failures import RowLetters, original_records, settled_together
from kmr.errors import RecordFailed
from kmr.mapping.functions import map_record
from kmr.record import Range, Record, Rows
from kmr.reducers.sink import NEW, Refusal, RowsRefused, Write, refusals_among
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, batch_of

from ..workers import P0, committed, locate, put, running, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_a_failed_record_is_settled_only_by_the_error_sink(clock: VirtualClock) -> None:
    journal, errors, consumer = Journal(), Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"poison", b"c")
    strategy = Strategy(
        locate, [MemoryWriter(journal, max_rows=1)], reduce_err=MemoryWriter(errors, max_rows=1)
    )
    async with running(strategy, consumer):
        await consumer.rebalance([P0])
        await errors.until(lambda j: j.attempts == 1)
        await clock.advance(1.0)
        assert written(journal, 0) == [0, 2]
        assert committed(consumer) == {P0: 1}
        assert errors.hold is not None
        errors.hold.set()
        await clock.advance(1.0)
        assert committed(consumer) == {P0: 3}
        [failed] = errors.rows()
        assert (failed["offset"], failed["value"], failed["stage"]) == (1, b"poison", "map")
        assert failed["reason"] == "ValueError: poisoned"
        assert failed["exception"] == "ValueError"
        where, *_, last = failed["traceback"].splitlines()
        assert where.endswith(", in locate")  # not in this package
        assert last == "ValueError: poisoned"


async def test_without_an_error_sink_the_first_failure_stops_the_worker_and_names_the_record(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"poison")
    with pytest.RaisesGroup(
        pytest.RaisesExc(RecordFailed, match=r"t-0\[1\.\.1\] in map: ValueError")
    ):
        async with running(Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


async def test_watermarks_reached_before_a_failure_are_committed(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    with pytest.RaisesGroup(RecordFailed):
        async with running(Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer):
            await consumer.rebalance([P0])
            await journal.until(lambda j: len(j.written) == 2)
            put(consumer, 0, 2, b"poison")
            await anyio.sleep_forever()
    assert committed(consumer) == {P0: 2}


@pytest.mark.parametrize(("limit", "kept"), [(3, 3), (5, 4)])
async def test_too_many_failures_stop_the_worker(
    clock: VirtualClock, limit: int, kept: int
) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, *([b"poison"] * 4))
    strategy = Strategy(
        locate,
        [MemoryWriter(Journal())],
        reduce_err=MemoryWriter(Journal(), max_rows=1),
        err_limit=ErrorLimit(limit, per=60.0),
    )
    if kept == 4:
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            await clock.settle()
        assert committed(consumer) == {P0: 4}
        return
    with pytest.RaisesGroup(
        pytest.RaisesExc(RecordFailed, match="more than 3 records in 60 s failed")
    ):
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("bad", "good", "filtered", "limit", "stops"),
    [
        (10_200, 0, 0, MOSTLY_FAILED, True),
        (9_999, 0, 0, MOSTLY_FAILED, False),
        (10_200, 700, 0, MOSTLY_FAILED, False),
        (10_200, 0, 700, MOSTLY_FAILED, True),
        (10_200, 0, 0, None, False),
    ],
)
async def test_a_worker_stops_when_almost_all_records_fail_unless_the_limit_is_off(
    clock: VirtualClock,
    bad: int,
    good: int,
    filtered: int,
    limit: ErrorLimit | None,
    *,
    stops: bool,
) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, *([b"good"] * good), *([b"filtered"] * filtered), *([b"poison"] * bad))
    strategy = Strategy(
        lambda record: None if record.value == b"filtered" else locate(record),
        [MemoryWriter(Journal())],
        reduce_err=MemoryWriter(Journal(), max_rows=1),
        err_limit=limit,
    )
    failure = pytest.RaisesExc(
        RecordFailed, match=r"95% of the records \(or 10,000 if that is more\) in 60 s"
    )
    with pytest.RaisesGroup(failure) if stops else nullcontext():
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            if stops:
                await anyio.sleep_forever()
            await clock.settle()


async def test_the_error_limit_can_pause_until_the_window_has_room(clock: VirtualClock) -> None:
    errors, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, *([b"poison"] * 5))
    strategy = Strategy(
        locate,
        [MemoryWriter(Journal())],
        reduce_err=MemoryWriter(errors, max_rows=1),
        err_limit=ErrorLimit(2, per=60.0, on_limit="pause"),
    )
    async with running(strategy, consumer):
        await consumer.rebalance([P0])
        await clock.advance(59.0)
        assert [row["offset"] for row in errors.rows()] == [0, 1]
        await clock.advance(1.0)
        assert [row["offset"] for row in errors.rows()] == [0, 1, 2, 3]
        await clock.advance(60.0)
        await clock.settle()
        assert [row["offset"] for row in errors.rows()] == [0, 1, 2, 3, 4]


async def test_the_error_limit_can_drop_and_the_dropped_count_as_settled(
    clock: VirtualClock,
) -> None:
    errors, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, *([b"poison"] * 5))
    strategy = Strategy(
        locate,
        [MemoryWriter(Journal())],
        reduce_err=MemoryWriter(errors, max_rows=1),
        err_limit=ErrorLimit(2, per=60.0, on_limit="drop"),
    )
    async with running(strategy, consumer) as worker:
        await consumer.rebalance([P0])
        await clock.advance(1.0)
        dropped = worker.metrics.dead_letters.labels("dropped")
        assert dropped._value.get() == 3
    assert [row["offset"] for row in errors.rows()] == [0, 1]
    assert committed(consumer) == {P0: 5}


def test_of_joined_rows_of_several_partitions_only_the_records_of_refused_rows_fail() -> None:
    batches = tuple(batch_of("t", partition, 10, [b"a", b"b", b"c"]) for partition in (0, 1))
    ranges = tuple(Range("t", partition, 10, 12) for partition in (0, 1))
    parts = [
        Rows(pa.table({"n": [1, 2, 3]}), (whole,), np.arange(10, 13), (batch,))
        for whole, batch in zip(ranges, batches, strict=True)
    ]
    places = pa.concat_tables([each for part in parts if (each := part.coordinates) is not None])
    joined = Rows(pa.concat_tables([part.table for part in parts]), ranges, None, batches, places)

    def failed(reasons: dict[int, str]) -> list[tuple[int, int, str]]:
        (refusal,) = refusals_among([joined], reasons)
        found = original_records(refusal.rows, refusal.reason, "reduce-2", 1)
        assert all(r.first == r.last for rows in found for r in rows.ranges)
        rows = [row for each in found for row in each.table.to_pylist()]
        return [(row["partition"], row["offset"], row["reason"]) for row in rows]

    assert failed({4: "odd"}) == [(1, 11, "odd")]
    assert failed({0: "odd", 5: "large"}) == [(0, 10, "odd"), (1, 12, "large")]


class _Refusing(MemoryWriter):
    """Refuses each row, with its name in the reason."""

    def __init__(self, name: str) -> None:
        super().__init__(Journal(), max_rows=4)
        self.name = name

    async def flush(self, write: Write = NEW) -> None:
        raise RowsRefused([Refusal(rows, f"no room in {self.name}") for rows in self.collected])


async def test_a_record_that_two_branches_refuse_is_settled_when_both_letters_are_stored(
    clock: VirtualClock,
) -> None:
    @map_record
    def twice(record: Record) -> Iterator[tuple[dict[str, int], str]]:
        for name in ("a", "b"):
            yield {"o": record.offset}, name

    errors, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"x", b"y")
    strategy = Strategy(
        twice,
        {"a": _Refusing("a"), "b": _Refusing("b")},
        reduce_err=MemoryWriter(errors, max_rows=1),
        err_limit=None,
    )
    async with running(strategy, consumer):
        await consumer.rebalance([P0])
        await errors.until(lambda j: j.count == 4)
        await clock.advance(6.0)
        assert committed(consumer) == {P0: 2}
    letters = {(row["offset"], row["stage"], row["reason"]) for row in errors.rows()}
    assert letters == {(o, f"reduce-1 {b}", f"no room in {b}") for o in (0, 1) for b in "ab"}
    assert [len(flush) for flush in errors.written] == [4]


def test_letters_of_rows_are_joined_with_others_that_settle_the_same_records() -> None:
    batch, whole = batch_of("t", 0, 0, [b"a", b"b", b"c"]), Range("t", 0, 0, 2)
    of_records = Rows(pa.table({"n": [1]}), (Range("t", 0, 1, 1),), np.array([1]), (batch,))
    (record,) = original_records(of_records, "odd", "reduce-1 a", 1)
    letters = [RowLetters(record.table, (whole,)) for _ in range(2)]
    of_windows = RowLetters(record.table, ())
    joined, apart = settled_together([record, *letters, of_windows])
    assert (joined.ranges, len(joined), joined.offsets) == ((whole,), 3, None)
    assert apart is of_windows
    assert settled_together([record, of_windows]) == [record, of_windows]
