"""Decode a batch by compiled code that writes slots: add room where needed, leave out wrong values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..registry.framing import NULL
from ..value_format import Decoded
from .frame import ValueBatch
from .slots import Bad, SlotColumn, SlotLayout, Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from ...formats.machine_code import Kernel
    from ..registry.framing import RawValues


class CompiledDecoder(NamedTuple):
    """Compiled code with its program; `reason` gets the status, place and number of a row that failed."""

    kernel: Kernel
    program: Any
    scratch: Any
    pool: NDArray[np.uint8]
    reason: Callable[[int, int, int], str]


class SchemaColumns(NamedTuple):
    """The columns of a schema."""

    layout: SlotLayout
    columns: Mapping[str, SlotColumn]
    schema: pa.Schema


def run(code: CompiledDecoder, batch: ValueBatch, slots: Slots) -> None:
    """Write the values of a batch into slots; add room where it is needed."""
    stop = np.zeros(2, np.int64)
    while stop[1] >= 0:
        code.kernel(*batch, *slots.arrays, *code.program, *code.scratch, int(stop[0]), stop)
        if stop[1] >= 0:
            slots.grow(int(stop[1]))


def batch_of(
    data: NDArray[np.uint8], pool: int, offsets: NDArray[np.int64], entries: NDArray[np.int64]
) -> ValueBatch:
    """Return a batch with nothing decoded yet."""
    rows = len(entries)
    return ValueBatch(
        data, pool, offsets, entries, np.zeros(rows, np.uint8), np.empty((rows, 2), np.int64)
    )


def decode_slots(
    code: CompiledDecoder,
    target: SchemaColumns,
    values: RawValues,
    entries: NDArray[np.int64],
    failures: dict[int, str],
) -> Decoded:
    """Decode values to columns.

    Text and decimals are checked afterwards, by column. If some are wrong, which is rare, their rows are
    left out and the others decoded again.

    Args:
        entries: what the code needs for each value; `NULL`: the row holds nulls.
        failures: those of rows with `NULL`; others are added.
    """
    data = np.concatenate([values.data, code.pool]) if len(code.pool) else values.data
    while True:
        slots = Slots(target.layout, len(entries))
        batch = batch_of(data, len(values.data), values.offsets.astype(np.int64), entries)
        run(code, batch, slots)
        for failed in np.flatnonzero(batch.statuses).tolist():
            place, found = batch.details[failed].tolist()
            failures[failed] = code.reason(int(batch.statuses[failed]), place, found)
        wrong: dict[int, str] = {}
        mark = _marker(slots, wrong)
        columns = slots.batch([*target.columns.values()], target.schema, data, mark)
        if not wrong:
            return Decoded(columns, failures)
        failures |= wrong
        entries = entries.copy()
        entries[[*wrong]] = NULL


def _marker(slots: Slots, wrong: dict[int, str]) -> Bad:
    def mark(column: SlotColumn, items: NDArray[np.int64], reason: str) -> None:
        for row in slots.rows_of(column, items).tolist():
            wrong.setdefault(row, f"field {column.path}: {reason}")

    return mark
