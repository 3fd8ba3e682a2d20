"""An aggregate in two halves has the results of the aggregate in one."""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.aggregate import Aggregate
from kmr.reducers.sink import RowsRefused
from kmr.spark.engine.aggregation import FinalAggregate, PartialAggregate

FUNCTIONS = ("sum", "count", "min", "max", "mean", "count_distinct", "first", "last", "list")
EVERYTHING = Aggregate(
    ["k", "j"],
    {
        **{f"x_{name}": ("x", name) for name in FUNCTIONS},
        "rows": ("*", "count"),
        "k2": ("k", "list"),
    },
)


def rows_of(table: pa.Table) -> Rows:
    return Rows(table, (Range("t", 0, 0, 9),))


def flushed(reducer: Any, tables: list[pa.Table]) -> pa.Table:
    for table in tables:
        reducer.add(rows_of(table))
    out: pa.Table = reducer.flush()
    return out


def in_halves(aggregate: Aggregate, chunks: list[pa.Table]) -> pa.Table:
    partials = [flushed(PartialAggregate(aggregate), [chunk]) for chunk in chunks]
    return flushed(FinalAggregate(aggregate), partials)


def table_of(rows: list[tuple[str | None, int, int | None]], kind: pa.DataType) -> pa.Table:
    keys, others, values = zip(*rows, strict=True)
    return pa.table({"k": pa.array(keys, pa.string()), "j": others, "x": pa.array(values, kind)})


chunks = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.integers(0, 1),
            st.one_of(st.none(), st.integers(-5, 5)),
        ),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)  # the first call of Arrow's kernels takes a second on a loaded machine
@given(chunks, st.sampled_from([pa.int32(), pa.int64(), pa.float64()]))
def test_both_halves_have_the_result_of_the_whole(
    rows: list[list[tuple[str | None, int, int | None]]], kind: pa.DataType
) -> None:
    tables = [table_of(chunk, kind) for chunk in rows]
    whole = flushed(copy.deepcopy(EVERYTHING), tables)
    assert in_halves(EVERYTHING, tables).equals(whole)


def test_a_chunk_with_a_column_of_nulls_merges_with_the_others() -> None:
    functions = {name: ("x", name) for name in FUNCTIONS if name not in ("first", "last")}
    aggregate = Aggregate(["k"], functions)
    tables = [pa.table({"k": ["a"], "x": pa.nulls(1)}), pa.table({"k": ["a", "a"], "x": [3, 3]})]
    (row,) = in_halves(aggregate, tables).to_pylist()
    assert row == {
        "k": "a",
        "sum": 6,
        "count": 2,
        "min": 3,
        "max": 3,
        "mean": 3.0,
        "count_distinct": 1,
        "list": [None, 3, 3],
    }


def test_the_mean_of_decimals_is_rounded_as_arrow_rounds_it() -> None:
    aggregate = Aggregate(["k"], {"mean": ("x", "mean")})
    values = [Decimal("1.00"), Decimal("0.01"), Decimal("-2.02"), Decimal("-0.01")]
    keys = ["a", "a", "b", "b"]
    table = pa.table({"k": keys, "x": pa.array(values, pa.decimal128(10, 2))})
    whole = flushed(copy.deepcopy(aggregate), [table]).to_pylist()
    assert in_halves(aggregate, [table.slice(0, 1), table.slice(1)]).to_pylist() == whole


def test_a_missing_column_is_the_error_of_the_worker() -> None:
    half = PartialAggregate(Aggregate(["k"], {"out": ("delay", "sum")}))
    half.add(rows_of(pa.table({"k": ["a"]})))
    with pytest.raises(StrategyError, match=r"no column 'delay', only \['k'\]"):
        half.flush()


def test_large_sums_are_those_of_the_whole_or_are_refused_or_several() -> None:
    most = 2**63 - 1
    large = pa.table({"k": ["a", "a"], "x": [most, most]})
    means = Aggregate(["k"], {"mean": ("x", "mean")})
    assert in_halves(means, [large, large]).to_pylist() == [{"k": "a", "mean": float(most)}]
    sums = Aggregate(["k"], {"total": ("x", "sum")})
    with pytest.raises(RowsRefused):
        in_halves(sums, [large])
    halves = in_halves(sums, [large.slice(0, 1), large.slice(1)]).to_pylist()
    assert halves == [{"k": "a", "total": most}] * 2
