"""The type of a column for which values of several types arrived."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kmr.column_types import choose_type, join_tables
from kmr.errors import StrategyError

INT, FLOAT, TEXT, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ({INT: 1, TEXT: 2}, TEXT),
        ({INT: 2, FLOAT: 1, TEXT: 2}, FLOAT),
        ({INT: 1, BOOL: 1, TEXT: 1}, INT),
        ({TEXT: 1, BOOL: 1}, BOOL),
        ({TEXT: 1, pa.timestamp("us"): 1}, pa.timestamp("us")),
        ({TEXT: 1, pa.list_(INT): 1}, TEXT),
        ({}, pa.null()),
    ],
)
def test_most_values_win_and_equals_have_an_order(
    values: dict[pa.DataType, int], chosen: pa.DataType
) -> None:
    assert choose_type(values).type == chosen
    assert choose_type(dict(reversed(values.items()))) == choose_type(values)


def test_tables_are_joined_and_values_of_another_type_are_null() -> None:
    joined = join_tables(
        [
            pa.table({"a": ["x", None], "b": [1, 2]}),
            pa.table({"a": [1, 2], "b": [0.5, 1.5]}),
            pa.table({"a": [None, None]}),
        ]
    )
    assert joined.table.column("a").to_pylist() == [None, None, 1, 2, None, None]
    assert joined.table.column("b").to_pylist() == [1.0, 2.0, 0.5, 1.5, None, None]
    assert joined.misfits == {0: "column a: string, but most values are int64"}


def test_an_integer_that_no_float_can_hold_is_a_clear_error() -> None:
    tables = [pa.table({"a": [2**60 + 1]}), pa.table({"a": [0.5]})]
    with pytest.raises(StrategyError, match=r"incompatible types .*schema=\.\.\."):
        join_tables(tables)
