"""Groups of rows: their order, and sums that are beyond their type."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.reducers.grouping import group, numbers_of_rows, overflows, require_sums

MOST = 2**63 - 1
DIGITS = Decimal(10**38 - 1)


def overflow_of(kind: pa.DataType, *values: Any) -> str:
    table = pa.table({"k": ["a"] * len(values), "v": pa.array(values, kind)})
    return overflows(table, ["k"], "v").get(0, "")


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        (pa.int64(), [MOST, 1], "9223372036854775808"),
        (pa.int64(), [-MOST, -2], "-9223372036854775809"),
        (pa.uint64(), [2**64 - 1, 1], "18446744073709551616"),
        (pa.decimal128(38, 0), [DIGITS, Decimal(1)], "1" + "0" * 38),
        (pa.decimal256(76, 0), [Decimal(10**75) * 9] * 10, "9e+76"),
        (pa.float64(), [1e308, 1e308], "inf"),
    ],
)
def test_a_sum_that_its_type_cannot_hold_is_named(
    kind: pa.DataType, values: list[Any], total: str
) -> None:
    assert overflow_of(kind, *values).startswith(f"the sum of v is {total}, beyond {kind}")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [MOST, -MOST, 5]),
        (pa.int64(), [MOST, None]),
        (pa.int64(), [-(2**62), -(2**62)]),
        (pa.int32(), [2**31 - 1] * 3),
        (pa.uint64(), [2**64 - 1]),
        (pa.decimal128(38, 0), [Decimal(10**38 - 2), Decimal(1)]),
        (pa.float32(), [3e38, 3e38]),
        (pa.float64(), [float("inf"), 1e308]),
        (pa.float64(), [float("nan"), 1e308, 1e308]),
        (pa.bool_(), [True, True]),
        (pa.int64(), [None]),
        (pa.int64(), []),
        (pa.string(), ["a"]),
    ],
)
def test_a_sum_that_its_type_holds_is_not(kind: pa.DataType, values: list[Any]) -> None:
    assert not overflow_of(kind, *values)


rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-MOST - 1, MOST)), max_size=12)


@given(rows)
def test_exactly_the_groups_whose_sum_is_beyond_64_bits_are_found(
    rows: list[tuple[str, int]],
) -> None:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    table = pa.table({"k": pa.array(keys, pa.string()), "v": pa.array(values, pa.int64())})
    order: list[str] = list(map(str, group(table, ["k"], [])["k"].to_pylist()))
    sums = {key: sum(value for name, value in rows if name == key) for key in order}
    found = {order[number] for number in overflows(table, ["k"], "v")}
    assert found == {key for key, total in sums.items() if not -MOST - 1 <= total <= MOST}
    places = [[keys[row] for row in numbers] for numbers in numbers_of_rows(table, ["k"])]
    assert places == [[key] * keys.count(key) for key in order]


def test_what_cannot_fail_its_records_ends_with_the_reason() -> None:
    table = pa.table({"k": [1, 1], "v": [MOST, MOST]})
    with pytest.raises(StrategyError, match="Window: the sum of v is 18446744073709551614"):
        require_sums(table, ["k"], ["v"], "Window")


def test_groups_come_in_the_order_of_their_first_rows_where_that_is_wanted() -> None:
    # pyarrow alone has another order for some of these tables.
    for seed in range(40):
        chance = random.Random(seed)
        sizes = [chance.randint(1, 8) for _ in range(chance.randint(1, 6))]
        parts = [
            {"a": [chance.randint(0, 9) for _ in range(n)], "b": chance.choices("ab", k=n)}
            for n in sizes
        ]
        table = pa.concat_tables([pa.table(part) for part in parts])
        keys = [(row["a"], row["b"]) for row in table.to_pylist()]
        grouped = group(table, ["a", "b"], [([], "count_all")], in_order=True).to_pylist()
        assert [(row["a"], row["b"]) for row in grouped] == list(dict.fromkeys(keys))
