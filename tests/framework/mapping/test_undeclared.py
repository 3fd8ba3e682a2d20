"""Columns of rows without declared types: each value as it is alone, where the sink's type is known."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from math import nan
from time import process_time
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from kmr.columns.kinds import JSON_OBJECTS
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
        (pa.uint64(), [2**64 - 1, 5, -1, 2**64], {0: 2**64 - 1, 1: 5}),
        (pa.float64(), [2**64, 2**64 + 1, 1.5], {0: 2.0**64, 2: 1.5}),
        (pa.decimal256(40, 0), [10**39, 5, 10**40], {0: 10**39, 1: 5}),
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


@pytest.mark.parametrize("values", [[10**70], [10**70, 5], [10**70, 5.5], [10**70, "x", True]])
def test_a_number_beyond_64_bits_is_written_to_a_column_of_text(values: list[Any]) -> None:
    found, failed = made(values, pa.string())
    assert (str(int(found[0])), failed) == (str(10**70), {})


def test_numbers_beyond_64_bits_in_lists_and_objects_are_for_the_column_of_the_sink() -> None:
    big = {"a": 2**64 - 1, "b": [2**63, 5]}
    kind = pa.struct([("a", pa.uint64()), ("b", pa.list_(pa.uint64()))])
    assert made([big, {"a": 5, "b": []}], kind) == ({0: big, 1: {"a": 5, "b": []}}, {})


def test_each_object_for_a_column_of_json_is_written_as_it_is_alone() -> None:
    values: list[Any] = [
        {"a": 1},
        {"a": 1.5, "b": None},
        {"a": "x", "c": [1, "y", {}]},
        {},
        [],
        10**70,
        True,
        '{"text": "as it is"}',
        None,
        {"at": date(2026, 1, 2), "cost": Decimal("1.50"), "raw": b"x"},
        {"a": float("nan")},
        {"a": {1, 2}},
    ]
    values.append(values)  # contains itself
    found, failed = made(values, pa.json_())
    assert [found[row] for row in range(9)] == [
        '{"a":1}',
        '{"a":1.5,"b":null}',
        '{"a":"x","c":[1,"y",{}]}',
        "{}",
        "[]",
        str(10**70),
        "true",
        '{"text": "as it is"}',
        None,
    ]
    assert found[9] == '{"at":"2026-01-02","cost":"1.50","raw":"x"}'
    assert found[11] == '{"a":[1,2]}'
    assert sorted(failed) == [10, 12]
    assert failed[10].startswith("column v: ")
    assert "cannot hold {'a': nan}" in failed[10]


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


@pytest.mark.parametrize(
    ("values", "arrive"),
    [
        ([{"a": 1}, {"a": 2, "b": [1]}], [{"a": 1, "b": None}, {"a": 2, "b": [1]}]),
        ([{"a": 1}, {"a": "x"}, None], ['{"a":1}', '{"a":"x"}', None]),
        ([{"a": [1, "x"]}, '{"a": 1}', [1]], ['{"a":[1,"x"]}', '{"a": 1}', "[1]"]),
        ([{"a": date(2026, 1, 2)}, {"a": None}], [{"a": date(2026, 1, 2)}, {"a": None}]),
        ([{"a": {str(n): n}} for n in range(100)], [f'{{"a":{{"{n}":{n}}}}}' for n in range(100)]),
    ],
)
def test_objects_that_are_not_alike_are_texts_for_a_sink_of_json_objects(
    values: list[Any], arrive: list[Any]
) -> None:
    assert made(values, JSON_OBJECTS) == (dict(enumerate(arrive)), {})


def test_an_object_without_a_form_in_json_fails_alone() -> None:
    endless: dict[str, Any] = {"a": 1}
    endless["b"] = [endless]
    for values in ([{"a": "x"}, {"a": 1}, {"a": nan}, endless], [{"a": date.max}, {"a": 1}]):
        found, failed = made(values, JSON_OBJECTS)
        assert list(found) == list(range(len(values) - len(failed)))
        assert all(each.startswith("column v: ") for each in failed.values())


def test_ids_as_keys_of_objects_take_no_column_each() -> None:
    values = [{f"id-{n}": n} for n in range(20_000)]
    begun = process_time()
    found, _ = made(values, JSON_OBJECTS)
    assert process_time() - begun < 5  # a column of structs takes minutes
    assert found[7] == '{"id-7":7}'
