"""The frame of compiled decoders: value by value into slots, with room that is added where it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...formats.machine_code import BYTES, INT64_TABLE, INT64S, NUMBER, Int, Ints, compiled, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ...formats.machine_code import Kernel

LEVEL, CHILD = 0, 1
"""Columns of the table of slot columns: the level of their rows, and that of their items (-1: no list)."""


class ValueBatch(NamedTuple):
    """The values of a batch.

    Attributes:
        data: the bytes of all values, then those of the pool.
        pool: where in the data the bytes of no value begin.
        offsets: where each value begins in the data, and where the last one ends.
        entries: what the decoder needs for each value; below 0: the row is null.
        statuses: written: why a row failed; 0: it did not.
        details: written for a row that failed: the place, and the number that its reason tells.
    """

    data: Any
    pool: Any
    offsets: Any
    entries: Any
    statuses: Any
    details: Any


class SlotArrays(NamedTuple):
    """Where a decoder writes; see `Slots`.

    Attributes:
        columns: LEVEL and CHILD of each slot column.
        bases: the first slot of each column.
        capacities: the number of rows that fit, for each level.
        values: written: a slot for each row of each column.
        valid: written: whether the slot is not null.
        cursors: the number of rows of each level so far.
        saved: the cursors before the row.
    """

    columns: Any
    bases: Any
    capacities: Any
    values: Any
    valid: Any
    cursors: Any
    saved: Any


BATCH = ValueBatch(BYTES, NUMBER, INT64S, INT64S, BYTES, INT64_TABLE)
SLOTS = SlotArrays(INT64_TABLE, INT64S, INT64S, INT64S, BYTES, INT64S, INT64S)


def frame(read: Callable[..., Int]) -> Callable[..., None]:
    """Return the function that decodes a batch.

    Args:
        read: decodes one row: `read(batch, slots, program, scratch, row)`. It writes the row's status, and
            returns the level whose capacity is used up, or -1.
    """

    def run(
        batch: ValueBatch, slots: SlotArrays, program: Any, scratch: Any, first: int, stop: Ints
    ) -> None:
        """Decode from row `first` on; `stop` gets the row where it stopped, and the level that is full."""
        for row in range(first, len(batch.entries)):
            for level in range(len(slots.cursors)):
                slots.saved[level] = slots.cursors[level]
            slots.cursors[0] = row
            if batch.entries[row] >= 0:
                full = read(batch, slots, program, scratch, row)
                if full >= 0:
                    for level in range(len(slots.cursors)):
                        slots.cursors[level] = slots.saved[level]
                    stop[0] = row
                    stop[1] = full
                    return
            if batch.entries[row] < 0 or batch.statuses[row] != 0:
                for level in range(1, len(slots.cursors)):
                    slots.cursors[level] = slots.saved[level]
                null_row(slots, row)
        slots.cursors[0] = len(batch.entries)
        stop[0] = len(batch.entries)
        stop[1] = -1

    return run


def load_frame(module: str, program: Any, scratch: Any, depends_on: tuple[str, ...] = ()) -> Kernel:
    """Load the frame `run` of a module; program and scratch as parameters."""
    signature = (BATCH, SLOTS, program, scratch, NUMBER, INT64S)
    return load(module, {"run": signature}, depends_on=(__name__, *depends_on))["run"]


@compiled
def read_little(data: NDArray[np.uint8], position: Int, size: int) -> Int:
    """Read a little-endian number; the caller has checked the bounds."""
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[np.uint64(position + i)]) << np.uint64(8 * i)
    return value


@compiled
def null_row(slots: SlotArrays, row: int) -> None:
    """Make all columns of level 0 null in a row; lists begin and end at the number of items so far."""
    for column in range(len(slots.columns)):
        if slots.columns[column, LEVEL] == 0:
            write_null(slots, column)


@compiled
def write_null(slots: SlotArrays, column: Int) -> None:
    """Make a column null in the row of its level that is being read."""
    slot = np.uint64(slots.bases[column] + slots.cursors[slots.columns[column, LEVEL]])
    child = slots.columns[column, CHILD]
    slots.values[slot] = slots.cursors[child] if child >= 0 else 0
    slots.valid[slot] = 0
