"""Columns that are made together are those that are made one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.values.decoding.flat_columns import FlatColumns
from kmr.values.decoding.slots import SlotColumn, SlotLayout, Slots

if TYPE_CHECKING:
    from kmr.values.decoding.slots import Kind

KINDS: list[tuple[Kind, Any]] = [
    ("integer", pa.int8()),
    ("integer", pa.int16()),
    ("integer", pa.date32()),
    ("integer", pa.timestamp("us", tz="UTC")),
    ("float", pa.float32()),
    ("double", pa.float64()),
    ("boolean", pa.bool_()),
    ("text", pa.string()),
    ("bytes", pa.binary()),
]
TEXT = "a" * 150 + "äöü€" + "b" * 40
DATA = np.frombuffer(TEXT.encode() + b"\xff" + bytes(64), np.uint8)
SIZES = [0, 1, 5, 31, 32, 33, 100, 150, 152, 159, 190]


def slots_of(kinds: list[tuple[Kind, Any]], rows: list[list[int | None]]) -> Any:
    layout = SlotLayout()
    columns = [layout.add(kind, type_, 0, "") for kind, type_ in kinds]
    slots = Slots(layout, len(rows))
    slots.cursors[0] = len(rows)
    for at, column in enumerate(columns):
        cells = [row[at] for row in rows]
        valid = slots.is_valid(column.first)
        valid[:] = [each is not None for each in cells]
        of_text = column.kind in {"text", "bytes"}
        numbers = [0 if each is None else each for each in cells]
        if column.kind == "boolean":
            numbers = [each & 1 for each in numbers]
        slots.of(column.first)[:] = [SIZES[each % 11] if of_text else each for each in numbers]
    return slots, columns


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    st.lists(st.lists(st.none() | st.integers(0, 120), min_size=12, max_size=12), max_size=20),
)
def test_columns_of_any_types_are_those_made_one_by_one(
    kinds: list[tuple[Kind, Any]], rows: list[list[int | None]]
) -> None:
    slots, columns = slots_of(kinds, rows)
    batch = FlatColumns(columns).batch(slots, np.ones(len(columns), np.bool_), DATA)
    assert batch is not None
    batch.validate(full=True)
    one_by_one = [slots.array(column, DATA, refuse) for column in columns]
    assert batch.columns == one_by_one
    assert [each.null_count for each in batch.columns] == [each.null_count for each in one_by_one]


def refuse(column: SlotColumn, *_: Any) -> None:
    raise AssertionError(column)


def test_a_column_whose_slots_hold_something_else_is_null_and_the_others_are_not() -> None:
    slots, columns = slots_of([KINDS[0], KINDS[7], KINDS[7]], [[1, 2, 2], [None, 3, None]])
    slots.of(columns[1].first)[:] = 2**62
    plain = np.array([True, False, True])
    fields: Any = [("a", pa.int8()), ("b", pa.string()), ("c", pa.string())]
    schema = pa.schema(fields)
    batch = FlatColumns(columns).batch(slots, plain, DATA, schema)
    assert batch is not None
    batch.validate(full=True)
    assert batch.to_pydict() == {"a": [1, None], "b": [None, None], "c": ["aaaaa", None]}


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_text_that_is_not_utf8_is_left_to_others_but_bytes_are_not(kind: Kind) -> None:
    column = ("text", pa.string()) if kind == "text" else ("bytes", pa.binary())
    slots, columns = slots_of([KINDS[0], column], [[1, 1]])  # type: ignore[list-item]
    slots.of(columns[1].first)[:] = len(TEXT.encode()) << 32 | 1
    batch = FlatColumns(columns).batch(slots, np.ones(2, np.bool_), DATA)
    assert (batch is None) == (kind == "text")


def test_texts_of_more_than_2_gib_are_left_to_others() -> None:
    slots, columns = slots_of([KINDS[7]], [[0], [0]])
    slots.of(columns[0].first)[:] = 2**30
    assert FlatColumns(columns).batch(slots, np.ones(1, np.bool_), DATA) is None
