"""Rows that would overflow a sum, compared with sums of Python's numbers."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.reducers.grouping import group
from kmr.reducers.sums import SumLimits, named

MOST = 2**63 - 1
DIGITS = Decimal(10**38 - 1)


def beyond(kind: pa.DataType, *values: Any) -> dict[int, str]:
    table = pa.table({"k": ["a"] * len(values), "v": pa.array(values, kind)})
    return SumLimits(["k"], {"v": "v"}, named).beyond(table, table.schema.empty_table)


@pytest.mark.parametrize(
    ("kind", "values", "value", "total"),
    [
        (pa.int64(), [MOST, 1], "1", "9223372036854775808"),
        (pa.int64(), [-MOST, -2], "-2", "-9223372036854775809"),
        (pa.uint64(), [2**64 - 1, 1], "1", "18446744073709551616"),
        (pa.decimal128(38, 0), [DIGITS, Decimal(1)], "1", "1" + "0" * 38),
        (
            pa.decimal128(38, 2),
            [Decimal("9" * 36 + ".99"), Decimal("0.01")],
            "0.01",
            "1" + "0" * 36 + ".00",
        ),
        (pa.decimal256(76, 0), [Decimal(10**76 - 1), Decimal(1)], "1", "1" + "0" * 76),
        (pa.float64(), [1e308, 1e308], "1e+308", "inf"),
    ],
)
def test_the_row_that_makes_a_sum_be_beyond_its_type_is_named(
    kind: pa.DataType, values: list[Any], value: str, total: str
) -> None:
    assert beyond(kind, *values) == {
        1: f"column v: {value} would make the sum {total}, beyond {kind}, of k='a'; cast v in the map"
    }


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [MOST, -MOST, 5]),
        (pa.int64(), [MOST, None]),
        (pa.int64(), [-(2**62), -(2**62)]),
        (pa.int32(), [2**31 - 1] * 3),
        (pa.uint64(), [2**64 - 1]),
        (pa.decimal128(38, 0), [Decimal(10**38 - 2), Decimal(1)]),
        (pa.decimal256(76, 0), [Decimal(10**76 - 1)]),
        (pa.float32(), [3e38, 3e38]),
        (pa.float64(), [float("inf"), 1e308]),
        (pa.float64(), [float("inf"), 1e308, 1e308]),
        (pa.float64(), [1e308, float("-inf")]),
        (pa.float64(), [float("nan"), 1e308, 1e308]),
        (pa.bool_(), [True, True]),
        (pa.int64(), [None]),
        (pa.int64(), []),
        (pa.null(), [None]),
        (pa.string(), ["a"]),
    ],
)
def test_a_sum_that_its_type_holds_refuses_nothing(kind: pa.DataType, values: list[Any]) -> None:
    assert beyond(kind, *values) == {}


def test_an_infinite_value_of_one_group_hides_no_sum_of_another() -> None:
    table = pa.table({"k": ["a", "b", "b"], "v": [math.inf, 1e308, 1e308]})
    found = SumLimits(["k"], {"v": "v"}, named).beyond(table, table.schema.empty_table)
    assert list(found) == [2]


number = st.one_of(st.integers(-5, 5), st.integers(-MOST - 1, MOST), st.none())
rows = st.lists(st.tuples(st.sampled_from("abc"), number, number), max_size=12)


@given(st.lists(rows, max_size=4))
def test_rows_divided_in_any_way_are_refused_as_they_are_one_by_one(
    parts: list[list[tuple[str, int | None, int | None]]],
) -> None:
    limits = SumLimits(["k"], {"v": "v", "w": "w"}, named)
    added: dict[str, tuple[int | None, int | None]] = {}
    types: dict[str, pa.DataType] = {"k": pa.string(), "v": pa.int64(), "w": pa.int64()}
    schema = pa.schema(list(types.items()))
    kept = schema.empty_table()
    for part in parts:
        wanted = []
        for row, (key, *values) in enumerate(part):
            sums = zip(added.get(key, (None, None)), values, strict=True)
            v, w = (value if total is None else total + (value or 0) for total, value in sums)
            if all(each is None or -MOST - 1 <= each <= MOST for each in (v, w)):
                added[key] = v, w
            else:
                wanted.append(row)
        table = pa.Table.from_pylist(
            [dict(zip("kvw", row, strict=True)) for row in part], schema=schema
        )
        found = limits.beyond(table, partial(pa.concat_tables, [kept]))
        assert sorted(found) == wanted
        accepted = table.filter(
            pa.array([row not in found for row in range(len(part))], pa.bool_())
        )
        sums_of = group(pa.concat_tables([kept, accepted]), ["k"], [("v", "sum"), ("w", "sum")])
        kept = sums_of.rename_columns(["k", "v", "w"])
        assert {key: (v, w) for key, v, w in zip(*kept.to_pydict().values(), strict=True)} == added
