"""Quantiles and functions of one's own: the same results however rows are divided."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr import Window
from kmr.errors import StrategyError
from kmr.memory.window_functions import buckets_of
from kmr.record import Range, Rows
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
        ("v", Broken(), r"Broken\.add failed: ZeroDivisionError: division by zero"),
        ("g", Spread(), r"Spread\.state is list<item: double>, and a value is none"),
    ],
)
def test_what_a_function_cannot_do_is_said(column: str, function: Any, message: str) -> None:
    made = window(n=(column, function))
    state = made.state()
    with pytest.raises(StrategyError, match=message):  # noqa: PT012  either says it
        state.take(rows_of(0, [(1, "a", 1.0)] * 100))
        state.close_all()


def test_a_result_of_another_type_is_said() -> None:
    class Text(Spread):
        result = pa.int64()  # type: ignore[assignment]

        def finish(self, state: list[float]) -> Any:
            return "text"

    state = window(n=("v", Text())).state()
    state.take(rows_of(0, [(1, "a", 1.0)]))
    with pytest.raises(StrategyError, match=r"Text\.result is int64, and a value is none"):
        state.close_all()
