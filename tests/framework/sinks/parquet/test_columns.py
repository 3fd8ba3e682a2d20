"""Rows cast to the columns of a destination."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.sinks.parquet.columns import Columns, fit


def test_a_column_keeps_the_type_of_the_first_rows_and_new_ones_follow_it() -> None:
    columns = Columns("/x")
    assert columns.fit(pa.table({"a": [1], "empty": pa.nulls(1)})).table.column_names == ["a"]
    fitted = columns.fit(pa.table({"b": ["new"], "a": ["2"]}))
    assert fitted.table.to_pylist() == [{"a": 2, "b": "new"}]
    assert columns.fit(pa.table({"a": ["x"]})).refused == {0: "column a (int64) cannot hold 'x'"}
    assert columns.schema is not None
    assert [(each.name, str(each.type)) for each in columns.schema] == [
        ("a", "int64"),
        ("b", "string"),
    ]


def test_a_type_that_can_never_fit_is_an_error() -> None:
    schema = pa.schema({"a": pa.int64()})
    with pytest.raises(StrategyError, match=r"column a of /x is int64, but the rows have list"):
        fit(pa.table({"a": [[1]]}), schema, "/x")


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-100, 100).map(float))))
def test_exactly_the_rows_that_do_not_fit_are_refused(values: list[float | None]) -> None:
    table = pa.table({"a": pa.array(values, pa.float64()), "row": pa.array(range(len(values)))})
    fitted = fit(table, pa.schema({"a": pa.int64()}), "/x")
    bad = {row for row, value in enumerate(values) if value is not None and value % 1 != 0}
    assert set(fitted.refused) == bad
    assert fitted.table.column("row").to_pylist() == [
        row for row in range(len(values)) if row not in bad
    ]
    assert all(repr(values[row]) in reason for row, reason in fitted.refused.items())
