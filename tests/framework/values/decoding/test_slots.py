"""Slots as Arrow columns; the kernels that write them have tests of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kmr.values.decoding.slots import SlotColumn, SlotLayout, Slots


def test_slots_become_columns_of_every_width() -> None:
    layout = SlotLayout()
    number = layout.add("integer", pa.int8(), 0, "number")
    text = layout.add("text", pa.string(), 0, "text")
    items = layout.add("list", pa.list_(pa.bool_()), 0, "items")
    items.children = [layout.add("boolean", pa.bool_(), layout.child_level(items), "items")]
    slots = Slots(layout, 3)
    data = np.frombuffer(b"hello", np.uint8)
    slots.valid[:] = 1
    slots.cursors[:] = 3, 2
    for column, values in enumerate(([1, -2, 3], [0 << 32 | 2, 4 << 32 | 1, 0], [0, 1, 1], [0, 1])):
        slots.of(column)[:] = values
    slots.valid[slots.bases[0]] = 0
    arrays = [slots.array(column, data, lambda *_: None) for column in (number, text, items)]
    assert [array.to_pylist() for array in arrays] == [
        [None, -2, 3],
        ["he", "o", ""],
        [[False], [], [True]],
    ]
    assert slots.rows_of(items.children[0], np.array([0, 1])).tolist() == [0, 2]


def test_a_level_that_grows_keeps_what_is_written() -> None:
    layout = SlotLayout()
    items = layout.add("list", pa.list_(pa.int64()), 0, "items")
    items.children = [layout.add("integer", pa.int64(), layout.child_level(items), "items")]
    slots = Slots(layout, 1)
    slots.cursors[1] = slots.capacities[1]
    slots.of(1)[:] = np.arange(slots.capacities[1])
    before = slots.of(1).tolist()
    slots.grow(1)
    assert slots.of(1).tolist() == before
    assert slots.capacities[1] == 2 * len(before)


def test_a_level_gets_room_for_what_the_rows_so_far_needed_but_not_for_much_more_at_once() -> None:
    layout = SlotLayout()
    layout.add("list", pa.list_(pa.int64()), 0, "items")
    for read, expected in ((0, 16 * 1024), (199, 1024 * 5 * 9 // 8), (999, 2 * 1024)):
        slots = Slots(layout, 1000)
        slots.cursors[:] = read, 1024
        slots.grow(1)
        assert slots.capacities.tolist() == [1000, expected]


@given(
    st.lists(st.tuples(*[st.none() | st.integers(0, 3)] * 9), max_size=6),
    st.sampled_from(
        [
            ("text", pa.string(), "aä€"),
            ("bytes", pa.binary(), "aä€"),
            ("integer", pa.int16(), ""),
            ("boolean", pa.bool_(), ""),
            ("text", pa.string(), b"\xff".decode("latin1")),
        ]
    ),
)
def test_columns_that_are_made_together_are_those_made_one_by_one(
    rows: list[tuple[int | None, ...]], made_of: tuple[Any, Any, str]
) -> None:
    kind, type_, text = made_of
    encoding = "latin1" if text == "\xff" else "utf-8"
    layout = SlotLayout()
    columns = [layout.add(kind, type_, 0, "") for _ in range(9)]
    slots = Slots(layout, len(rows))
    slots.cursors[0] = len(rows)
    pieces = [0, *(0 << 32 | len(text[:size].encode(encoding)) for size in (1, 2, 3))]
    for at, column in enumerate(columns):
        values = [row[at] for row in rows]
        slots.of(column.first)[:] = [pieces[each or 0] if text else each or 0 for each in values]
        slots.is_valid(column.first)[:] = [each is not None for each in values]
    data = np.frombuffer(text.encode(encoding) + bytes(8), np.uint8)
    wrong: list[tuple[int, list[int]]] = []

    def mark(column: SlotColumn, items: Any, _: str) -> None:
        wrong.append((column.first, items.tolist()))

    schema = pa.schema([(f"c{at}", type_) for at in range(9)])
    together = slots.batch(columns, schema, data, mark)
    found, wrong[:] = list(wrong), []
    one_by_one = [slots.array(each, data, mark) for each in columns]
    assert together == pa.RecordBatch.from_arrays(one_by_one, schema=schema)
    assert found == wrong
