"""Columns of JSON: which types the compiled walk serves, and what it leaves to msgspec."""

from __future__ import annotations

import datetime as dt  # noqa: TC003  resolved by msgspec
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from kmr import Json
from kmr.values.json.json_columns import plan_of, splice, walk

T = TypeVar("T")


class Inner(TypedDict):
    a: int


@dataclass
class Outer:
    inner: Inner
    at: dt.datetime | None = None
    tags: list[str] = field(default_factory=list)
    made: int = field(default_factory=lambda: 7)


class Tagged(msgspec.Struct, tag=True):
    a: int


class Holder(msgspec.Struct, Generic[T]):
    a: T


def test_a_type_with_rules_of_its_own_has_no_plan() -> None:
    assert plan_of(Outer) is not None
    assert plan_of(Tagged) is None
    assert Json(Tagged).decode(pa.array([b'{"type":"Tagged","a":1}'], pa.binary())).failures == {}
    assert Json(Tagged).decode(pa.array([b'{"type":"Other","a":1}'], pa.binary())).failures


def test_nested_objects_and_lists_are_walked_too() -> None:
    plan = plan_of(Outer)
    assert plan is not None
    texts = [
        b'{"inner":{"a":1},"made":1,"tags":["x"]}',
        b'{"inner":{"a":"1"},"made":1}',
        b'{"inner":{},"made":1}',
        b'{"inner":{"a":2},"made":1,"tags":[1]}',
        b'{"inner":{"a":3}}',
    ]
    columns, left = walk(plan, Json(Outer).schema, pa.array(texts, pa.binary()))
    assert left.tolist() == [False, True, True, True, True]
    assert columns[0][0].as_py() == {"a": 1}
    decoded = Json(Outer).decode(pa.array(texts, pa.binary()))
    assert decoded.failures == {
        1: "field inner.a: expected int, got str: '1'",
        2: "field inner.a: missing, and it has no default",
        3: "field tags[0]: expected str, got int: 1",
    }
    rows = decoded.columns.to_pylist()
    assert rows[0] == {"inner": {"a": 1}, "at": None, "tags": ["x"], "made": 1}
    assert rows[4] == {"inner": {"a": 3}, "at": None, "tags": [], "made": 7}


def test_rows_are_replaced_in_a_column_of_any_type() -> None:
    column = pa.array([[1], [2], None])
    assert splice(column, np.array([0, 2]), pa.array([[7, 8], []], column.type)).to_pylist() == [
        *([7, 8], [2], [])
    ]


@pytest.mark.parametrize("rows", [0, 1, 65])
def test_a_slice_of_values_has_its_own_rows(rows: int) -> None:
    texts = [b"x", None, *([b'{"inner":{"a":5},"made":1}'] * rows), b"z"]
    plan = plan_of(Outer)
    assert plan is not None
    columns, left = walk(plan, Json(Outer).schema, pa.array(texts, pa.binary()).slice(1, 1 + rows))
    assert columns[0].to_pylist() == [None, *([{"a": 5}] * rows)]
    assert not left.any()


def test_long_lists_make_room_for_themselves() -> None:
    lists = pa.list_(pa.list_(pa.int64()))
    fields: Any = [("n", pa.int64()), ("a", lists), ("m", pa.map_(pa.string(), pa.int64()))]
    kind = pa.schema(fields)
    rows: list[dict[str, Any]] = [
        {"n": at, "a": [[1] * 900, [], [2] * 700], "m": {f"k{i}": i for i in range(200)}}
        for at in range(9)
    ]
    texts = [msgspec.json.encode(row) for row in rows]
    plan = plan_of(kind)
    assert plan is not None
    columns, left = walk(plan, kind, pa.array(texts, pa.binary()))
    assert not left.any()
    assert [column.to_pylist() for column in columns.columns] == [
        [row["n"] for row in rows],
        [row["a"] for row in rows],
        [list(row["m"].items()) for row in rows],
    ]
