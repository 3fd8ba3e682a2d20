"""Rows as lines of JSON: every type of Arrow, and any bytes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.columns.texts import BASE64, json_columns, json_misfits, json_rows
from kmr.record import SCHEMA


def written(table: pa.Table) -> list[dict[str, Any]]:
    rows = json_rows(table)
    assert not rows.refused
    return [json.loads(line) for line in rows.objects]


def test_a_record_is_readable() -> None:
    record = {
        "key": b"UA",
        "value": b'{"delay": 5}',
        "topic": "flights",
        "partition": 0,
        "offset": 7,
        "timestamp": 1_500_000,
        "timestampType": 0,
        "headers": [{"key": "trace", "value": b"\xff"}],
    }
    (line,) = written(pa.Table.from_pylist([record], schema=SCHEMA))
    assert line == record | {
        "key": "UA",
        "value": '{"delay": 5}',
        "timestamp": "1970-01-01T00:00:01.500000Z",
        "headers": [{"key": "trace", "value": f"{BASE64}/w=="}],
    }


def test_every_common_type_of_arrow_can_be_written() -> None:
    table = pa.table(
        {
            "day": pa.array([1, None], pa.date32()),
            "local": pa.array([0, None], pa.timestamp("s", "Europe/Berlin")),
            "naive": pa.array([0, None], pa.timestamp("ms")),
            "enum": pa.array(["x", None]).dictionary_encode(),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "map": pa.array([[("k", b"v")], None], pa.map_(pa.string(), pa.binary())),
            "struct": pa.array([{"a": b"x"}, None], pa.struct([("a", pa.binary())])),
            "nested": pa.array([[[b"a"], None], None], pa.list_(pa.list_(pa.binary()))),
            "number": [1.5, None],
            "span": pa.array([1500, None], pa.duration("ms")),
            "two words": [True, None],
            "nothing": pa.nulls(2),
        }
    )
    full, empty = written(table)
    assert full == {
        "day": "1970-01-02",
        "local": "1970-01-01T00:00:00Z",
        "naive": "1970-01-01T00:00:00.000",
        "enum": "x",
        "fixed": "ab",
        "map": {"k": "v"},
        "struct": {"a": "x"},
        "nested": [["a"], None],
        "number": 1.5,
        "span": "PT1.500S",
        "two words": True,
        "nothing": None,
    }
    assert set(empty.values()) == {None}
    assert written(table.slice(1)) == [empty]


@given(st.lists(st.none() | st.binary(max_size=6), max_size=8), st.integers(0, 8))
def test_any_bytes_are_written_and_distinguished_from_text(
    values: list[bytes | None], skip: int
) -> None:
    table = pa.table({"value": pa.array(values, pa.binary())}).slice(skip)
    lines = written(table)
    assert len(lines) == max(0, len(values) - skip)
    for line, value in zip(lines, values[skip:], strict=True):
        shown = line["value"]
        if value is None:
            assert shown is None
        elif not shown.startswith(BASE64):
            assert shown.encode() == value
        else:
            assert base64.b64decode(shown.removeprefix(BASE64)) == value


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            pa.array([5, 86_400_000_000, -1, None], pa.int64()).view(pa.time64("us")),
            "it is no time of a day",
        ),
        (
            pa.array(
                [[], [({"a": 1}, 1)], [({"a": 2}, 2)], None],
                pa.map_(pa.struct([pa.field("a", pa.int64())]), pa.int64()),
            ),
            "JSON has no keys that are objects or lists",
        ),
    ],
)
def test_what_json_has_no_text_for_is_refused_and_its_neighbours_are_written(
    values: Any, reason: str
) -> None:
    rows = json_rows(pa.table({"v": values}))
    assert rows.refused == dict.fromkeys((1, 2), f"column v: {reason}")
    assert [bool(each) for each in rows.objects] == [True, False, False, True]


def test_a_byte_that_is_a_boolean_is_written_as_one() -> None:
    storage = pa.array([0, 7, None], pa.int8())
    table = pa.table({"v": pa.ExtensionArray.from_storage(pa.bool8(), storage)})
    assert [line["v"] for line in written(table)] == [False, True, None]


@given(st.lists(st.text(max_size=3), min_size=1, max_size=3, unique=True))
def test_names_of_columns_and_fields_may_be_any_text(names: list[str]) -> None:
    nested = pa.array([dict.fromkeys(names, 1)], pa.struct([(name, pa.int64()) for name in names]))
    table = pa.table([pa.array([1])] * len(names) + [nested], names=[*names, "the nested one"])
    assert written(table) == [dict.fromkeys(names, 1) | {"the nested one": dict.fromkeys(names, 1)}]


def test_a_column_that_is_there_twice_refuses_its_rows() -> None:
    rows = json_rows(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    assert rows.refused == {0: "the rows have a column twice, which no JSON object has"}


def test_a_uuid_is_its_text_as_a_key_too() -> None:
    raw = bytes(range(16))
    maps = pa.array([[(raw, 1)]], pa.map_(pa.binary(16), pa.int8())).cast(
        pa.map_(pa.uuid(), pa.int8())
    )
    assert written(pa.table({"m": maps})) == [{"m": {"00010203-0405-0607-0809-0a0b0c0d0e0f": 1}}]


def not_utf8() -> pa.Array[Any]:
    raw = pa.array([b"a", b"\xff", None, b"b"], pa.binary())
    return pa.Array.from_buffers(pa.string(), 4, raw.buffers())


NESTED = [[1.0], [float("inf")], None, []]


@pytest.mark.parametrize(
    "columns",
    [
        {"n": pa.array([1, None, 3, 4]), "ok": pa.array([True, None, False, True])},
        {"x": pa.array([1.5, None, float("nan"), float("-inf")]), "y": pa.array([0.5] * 4)},
        {"text": not_utf8(), "n": pa.array([1, 2, 3, 4])},
        {"text": not_utf8().slice(0, 1).take(pa.array([0] * 4)), "list": pa.array(NESTED)},
        {"x": pa.array([float("nan")] * 4), "text": not_utf8()},
        {"day": pa.array([1, 2, 3, None], pa.date32()), "raw": pa.array([b"\xff"] * 4)},
    ],
)
def test_rows_that_json_cannot_hold_are_found_without_their_values(
    columns: dict[str, pa.Array[Any]],
) -> None:
    table = pa.table(columns)
    for some in (table, table.slice(1, 2), table.slice(4)):
        assert json_misfits(some) == json_columns(some).bad
