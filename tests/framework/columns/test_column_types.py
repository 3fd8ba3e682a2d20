"""The type of a column for which values of several types arrived."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kmr.columns.column_types import choose_type, join_tables

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
    assert joined.misfits == {0: "column a: 'x' is string, but most values are int64"}


@pytest.mark.parametrize(
    ("arrays", "kind", "refused"),
    [
        ([[1, 2**60 + 1], [0.5, 1.5]], FLOAT, {1: "1152921504606846977"}),
        ([[2**60 + 1, 2**60 + 3], [0.5, 2.0]], INT, {2: "0.5"}),
        ([[[2**60 + 1]], [[0.5], [1.5]]], pa.list_(FLOAT), {0: "[1152921504606846977]"}),
        (
            [[{"n": 2**60 + 1}], [{"n": 0.5}, {"n": 1}]],
            pa.struct([("n", FLOAT)]),
            {0: "1152921504606846977"},
        ),
        ([pa.array([2**64 - 1], pa.uint64()), [-1, 2]], INT, {0: "18446744073709551615"}),
        (
            [pa.array([2**62], pa.timestamp("s")), pa.array([1, 2], pa.timestamp("ns"))],
            pa.timestamp("ns"),
            {0: "+146138514283"},
        ),
    ],
)
def test_a_value_that_the_common_type_cannot_hold_is_refused_alone(
    arrays: list[Any], kind: pa.DataType, refused: dict[int, str]
) -> None:
    joined = join_tables([pa.table({"a": each}) for each in arrays])
    assert joined.table.column("a").type == kind
    assert list(joined.misfits) == list(refused)
    for row, value in refused.items():
        assert joined.misfits[row].startswith("column a")
        assert value in joined.misfits[row]
    kept = [each for row, each in enumerate(joined.table.column("a")) if row not in refused]
    assert all(each.is_valid for each in kept)


def test_points_in_time_of_several_zones_are_one_column() -> None:
    zones = ["+02:00", "Europe/Berlin", "UTC"]
    joined = join_tables(
        [pa.table({"a": pa.array([1], pa.timestamp("us", zone))}) for zone in zones]
    )
    assert joined.misfits == {}
    assert joined.table.column("a").type == pa.timestamp("us", "UTC")
    assert joined.table.column("a").cast(pa.int64()).to_pylist() == [1, 1, 1]
