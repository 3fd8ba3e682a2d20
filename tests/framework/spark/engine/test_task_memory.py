"""What tasks remember from one micro-batch to the next, without Spark: any cut of a log, with repetitions."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from kmr import Aggregate, Batcher, Distinct, Strategy, Window
from kmr.errors import KmrError
from kmr.memory.distinct_model import without_duplicates
from kmr.record import Range, TopicPartition
from kmr.reducers.collect import one_table
from kmr.sinks import RangeWriter
from kmr.spark.engine.placement import examine_strategy
from kmr.spark.engine.report import read_failures, read_reports
from kmr.spark.engine.strategy_source import TaskPlan
from kmr.spark.engine.task import run_task
from kmr.spark.engine.task_memory import memory_files
from kmr.testing import batch_of
from tests.examples import examples
from tests.framework.memory.test_window_functions import Spread
from tests.framework.memory.test_window_properties import (
    BEGIN,
    KINDS,
    LATENESS,
    after,
    encode,
    model_of,
    parse,
    values,
)
from tests.framework.spark.engine.made_tasks import CONTEXT, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmr.mapping.results import MapResult
    from kmr.record import Batch
    from kmr.sinks import RangeRows

P0 = TopicPartition("t", 0)
COLUMNS = {"n": ("*", "count"), "offsets": ("o", "list")}


class Rows(RangeWriter):
    """A table that knows tokens."""

    replaces_by = ("window_start", "g")
    tokens: ClassVar[dict[str, list[dict[str, Any]]]] = {}

    def has(self, rows: RangeRows) -> bool:
        return rows.token in self.tokens

    def write(self, rows: RangeRows) -> None:
        found = one_table(rows.parts).to_pylist()
        assert self.tokens.setdefault(rows.token, found) == found

    @classmethod
    def all(cls) -> list[dict[str, Any]]:
        return [row for found in cls.tokens.values() for row in found]

    @classmethod
    def newest(cls) -> list[dict[str, Any]]:
        """Return the rows that are left where later ones replace those with their key."""
        rows = sorted(cls.all(), key=lambda row: row.get("position", b""))
        if not rows or "position" not in rows[0]:
            return rows
        return list({tuple(row[name] for name in cls.replaces_by): row for row in rows}.values())


def windows(kind: str = "tumbling", columns: Any = COLUMNS, **options: Any) -> Strategy:
    options = dict[str, Any](late="drop", lateness=LATENESS, keyed=True) | KINDS[kind] | options
    window = Window(time="ts", by=["g"], columns=columns, **options)
    return Strategy(map=parse, reduce=[Batcher(max_rows=3), window, Rows()], reduce_err=Rows())


def begin(strategy: Strategy, checkpoint: Path) -> TaskPlan:
    memory_files(strategy, str(checkpoint)).begin()
    return TaskPlan.of(strategy, CONTEXT, checkpoint=f"file:{checkpoint}")


def micro_batch(
    plan: TaskPlan, first: int, log: Sequence[Any], idle: tuple[int, int] = (0, 0)
) -> pa.Table:
    """Run the task of the part of a log from an offset on; batches have three records.

    `idle`: seconds without a record, before and after it.
    """
    batches = [
        batch_of("t", 0, first + at, [encode(value) for value in log[at : at + 3]])
        for at in range(0, len(log), 3)
    ]
    wanted = Range("t", 0, first, first + len(log) - 1)
    before, after = (1_000_000 * seconds for seconds in idle)
    done = run_task(plan, wanted, iter(batches), SCHEMA, (before, after))
    return pa.Table.from_batches(done, SCHEMA)


def error_of(done: pa.Table) -> str:
    (report,) = read_reports(done)
    return "" if report.error is None else report.error[1]


parts = st.lists(
    st.tuples(st.lists(values, min_size=1, max_size=8), st.integers(1, 2)), min_size=1, max_size=6
)


@settings(max_examples=examples(60), deadline=None)
@given(parts, st.sampled_from(list(KINDS)))
def test_any_cut_into_micro_batches_gives_each_row_of_a_window_once_and_complete(
    schedule: list[tuple[list[Any], int]], kind: str
) -> None:
    Rows.tokens.clear()
    log: list[Any] = []
    with TemporaryDirectory() as directory:
        plan = begin(windows(kind), Path(directory))
        for steps, times in schedule:
            part = after(log, steps)
            for _ in range(times):
                assert not error_of(micro_batch(plan, len(log), part))
            log += part
        files = [path.name for path in Path(directory).rglob("*.arrow")]
    assert len(files) == 2, "older ones are removed"
    found = Counter(
        (
            *(round((row[f"window_{of}"] - BEGIN).total_seconds()) for of in ("start", "end")),
            row["g"],
            row["n"],
            tuple(row["offsets"]),
        )
        for row in Rows.newest()
    )
    assert found == model_of(kind, log)


AGGREGATES = {
    "n": ("*", "count"),
    "spread": ("o", Spread()),
    **{
        f: ("o", f)
        for f in ("p50", "p99", "sum", "min", "max", "mean", "count_distinct", "first", "last")
    },
}


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_every_function_goes_on_in_the_next_micro_batch(tmp_path: Path, cut: int) -> None:
    log = [(second, "ab"[second % 2]) for second in (0, 1, 3, 2, 8, 7, 5, 20, 21, 40)]
    results = []
    for size in (len(log), cut):
        Rows.tokens.clear()
        plan = begin(windows(columns=AGGREGATES), tmp_path / str(size))
        for first in range(0, len(log), size):
            assert not error_of(micro_batch(plan, first, log[first : first + size]))
        results.append(Rows.all())
    assert len(results[0]) == 4
    assert results[0] == results[1]


def distinct(within: int = 10) -> Strategy:
    rule = Distinct("g", within=within, time="ts", on_duplicate="dead-letter")
    return Strategy(map=parse, reduce=[rule, Rows()], reduce_err=Rows())


@settings(max_examples=examples(40), deadline=None)
@given(parts)
def test_any_cut_into_micro_batches_drops_the_same_duplicates(
    schedule: list[tuple[list[Any], int]],
) -> None:
    Rows.tokens.clear()
    log: list[Any] = []
    letters = set()
    with TemporaryDirectory() as directory:
        plan = begin(distinct(), Path(directory))
        for part, times in schedule:
            for _ in range(times):
                done = micro_batch(plan, len(log), part)
                assert not error_of(done)
            letters |= {o for r in read_failures(done, "distinct") for o in offsets_of(r.table)}
            log += part
    mapped = mapped_of(log)
    passing = list(without_duplicates({"": Rows_rule}, mapped))
    kept = [o for _, result in passing if result.table is not None for o in result.offsets.tolist()]
    made = {o for _, result in mapped if result.table is not None for o in result.offsets.tolist()}
    assert sorted(row["o"] for row in Rows.all()) == kept
    assert letters == made - set(kept)


Rows_rule = distinct().distincts[""]


def offsets_of(table: pa.Table) -> list[int]:
    found: list[Any] = table.column("offset").to_pylist()
    return found


def mapped_of(log: Sequence[Any]) -> list[tuple[Batch, MapResult]]:
    from kmr.mapping.functions import apply

    strategy = distinct()
    batches = [batch_of("t", 0, at, [encode(value)]) for at, value in enumerate(log)]
    return [(batch, apply(strategy.map, batch.records, strategy.map_spec)) for batch in batches]


def test_late_rows_are_counted_and_become_letters(tmp_path: Path) -> None:
    plan = begin(windows(late="dead-letter"), tmp_path)
    assert not error_of(micro_batch(plan, 0, [(0, "a"), (30, "a")]))
    done = micro_batch(plan, 2, [(1, "a"), (31, "b")])
    (report,) = read_reports(done)
    assert report.late == {"dropped": 0, "dead-letter": 1}
    (failed,) = read_failures(done, "reduce-2")
    assert failed.table.select(["offset", "reason"]).to_pylist() == [
        {"offset": 2, "reason": "late: the windows of its ts have closed"}
    ]


def test_a_memory_that_is_missing_is_refused(tmp_path: Path) -> None:
    plan = begin(windows(), tmp_path)
    assert not error_of(micro_batch(plan, 0, [(0, "a")]))
    assert "with what was remembered before offset 5" in error_of(micro_batch(plan, 5, [(1, "a")]))
    shutil.rmtree(tmp_path / "kmr-memory")
    assert "this host does not see the directory" in error_of(micro_batch(plan, 1, [(1, "a")]))


@pytest.mark.parametrize(
    "other",
    [windows(columns={"n": ("o", "sum")}), windows("hopping"), distinct()],
)
def test_the_memory_of_another_strategy_is_refused(tmp_path: Path, other: Strategy) -> None:
    assert not error_of(micro_batch(begin(windows(), tmp_path), 0, [(0, "a")]))
    error = error_of(micro_batch(begin(other, tmp_path), 1, [(0, "a")]))
    assert "has the memory of another strategy (Window 10s of ts by g" in error


@pytest.mark.parametrize("strategy", [windows(), distinct()])
def test_a_memory_that_is_too_large_ends_the_query_and_writes_nothing(
    tmp_path: Path, strategy: Strategy
) -> None:
    plan = replace(begin(strategy, tmp_path), memory_bytes=100)
    error = error_of(micro_batch(plan, 0, [(0, f"group{n}") for n in range(50)]))
    assert "t-0: what the strategy remembers takes" in error
    assert "more than the 100B of a task" in error
    (begun,) = tmp_path.rglob("*.arrow")
    assert not begun.read_bytes()


def closed_rows() -> list[tuple[int, int]]:
    rows = sorted(Rows.all(), key=lambda row: row["window_start"])
    return [(round((row["window_start"] - BEGIN).total_seconds()), row["n"]) for row in rows]


@pytest.mark.parametrize("times", [1, 2])
def test_windows_of_an_idle_partition_close_by_the_wall_clock_also_when_that_is_repeated(
    tmp_path: Path, times: int
) -> None:
    Rows.tokens.clear()
    plan = begin(windows(idle=5), tmp_path)
    steps: list[tuple[int, list[Any], tuple[int, int], list[tuple[int, int]]]] = [
        (0, [(1, "a"), (12, "a"), (13, "a")], (0, 0), []),  # the level is 9
        (3, [], (0, 5), [(0, 1)]),  # and 14: the first window ends at 10
        (3, [], (5, 10), [(0, 1)]),
        (3, [], (10, 15), [(0, 1), (10, 2)]),  # 24: the next one at 20
        (3, [], (15, 20), [(0, 1), (10, 2)]),
        (3, [(14, "a"), (21, "a")], (20, 0), [(0, 1), (10, 2)]),  # the first of them is late
        (5, [], (0, 15), [(0, 1), (10, 2), (20, 1)]),
    ]
    late = 0
    for first, log, idle, rows in steps:
        for _ in range(times):
            done = micro_batch(plan, first, log, idle)
            assert not error_of(done)
            assert closed_rows() == rows
        (report,) = read_reports(done)
        late += report.late.get("dropped", 0)
    assert late == 1
    assert len(list(tmp_path.rglob("*.arrow"))) == 2


def test_sessions_of_an_idle_partition_close_together(tmp_path: Path) -> None:
    Rows.tokens.clear()
    plan = begin(windows("sessions", idle=5), tmp_path)
    assert not error_of(micro_batch(plan, 0, [(1, "a"), (3, "b")]))
    assert not error_of(micro_batch(plan, 2, [], (0, 5)))
    assert not closed_rows()
    assert not error_of(micro_batch(plan, 2, [], (5, 10)))
    assert closed_rows() == [(1, 1), (3, 1)]


def test_a_task_that_fails_writes_no_memory(tmp_path: Path) -> None:
    class Full(Rows):
        def write(self, rows: RangeRows) -> None:
            raise KmrError("the table is full")

    window = Window(10, time="ts", by=["g"], columns=COLUMNS, late="drop", keyed=True)
    plan = begin(Strategy(map=parse, reduce=[window, Full()], reduce_err=Rows()), tmp_path)
    assert error_of(micro_batch(plan, 0, [(0, "a"), (30, "a")])) == "the table is full"
    (begun,) = tmp_path.rglob("*.arrow")
    assert not begun.read_bytes()


def test_windows_and_distinct_run_on_spark() -> None:
    assert not [f for f in examine_strategy(windows(idle="30s")) if f.level == "error"]
    assert not [f for f in examine_strategy(windows()) if f.level == "error"]
    assert not [f for f in examine_strategy(distinct()) if f.level == "error"]


def test_an_aggregate_after_distinct_is_merged_by_the_driver(tmp_path: Path) -> None:
    counted = Aggregate(["g"], {"n": ("*", "count")})
    strategy = Strategy(map=parse, reduce=[Distinct("o", within=5), counted, Rows()])
    plan = begin(strategy, tmp_path)
    (report,) = read_reports(micro_batch(plan, 0, [(0, "a"), (1, "b")]))
    assert report.distinct == {"passed": 2, "duplicate": 0, "without_key": 0}
