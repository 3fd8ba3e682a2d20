"""What a partition remembers: which rows pass, and from where it is rebuilt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.mapping.results import MapResult
from kmr.memory.distinct import Distinct
from kmr.memory.distinct_memory import PartitionMemory
from kmr.memory.distinct_model import without_duplicates
from kmr.record import SCHEMA, Batch, TopicPartition
from tests.examples import examples

T0 = TopicPartition("t", 0)
WITHIN = 10
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

Row = tuple[int, int | None, int | None]
"""Offset, key, seconds."""

logs = st.lists(
    st.tuples(st.integers(1, 3), st.none() | st.integers(0, 5), st.none() | st.integers(0, 60)),
    min_size=1,
    max_size=80,
)


def model(rows: list[Row], within: int = WITHIN) -> set[int]:
    """The offsets of the rows that pass."""
    passed: set[int] = set()
    last: dict[int | None, int] = {}
    now = -(10**9)
    for offset, key, seconds in rows:
        now = now if seconds is None else max(now, seconds)
        if key is None or key not in last or now - last[key] >= within:
            passed.add(offset)
        last[key] = now
    return passed


def mapped(rows: list[Row], by_column: bool) -> tuple[Batch, MapResult]:
    times = [None if s is None else BEGIN + timedelta(seconds=s) for _, _, s in rows]
    columns: dict[str, Any] = {name: [None] * len(rows) for name in SCHEMA.names}
    columns |= {
        "topic": ["t"] * len(rows),
        "partition": [0] * len(rows),
        "offset": [offset for offset, _, _ in rows],
        "timestamp": [BEGIN - timedelta(hours=1) if by_column else at for at in times],
        "timestampType": [0] * len(rows),
    }
    batch = Batch.of(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
    table = pa.table(
        {
            "id": pa.array([key for _, key, _ in rows], pa.int64()),
            "ts": pa.array(times, pa.timestamp("ms", tz="UTC")),
        }
    )
    return batch, MapResult(table, batch.offsets())


def remember(
    memory: PartitionMemory, rows: list[Row], cuts: list[int], *, by_column: bool
) -> set[int]:
    passed: set[int] = set()
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(rows)}), len(rows)]
    for first, last in pairwise(bounds):
        if first < last:
            found = memory.note(*mapped(rows[first:last], by_column))
            passed |= set(found.mapped.offsets.tolist())
    return passed


def memory_of(begin: int | None, *, by_column: bool, within: int = WITHIN) -> PartitionMemory:
    distinct = Distinct("id", within, time="ts" if by_column else None)
    return PartitionMemory({"": distinct}, T0, begin)


def rows_of(log: list[tuple[int, int | None, int | None]], by_column: bool) -> list[Row]:
    rows: list[Row] = []
    offset = 0
    for gap, key, seconds in log:
        offset += gap
        rows.append((offset, key, seconds if by_column or seconds is not None else 0))
    return rows


@given(logs, st.lists(st.integers(0, 80)), st.lists(st.integers(0, 80), max_size=6), st.booleans())
@example([(1, 1, 0), (1, 1, 6), (1, 1, 12), (1, 1, 18)], [], [2, 3], True)  # noqa: FBT003
@settings(max_examples=examples(400), deadline=None)
def test_runs_that_begin_anywhere_decide_as_one_run_does(
    log: list[tuple[int, int | None, int | None]],
    cuts: list[int],
    restarts: list[int],
    by_column: bool,
) -> None:
    rows = rows_of(log, by_column)
    expected = model(rows)
    memory = memory_of(rows[0][0], by_column=by_column)
    assert remember(memory, rows, cuts, by_column=by_column) == expected
    for restart in restarts:
        if restart >= len(rows):
            continue
        # The last run was killed after it had committed this offset, however far it had read.
        committed = rows[restart][0]
        before = memory_of(rows[0][0], by_column=by_column)
        remember(before, rows, cuts, by_column=by_column)
        back = before.look_back(committed)
        assert back is not None
        assert back.offset <= committed
        memory = memory_of(back.offset, by_column=by_column)
        again = [row for row in rows if back.offset <= row[0] < committed]
        remember(memory, again, [cut + 1 for cut in cuts], by_column=by_column)
        rest = [row for row in rows if row[0] >= committed]
        passed = remember(memory, rest, [cut + 2 for cut in cuts], by_column=by_column)
        assert passed == {offset for offset in expected if offset >= committed}


@given(logs, st.integers(0, 80))
@settings(max_examples=examples(200), deadline=None)
def test_an_offset_that_windows_hold_back_is_decided_the_same_with_few_marks(
    log: list[tuple[int, int | None, int | None]], restart: int
) -> None:
    rows = rows_of(log, by_column=True)
    committed = rows[restart % len(rows)][0]
    with patch("kmr.memory.distinct_memory._MOST_MARKS", 4):
        before = memory_of(rows[0][0], by_column=True)
        remember(before, rows, list(range(80)), by_column=True)
        back = before.look_back(committed)
    assert back is not None
    memory = memory_of(back.offset, by_column=True)
    remember(memory, [row for row in rows if back.offset <= row[0] < committed], [], by_column=True)
    rest = [row for row in rows if row[0] >= committed]
    expected = {offset for offset in model(rows) if offset >= committed}
    assert remember(memory, rest, [], by_column=True) == expected


def test_a_start_reads_little_more_than_the_time_again() -> None:
    memory = memory_of(0, by_column=True, within=1000)
    rows: list[Row] = [(at, at, at) for at in range(10_000)]
    remember(memory, rows, list(range(0, 10_000, 10)), by_column=True)
    back = memory.look_back(10_000)
    assert back is not None
    assert 10_000 - 1000 * 1.04 < back.offset <= 9000


def test_a_time_far_after_the_timestamp_of_its_record_forgets_nothing() -> None:
    rows: list[Row] = [(0, 1, 0), (1, 2, 3 * 86_400), (2, 1, 1)]
    assert remember(memory_of(None, by_column=True), rows, [], by_column=True) == {0, 1}
    trusting = PartitionMemory({"": Distinct("id", WITHIN, time="ts", ahead=None)}, T0, None)
    assert remember(trusting, rows, [], by_column=True) == {0, 1, 2}


def test_a_record_whose_rows_are_all_duplicates_is_a_dead_letter() -> None:
    distinct = Distinct("id", WITHIN, on_duplicate="dead-letter")
    memory = PartitionMemory({"": distinct}, T0, 0)
    batch, _ = mapped([(0, 0, 0), (1, 0, 0), (2, 0, 0)], by_column=False)
    table = pa.table({"id": [1, 2, 1, 3, 1, 2]})
    found = memory.note(batch, MapResult(table, np.array([0, 0, 1, 1, 2, 2])))
    assert found.mapped.table is not None
    assert found.mapped.table.column("id").to_pylist() == [1, 2, 3]
    assert found.mapped.offsets.tolist() == [0, 0, 1]
    assert [(each.offset, each.reason) for each in found.letters] == [
        (2, "duplicate: one row per id within 10 s")
    ]
    assert (found.passed, found.duplicates) == (3, 3)


def test_the_model_of_storms_agrees_when_a_key_returns_exactly_within_the_time() -> None:
    distinct = Distinct("id", "700ms", time="ts")
    times = [BEGIN + timedelta(milliseconds=ms) for ms in (0, 699, 1399, 2100)]
    table = pa.table({"id": [1] * 4, "ts": pa.array(times, pa.timestamp("ms", "UTC"))})
    batch, _ = mapped([(offset, 1, 0) for offset in range(4)], by_column=True)
    result = MapResult(table, batch.offsets())
    passed = PartitionMemory({"": distinct}, T0, 0).note(batch, result).mapped.offsets.tolist()
    ((_, model_passed),) = without_duplicates({"": distinct}, [(batch, result)])
    assert passed == model_passed.offsets.tolist() == [0, 2, 3]


def test_records_whose_key_or_time_has_a_wrong_type_fail_and_many_end_with_the_reason() -> None:
    memory = PartitionMemory({"": Distinct("key", WITHIN, time="ts")}, T0, 0)

    def note(first: int, key: list[Any], ts: list[Any]) -> tuple[list[int], list[str]]:
        offsets = np.arange(first, first + len(key))
        columns: dict[str, Any] = {name: [None] * len(key) for name in SCHEMA.names}
        columns |= {"topic": ["t"] * len(key), "partition": [0] * len(key), "offset": offsets}
        columns |= {"timestamp": [BEGIN] * len(key), "timestampType": [0] * len(key)}
        batch = Batch.of(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
        found = memory.note(batch, MapResult(pa.table({"key": key, "ts": ts}), offsets)).mapped
        return found.offsets.tolist(), [failure.reason for failure in found.failures]

    assert note(0, [1, 2], [BEGIN, BEGIN]) == ([0, 1], [])
    passed, reasons = note(2, [1.5], [BEGIN])
    assert passed == []
    assert reasons[0].startswith("Distinct: column 'key' is double, whose values are no key")
    passed, reasons = note(3, [3, 4], ["yesterday", None])
    assert passed == []
    assert ["time='ts' is string" in reason for reason in reasons] == [True, True]
    assert note(5, [1, 5], [BEGIN, BEGIN]) == ([6], [])
    with pytest.raises(StrategyError, match="whose values are no key"):
        note(7, [1.5] * 100, [BEGIN] * 100)
