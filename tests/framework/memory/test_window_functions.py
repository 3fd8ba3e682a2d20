"""Quantiles and functions of one's own: the same results however rows are divided."""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr import Json, Strategy, Window
from kmr.errors import StrategyError
from kmr.memory.window_functions import buckets_of
from kmr.memory.window_rows import of_closed
from kmr.record import Range, Rows
from kmr.sinks import StreamWriter
from kmr.testing import run_strategy
from tests.examples import examples

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Spread(Window.Function):
    """The largest value less the smallest one."""

    state = pa.list_(pa.float64())
    result = pa.float64()

    def init(self) -> list[float]:
        return []

    def add(self, state: list[float], values: pa.Array[Any]) -> list[float]:
        found: Any = pc.min_max(values)
        if values.null_count == len(values):
            return state
        return self.merge(state, [found["min"].as_py(), found["max"].as_py()])

    def merge(self, state: list[float], other: list[float]) -> list[float]:
        both = [*state, *other]
        return [min(both), max(both)] if both else []

    def finish(self, state: list[float]) -> float | None:
        return state[1] - state[0] if state else None


class Broken(Spread):
    def add(self, state: list[float], values: pa.Array[Any]) -> list[float]:
        return [len(values) / 0]


def rows_of(offset: int, values: list[tuple[int, str | None, float | None]]) -> Rows:
    times = [BEGIN + timedelta(seconds=second) for second, _, _ in values]
    table = pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "g": pa.array([group for _, group, _ in values], pa.string()),
            "v": pa.array([value for _, _, value in values], pa.float64()),
        }
    )
    last = offset + len(values) - 1
    return Rows(table, (Range("t", 0, offset, last),), np.arange(offset, last + 1))


def window(**columns: Any) -> Window:
    return Window("10s", time="ts", by=["g"], columns=columns, late="drop", keyed=True)


numbers = st.none() | st.floats(-1e9, 1e9) | st.sampled_from([0.0, 5e-324, 1e300, -1e-300])
logs = st.lists(
    st.tuples(st.integers(0, 15), st.sampled_from(["a", "b", None]), numbers),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(150), deadline=None)
@given(logs, st.lists(st.integers(1, 9), min_size=1), st.sampled_from([0, 50, 90, 99.9]))
def test_a_quantile_is_wrong_by_one_percent_and_a_function_exact_in_any_division(
    log: list[tuple[int, str | None, float | None]], sizes: list[int], percent: float
) -> None:
    columns = {"q": ("v", f"p{percent}"), "spread": ("v", Spread()), "all": ("v", "list")}
    made = window(**columns)
    state, at = made.state(), 0
    while at < len(log):
        part = log[at : at + sizes[at % len(sizes)]]
        # The level would close windows: their rows are only taken at the end.
        state.take(rows_of(at, [(min(second, 9), g, v) for second, g, v in part]))
        state._aggregates._all["spread"]._fold()
        at += len(part)
    closed: list[dict[str, Any]] = state.close_all().to_pylist()
    for row in closed:
        given: list[float] = [v for v in row["all"] if v is not None]
        values = sorted(given)
        if not values:
            assert row["q"] is None
            assert row["spread"] is None
            continue
        exact = values[math.floor(percent / 100 * (len(values) - 1))]
        assert row["q"] == pytest.approx(exact, rel=0.0101, abs=1e-300)
        assert row["spread"] == values[-1] - values[0]


def test_buckets_are_in_the_order_of_the_values() -> None:
    values = [-math.inf, -1e308, -1.0, -5e-324, 0.0, 5e-324, 0.5, 1.0, 1.05, 1e308, math.inf]
    buckets: list[int] = buckets_of(pa.chunked_array([values])).to_numpy().tolist()
    assert buckets == sorted(buckets)
    assert buckets_of(pa.chunked_array([[math.nan, None]], pa.float64())).null_count == 2


@pytest.mark.parametrize(
    ("column", "function", "message"),
    [
        ("g", "p95", "Window: n: there is no p95 of .g., which is string"),
        ("ts", "p95", "there is no p95 of .ts., which is timestamp"),
    ],
)
def test_what_a_function_cannot_do_is_said(column: str, function: Any, message: str) -> None:
    made = window(n=(column, function))
    state = made.state()
    with pytest.raises(StrategyError, match=message):
        state.take(rows_of(0, [(1, "a", 1.0)] * 100))


class Picky(Spread):
    """Fails for values of one group, in one of its methods, and for no other."""

    def __init__(self, method: str) -> None:
        self.method = method

    def _check(self, method: str, numbers: list[Any]) -> None:
        if method == self.method and 13.0 in numbers:
            raise ValueError("unlucky")

    def add(self, state: list[float], values: pa.Array[Any]) -> list[float]:
        self._check("add", values.to_pylist())
        return super().add(state, values)

    def merge(self, state: list[float], other: list[float]) -> list[float]:
        self._check("merge", [*state, *other])
        return super().merge(state, other)

    def finish(self, state: list[float]) -> Any:
        self._check("finish", state)
        if self.method == "exit" and 13.0 in state:
            sys.exit("no")
        return "text" if self.method == "result" and 13.0 in state else super().finish(state)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (
            "add",
            r"Window: Picky\.add failed: ValueError: unlucky \(.*test_window_functions\.py:\d+\)",
        ),
        ("merge", r"Window: Picky\.(add|merge) failed: ValueError: unlucky"),
        ("finish", r"Window: Picky\.finish failed: ValueError: unlucky"),
        ("exit", r"Window: Picky\.finish failed: SystemExit: no"),
        ("result", r"Window: Picky\.result is double, and a value is none"),
    ],
)
@pytest.mark.parametrize("saved", [False, True])
def test_a_group_for_which_a_function_fails_is_refused_and_the_others_come_out(
    method: str, reason: str, *, saved: bool
) -> None:
    made = window(n=("*", "count"), spread=("v", Picky(method)))
    state = made.state()
    for at, value in enumerate((13.0, 20.0)):
        state.take(rows_of(2 * at, [(1, "a", value), (2, "b", value - 10)]))
        state._aggregates._all["spread"]._fold()
    if saved:
        tables, state = state.saved(), made.state()
        state.restore(tables)
    rows, refused = of_closed(state.close_all())
    assert rows.column_names == ["window_start", "window_end", "g", "n", "spread"]
    assert [(row["g"], row["n"], row["spread"]) for row in rows.to_pylist()] == [
        ("a", 2, None),
        ("b", 2, 7.0),
    ]
    assert list(refused) == [0]
    assert re.match(reason, refused[0])


def test_a_function_that_fails_for_all_of_a_hundred_rows_is_wrong() -> None:
    state = window(n=("v", Broken())).state()
    for number in range(99):
        state.take(rows_of(2 * number, [(10 * number + 1, "a", 1.0)]))
        of_closed(state.close(10 * number + 10))
    state.take(rows_of(200, [(1000, "a", 1.0)]))
    with pytest.raises(
        StrategyError, match=r"Broken\.add failed: ZeroDivisionError: .*all of the last 100"
    ):
        state.close_all()


def test_a_row_for_which_a_function_fails_is_a_letter_of_the_row() -> None:
    made = window(spread=("v", Picky("finish")))
    columns: Any = {"ts": pa.timestamp("us", "UTC"), "g": pa.string(), "v": pa.float64()}
    strategy = Strategy(
        value=Json(pa.schema(columns)),
        reduce=[made, StreamWriter("stdout")],
        reduce_err=StreamWriter("stderr"),
    )
    records = [
        {"ts": "2026-01-01T00:00:01Z", "g": group, "v": value}
        for group, value in (("a", 13), ("b", 1), ("b", 3))
    ]
    run = run_strategy(strategy, records)
    assert [(row["g"], row["spread"]) for row in run.rows] == [("b", 2.0)]
    (failure,) = run.failures
    assert json.loads(failure["value"])["g"] == "a"
    assert "Picky.finish failed: ValueError: unlucky" in failure["reason"]
