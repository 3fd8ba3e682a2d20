"""Aggregate: groups, functions, and definitions that are refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.aggregate import Aggregate
from kmr.reducers.sink import RowsRefused


def rows_of(**columns: Any) -> Rows:
    return Rows(pa.table(columns), (Range("t", 0, 0, 9),))


def aggregated(aggregate: Aggregate, *batches: Rows) -> list[dict[str, Any]]:
    for rows in batches:
        aggregate.add(rows)
    return aggregate.flush().to_pylist()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("sum", 9),
        ("count", 3),
        ("min", 2),
        ("max", 5),
        ("mean", 3.0),
        ("count_distinct", 2),
        ("first", 5),
        ("last", 2),
        ("list", [5, 2, None, 2]),
    ],
)
def test_every_function_over_rows_of_several_batches(function: str, expected: object) -> None:
    aggregate = Aggregate(["k"], {"out": ("x", function)})
    rows = aggregated(
        aggregate,
        rows_of(k=["a", "b"], x=[5, 1]),
        rows_of(k=["a", "a", "a"], x=[2, None, 2]),
    )
    assert rows[0] == {"k": "a", "out": expected}
    assert [row["k"] for row in rows] == ["a", "b"]


def test_columns_come_out_by_their_new_names_and_in_order() -> None:
    aggregate = Aggregate(
        ["carrier", "origin"],
        {"flights": ("*", "count"), "delay": ("d", "mean"), "worst": ("d", "max")},
    )
    rows = aggregated(aggregate, rows_of(carrier=["UA", "UA"], origin=["JFK", "JFK"], d=[10, None]))
    assert rows == [{"carrier": "UA", "origin": "JFK", "flights": 2, "delay": 10.0, "worst": 10}]
    assert list(rows[0]) == ["carrier", "origin", "flights", "delay", "worst"]


def test_a_null_key_is_a_group_of_its_own() -> None:
    aggregate = Aggregate(["k"], {"n": ("*", "count")})
    rows = aggregated(aggregate, rows_of(k=["a", None, None]))
    assert rows == [{"k": "a", "n": 1}, {"k": None, "n": 2}]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), min_size=1, max_size=5))
def test_every_row_is_counted_once(batches: list[list[str]]) -> None:
    aggregate = Aggregate(["k"], {"n": ("*", "count")})
    rows = aggregated(aggregate, *(rows_of(k=batch) for batch in batches))
    assert {row["k"]: row["n"] for row in rows} == Counter(k for batch in batches for k in batch)


def test_a_column_that_is_not_there_is_named() -> None:
    aggregate = Aggregate(["k"], {"out": ("delay", "sum")})
    aggregate.add(rows_of(k=["a"] * 100, x=[1] * 100))
    with pytest.raises(StrategyError, match=r"no column 'delay', only \['k', 'x'\]"):
        aggregate.flush()


def test_a_type_that_does_not_go_with_the_function_is_explained() -> None:
    aggregate = Aggregate(["k"], {"out": ("x", "mean")})
    aggregate.add(rows_of(k=["a"] * 100, x=["text"] * 100))
    with pytest.raises(StrategyError, match=r"cannot be computed: .*the rows are k string, x str"):
        aggregate.flush()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [({"k": ["a"], "x": ["text"]}, "cannot be computed"), ({"k": ["a"]}, "have no column 'x'")],
)
def test_a_flush_of_few_rows_that_cannot_be_computed_fails_its_records_not_the_worker(
    rows: dict[str, list[Any]], reason: str
) -> None:
    aggregate = Aggregate(["k"], {"out": ("x", "sum")})
    aggregate.add(rows_of(**rows))
    with pytest.raises(RowsRefused) as caught:
        aggregate.flush()
    assert [reason in refusal.reason for refusal in caught.value.refusals] == [True]


@pytest.mark.parametrize(
    ("by", "columns", "message"),
    [
        (["k"], {"out": ("x", "median")}, "unknown function 'median'; use one of sum, count"),
        (["k"], {"out": ("*", "sum")}, "can only be counted"),
        (["k"], {"k": ("x", "sum")}, r"\['k'\] are in both by and columns"),
        ([], {}, "at least one column"),
        ("k", {}, r"by must be list\[str\], not 'k'"),
        (["k"], {"n": "count"}, "its source and its function: .*, not {'n': 'count'}"),
        (["k"], {"n": "ab"}, "its source and its function"),
        (["k"], {"n": ("x", "sum", "y")}, "its source and its function"),
        (["k"], ["n"], "columns must be dict"),
        (["k"], None, "columns must be dict"),
    ],
)
def test_what_cannot_be_computed_is_refused_at_once(
    by: Any, columns: dict[str, tuple[str, str]], message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        Aggregate(by, columns)


def test_a_record_that_makes_a_sum_be_beyond_its_type_fails_and_the_others_go_on() -> None:
    most = 2**63 - 1
    aggregate = Aggregate(["k"], {"total": ("x", "sum"), "mean": ("x", "mean")})
    for first, keys, values in ((0, ["a", "b"], [most, 1]), (2, ["b", "a"], [2, most])):
        table = pa.table({"k": keys, "x": values})
        ranges = (Range("t", 0, first, first + 1),)
        aggregate.add(Rows(table, ranges, np.arange(first, first + 2)))
    with pytest.raises(RowsRefused) as refused:
        aggregate.flush()
    assert refused.value.out is not None
    assert refused.value.out.to_pylist() == [
        {"k": "a", "total": most, "mean": float(most)},
        {"k": "b", "total": 3, "mean": 1.5},
    ]
    assert [
        list(each.rows.offsets) for each in refused.value.refusals if each.rows.offsets is not None
    ] == [[3]]
    reasons = {each.reason for each in refused.value.refusals}
    assert reasons == {
        f"column x: {most} would make the sum {2 * most}, beyond int64, of k='a'; cast x in the map"
    }


def test_a_mean_whose_sum_would_be_infinite_refuses_the_record() -> None:
    aggregate = Aggregate(["k"], {"mean": ("x", "mean")})
    aggregate.add(
        Rows(pa.table({"k": [1, 1], "x": [1e308, 1e308]}), (Range("t", 0, 0, 1),), np.arange(2))
    )
    with pytest.raises(RowsRefused, match="would make the sum inf, beyond double") as refused:
        aggregate.flush()
    assert refused.value.out is not None
    assert refused.value.out.to_pylist() == [{"k": 1, "mean": 1e308}]


def test_a_mean_of_large_numbers_needs_no_sum_that_fits() -> None:
    most = 2**63 - 1
    aggregate = Aggregate(["k"], {"mean": ("x", "mean")})
    assert aggregated(aggregate, rows_of(k=["a", "a"], x=[most, most])) == [
        {"k": "a", "mean": float(most)}
    ]
