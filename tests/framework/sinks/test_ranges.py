"""The contract of sinks that know ranges: which ranges `has` gets, and the rows of a flush and a retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kmr.columns.fitted import Fitted
from kmr.delivery.announcement import Announcement
from kmr.errors import SinkError, StrategyError, UnexpectedDuplicate
from kmr.record import Range, Rows
from kmr.reducers.reducer import ERROR_STAGE, Context, Retry
from kmr.reducers.sink import Write
from kmr.sinks import RangeRows, RangeWriter
from kmr.sinks.ranges import LeavingOut

from ..flushes import Flushed, outcome

if TYPE_CHECKING:
    from collections.abc import Mapping


class Store:
    """Ranges by their tokens, the calls of its writers, and faults of the next calls."""

    def __init__(self) -> None:
        self.ranges: dict[str, list[int | None]] = {}
        self.calls: list[str] = []
        self.faults: list[Exception] = []


class StoreWriter(RangeWriter):
    """Writes offsets into a store, which refuses the offset 13."""

    range_name = "entry"

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(**options)
        self.store = store

    def has(self, rows: RangeRows) -> bool:
        self.store.calls.append(f"has {rows.token}")
        return rows.token in self.store.ranges

    async def write(self, rows: RangeRows) -> Mapping[int, str]:
        self.store.calls.append(f"write {rows.token}")
        fault = self.store.faults.pop(0) if self.store.faults else None
        if fault is not None:
            raise fault
        refused = await self.refused(rows)
        offsets = rows.table.column("o").to_pylist()
        kept = [offset for at, offset in enumerate(offsets) if at not in refused]
        self.store.ranges[rows.token] = kept
        return refused

    async def refused(self, rows: RangeRows) -> dict[int, str]:
        offsets = rows.table.column("o").to_pylist()
        return {at: "unlucky" for at, offset in enumerate(offsets) if offset == 13}


CONTEXT = Context(group="g", stage="reduce-1")


def rows(first: int, last: int, partition: int = 0) -> Rows:
    offsets = np.arange(first, last + 1)
    return Rows(pa.table({"o": offsets}), (Range("t", partition, first, last),), offsets)


async def opened(store: Store, **options: Any) -> StoreWriter:
    writer = StoreWriter(store, **options)
    await writer.open(CONTEXT)
    return writer


async def flush(
    writer: StoreWriter, *added: Rows, replayed: bool | None = None, generation: int = 0
) -> Flushed | Retry:
    """One round of calls; an announced one if `replayed` is given."""
    writer.reset()
    for each in added:
        writer.add(each)
    if replayed is not None:
        first, last = added[0].ranges[0].first, added[-1].ranges[-1].last
        token = f"g:t:0:{first}-{last}" + (f"@{generation}" if generation else "")
        announced = Announcement(first, last, token, "me", generation=generation)
        return await outcome(writer, Write(announced, repeated=replayed))
    return await outcome(writer)


async def test_only_the_first_range_of_a_partition_is_asked_for_before_it_is_written() -> None:
    store = Store()
    writer = await opened(store)
    assert await flush(writer, rows(0, 4), replayed=False) == Flushed()
    assert await flush(writer, rows(5, 9), replayed=False) == Flushed()
    assert store.calls == ["has g:t:0:0-4", "write g:t:0:0-4", "write g:t:0:5-9"]


async def test_a_replayed_range_that_is_there_is_not_written_and_its_refused_rows_fail_again() -> (
    None
):
    store = Store()
    result = await flush(await opened(store), rows(10, 14), replayed=False)
    store.calls.clear()
    again = await flush(await opened(store), rows(10, 14), replayed=True)
    assert store.calls == ["has g:t:0:10-14"]
    assert store.ranges == {"g:t:0:10-14": [10, 11, 12, 14]}
    for each in (result, again):
        assert isinstance(each, Flushed)
        assert [(p.rows.ranges, p.reason) for p in each.refusals] == [
            ((Range("t", 0, 13, 13),), "unlucky")
        ]


async def test_a_replayed_range_that_is_not_there_is_written() -> None:
    store = Store()
    await flush(await opened(store), rows(0, 4), replayed=True)
    assert store.calls == ["has g:t:0:0-4", "write g:t:0:0-4"]


@pytest.mark.parametrize("fault", [OSError("lost"), Retry("lost")])
async def test_a_retry_asks_for_what_it_may_have_written_and_leaves_out_what_it_has(
    fault: Exception | Retry,
) -> None:
    store = Store()
    writer = await opened(store, delivery="at-least-once", concurrency=1)
    store.faults = [fault]
    added = (rows(0, 4), rows(0, 4, partition=1))
    if isinstance(fault, Retry):
        assert await flush(writer, *added) == fault
    else:
        with pytest.raises(OSError, match="lost"):
            await flush(writer, *added)
    assert store.ranges.keys() == {"g:t:1:0-4"}, "the other range goes on"
    store.calls.clear()
    assert await outcome(writer) == Flushed()
    assert store.calls == ["has g:t:0:0-4", "write g:t:0:0-4"]
    store.calls.clear()
    assert await flush(writer, rows(5, 9)) == Flushed()
    assert store.calls == ["write g:t:0:5-9"]


async def test_a_range_that_is_there_though_it_was_never_announced_stops_the_worker() -> None:
    store = Store()
    await flush(await opened(store), rows(0, 4), replayed=False)
    with pytest.raises(
        UnexpectedDuplicate,
        match=r"t-0\[0..4\].*kmr offsets reset --group g --topic t --partition 0 --to-offset 5",
    ):
        await flush(await opened(store), rows(0, 4), replayed=False)
    assert isinstance(
        await flush(await opened(store), rows(0, 4), replayed=False, generation=7), Flushed
    )
    assert store.ranges.keys() == {"g:t:0:0-4", "g:t:0:0-4@7"}


async def test_a_partition_whose_first_write_failed_is_not_proven() -> None:
    store = Store()
    writer, lane = await opened(store), StoreWriter(store)
    await lane.open(CONTEXT.with_sinks(opened=writer))
    store.faults = [OSError("lost")]
    with pytest.raises(OSError, match="lost"):
        await flush(writer, rows(0, 4), replayed=False)
    store.calls.clear()
    assert await flush(lane, rows(0, 4), replayed=False) == Flushed()
    assert store.calls == ["has g:t:0:0-4", "write g:t:0:0-4"]


async def test_letters_have_other_names_in_each_process_except_where_spark_repeats_them() -> None:
    for session, names in ((None, 2), (object(), 1)):
        store = Store()
        context = Context("g", ERROR_STAGE).with_sinks(session=session)
        for _ in range(2):
            writer = StoreWriter(store)
            with patch("kmr.delivery.announcement.now_ms", return_value=7 + len(store.ranges)):
                await writer.open(context)
            assert await flush(writer, rows(0, 4)) == Flushed()
        assert len(store.ranges) == names


async def test_copies_in_the_lanes_of_partitions_know_together_which_partitions_are_proven() -> (
    None
):
    store = Store()
    opened_once = await opened(store)
    lane = StoreWriter(store)
    await lane.open(CONTEXT.with_sinks(opened=opened_once))
    await flush(lane, rows(0, 4), replayed=False)
    store.calls.clear()
    await flush(opened_once, rows(5, 9), replayed=False)
    assert store.calls == ["write g:t:0:5-9"]


async def test_arguments_and_the_order_of_calls_are_checked() -> None:
    with pytest.raises(StrategyError, match="StoreWriter: delivery must be"):
        StoreWriter(Store(), delivery="at-most-once")
    with pytest.raises(StrategyError, match="concurrency must be at least 1, not 0"):
        StoreWriter(Store(), concurrency=0)
    with pytest.raises(SinkError, match="StoreWriter is used before it was opened"):
        await StoreWriter(Store()).flush()
    assert StoreWriter(Store()).capabilities.on_spark == (
        "exactly once, by one entry per range of offsets; in the driver, per micro-batch"
    )


ROWS = pa.table({"a": [1]})


def test_names_are_said_once_and_values_counted_each_time() -> None:
    counted: list[tuple[str, str, int]] = []
    leaving_out = LeavingOut("reduce-1", lambda *each: counted.append(each))
    with capture_logs() as logs:
        for _ in range(2):
            leaving_out.of("t", Fitted(ROWS, {}, left_out={"x": 2, "y": 3}, cut={"at": 1}))
        leaving_out.of("t", Fitted(ROWS, {}, left_out={"z": 1}))
    assert [(log["columns"], log["destination"]) for log in logs] == [
        (["x", "y"], "t"),
        (["at"], "t"),
        (["z"], "t"),
    ]
    once = [("reduce-1", "fields", 5), ("reduce-1", "digits", 1)]
    assert counted == [*once, *once, ("reduce-1", "fields", 1)]


def test_nothing_is_said_of_rows_that_lose_nothing() -> None:
    with capture_logs() as logs:
        LeavingOut().of("t", Fitted(ROWS, {}))
    assert logs == []
