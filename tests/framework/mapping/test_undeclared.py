"""Columns of rows without declared types: each value as it is alone, where the sink's type is known."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from kmr.mapping.results import from_rows


def made(
    values: list[Any], sink_type: pa.DataType | None = None
) -> tuple[dict[int, Any], dict[int, str]]:
    """The values that arrive and the reasons of the others, by row."""
    types = {} if sink_type is None else {"v": sink_type}
    rows = [{"v": each} for each in values]
    mapped = from_rows(None, rows, range(len(rows)), [], types)
    found = [] if mapped.table is None else mapped.table.column("v").to_pylist()
    failed = {failure.offset: failure.reason for failure in mapped.failures}
    return dict(zip(mapped.offsets.tolist(), found, strict=True)), failed


@pytest.mark.parametrize(
    ("kind", "values", "arrive"),
    [
        (pa.bool_(), [True, "yes", "no", "maybe"], {0: True}),
        (pa.int64(), [5, "x", "y", None, "7", 1.0, 1.5], {0: 5, 3: None, 4: 7, 5: 1}),
        (pa.int64(), [2**63 - 1, 1.5, 2.5], {0: 2**63 - 1}),
        (pa.float64(), [0.5, "0.25", "x", [1], 3], {0: 0.5, 1: 0.25, 4: 3.0}),
        (pa.decimal128(5, 2), [1, "1.25", "1.255", Decimal("1.5")], {0: 1, 1: 1.25, 3: 1.5}),
        (pa.string(), ["a", 5, 6, 1.5, True], {0: "a", 1: "5", 2: "6", 3: "1.5", 4: "true"}),
        (pa.uuid(), [UUID(int=4), "x", str(UUID(int=5)), 7], {0: UUID(int=4), 2: UUID(int=5)}),
    ],
)
def test_values_of_other_classes_do_not_refuse_one_that_fits_the_column_of_the_sink(
    kind: pa.DataType, values: list[Any], arrive: dict[int, Any]
) -> None:
    found, failed = made(values, kind)
    assert found == arrive
    assert sorted(failed) == [row for row in range(len(values)) if row not in arrive]
    for row, reason in failed.items():
        assert repr(values[row]) in reason
        assert reason.startswith("column v: ")


@pytest.mark.parametrize(
    ("kind", "values", "arrive"),
    [
        (pa.timestamp("us"), [5, 6, date(2026, 1, 2), True], [2]),
        (pa.struct([("a", pa.int64())]), [[1], [2], {"a": 1}, "x", "y"], [2]),
        (pa.list_(pa.int64()), [[1], {"a": 1}, {"a": 2}], [0]),
        (pa.timestamp("us"), [5, 6, [1]], [0, 1]),
        (pa.list_(pa.string()), [[{"a": 1}], [{"a": 2}], ["x"]], [0, 1]),
    ],
)
def test_values_of_which_the_column_of_the_sink_holds_none_refuse_no_others(
    kind: pa.DataType, values: list[Any], arrive: list[int]
) -> None:
    found, failed = made(values, kind)
    assert list(found) == arrive
    assert all(repr(values[row]) in reason for row, reason in failed.items())


def test_without_a_sink_type_most_values_decide() -> None:
    found, failed = made([5, "x", "y"])
    assert found == {1: "x", 2: "y"}
    assert failed == {0: "column v: 5 is int64, but most values are string"}


class _Lazy:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise LookupError("no connection")


class _Proxy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} outside of a request")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (10**5000, "the number 0x"),
        (_Lazy(), "LookupError: no connection"),
        ([{"x": _Lazy()}], "LookupError: no connection"),
        (_Proxy(), "no type of a column holds"),
        (np.zeros((2, 2)), "no type of a column holds array([[0., 0.], [0., 0.]])"),
    ],
    ids=["a long number", "a lazy object", "a lazy object inside", "a proxy", "two dimensions"],
)
def test_a_value_that_cannot_be_read_or_shown_fails_alone(value: Any, reason: str) -> None:
    found, failed = made([[{"x": "a"}], value, [{"x": "b"}]])
    assert sorted(found) == [0, 2]
    assert "\n" not in failed[1]
    assert reason in failed[1]


def test_a_value_that_is_nested_too_deep_for_casts_fails_alone() -> None:
    deep: dict[str, Any] = {"x": 1}
    for _ in range(200):
        deep = {"x": deep}
    found, failed = made([{"x": {"x": None}}, deep, {"x": None}])
    assert sorted(found) == [0, 2]
    assert "nested more than 100 levels deep" in failed[1]


def test_a_list_whose_length_raises_is_stored_and_does_not_end_the_process() -> None:
    class Lazy(list[int]):
        def __len__(self) -> int:
            raise RuntimeError("closed")

    assert made([Lazy([1, 2]), [3], None]) == ({0: [1, 2], 1: [3], 2: None}, {})
