"""The frame with a decoder of lists of bytes, of which 255 is an error."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from kmr.formats.machine_code import INT64S, Int, Kernel, compiled
from kmr.values.decoding.frame import SlotArrays, ValueBatch, frame, load_frame

VALUES = [b"\1\2", b"", b"\3\xff", b"\4\5"]
LISTS, ITEMS = 0, 4  # the first slots


@compiled
def read(batch: ValueBatch, slots: SlotArrays, program: Any, scratch: Any, row: int) -> Int:
    slots.values[slots.bases[0] + row] = slots.cursors[1]
    slots.valid[slots.bases[0] + row] = 1
    for at in range(batch.offsets[row], batch.offsets[row + 1]):
        if batch.data[at] == 255:
            batch.statuses[row] = program[0]
            return np.int64(-1)
        if slots.cursors[1] >= slots.capacities[1]:
            return np.int64(1)
        slots.values[slots.bases[1] + slots.cursors[1]] = batch.data[at]
        slots.valid[slots.bases[1] + slots.cursors[1]] = 1
        slots.cursors[1] += 1
    return np.int64(-1)


run = frame(read)


def prepared(capacity: int) -> tuple[ValueBatch, SlotArrays]:
    """Return the values, of which the second is null, and slots with room for some items."""
    count = len(VALUES)
    batch = ValueBatch(
        data=np.frombuffer(b"".join(VALUES), np.uint8),
        pool=0,
        offsets=np.cumsum([0, *map(len, VALUES)], dtype=np.int64),
        entries=np.array([0, -1, 0, 0], np.int64),
        statuses=np.zeros(count, np.uint8),
        details=np.zeros((count, 2), np.int64),
    )
    slots = SlotArrays(
        columns=np.array([[0, 1], [1, -1]], np.int64),
        bases=np.array([LISTS, ITEMS], np.int64),
        capacities=np.array([count, capacity], np.int64),
        values=np.full(ITEMS + 8, -7, np.int64),
        valid=np.full(ITEMS + 8, 9, np.uint8),
        cursors=np.zeros(2, np.int64),
        saved=np.zeros(2, np.int64),
    )
    return batch, slots


@cache
def kernel() -> Kernel:
    return load_frame(__name__, INT64S, INT64S)


def decode(batch: ValueBatch, slots: SlotArrays, first: int) -> list[int]:
    """Decode from a row on; return where it stopped, and the level that is full."""
    stop = np.zeros(2, np.int64)
    kernel()(*batch, *slots, np.array([3], np.int64), np.zeros(1, np.int64), first, stop)
    found: list[int] = stop.tolist()
    return found


def test_null_and_failed_rows_are_null_and_keep_no_items() -> None:
    batch, slots = prepared(capacity=8)
    assert decode(batch, slots, 0) == [4, -1]
    assert batch.statuses.tolist() == [0, 0, 3, 0]
    assert slots.valid[LISTS:ITEMS].tolist() == [1, 0, 0, 1]
    assert slots.values[LISTS:ITEMS].tolist() == [0, 2, 2, 2]
    assert slots.cursors.tolist() == [4, 4]
    assert slots.values[ITEMS : ITEMS + 4].tolist() == [1, 2, 4, 5]


def test_a_row_without_room_is_read_again_when_there_is_some() -> None:
    batch, slots = prepared(capacity=3)
    assert decode(batch, slots, 0) == [3, 1]
    assert slots.cursors[1] == 2
    slots.capacities[1] = 4
    assert decode(batch, slots, 3) == [4, -1]
    assert slots.values[LISTS:ITEMS].tolist() == [0, 2, 2, 2]
    assert slots.values[ITEMS : ITEMS + 4].tolist() == [1, 2, 4, 5]
