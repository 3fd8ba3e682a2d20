"""Decode a batch by a kernel that writes slots: add room where needed, leave out wrong values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from ..registry.framing import NULL, read_only
from ..value_format import Decoded
from .slots import Bad, Layout, SlotColumn, Slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..registry.framing import RawValues

__all__ = ["Kernel", "Target", "decode_slots"]


class Kernel(Protocol):
    """The compiled code, with its program."""

    def run(
        self,
        data: NDArray[np.uint8],
        values: RawValues,
        entries: NDArray[np.int64],
        slots: Slots,
        statuses: NDArray[np.uint8],
        details: NDArray[np.int64],
        row: int,
    ) -> tuple[int, int]:
        """Decode from a row on; return the row where it stopped, and the level that is full (-1: none)."""

    def reason(self, status: int, place: int, found: int) -> str:
        """Return why a row failed."""


class Target(NamedTuple):
    """The columns of a schema."""

    layout: Layout
    columns: Mapping[str, SlotColumn]
    schema: pa.Schema


def decode_slots(
    kernel: Kernel,
    target: Target,
    values: RawValues,
    pool: NDArray[np.uint8],
    entries: NDArray[np.int64],
    failures: dict[int, str],
) -> Decoded:
    """Decode values to columns.

    Text and decimals are checked afterwards, by column. If some are wrong, which is rare, their rows are
    left out and the others decoded again.

    Args:
        pool: bytes after those of the values, which the kernel may refer to.
        entries: what the kernel needs for each value; `NULL`: the row holds nulls.
        failures: those of rows with `NULL`; others are added.
    """
    data = read_only(np.concatenate([values.data, pool])) if len(pool) else values.data
    while True:
        slots = Slots(target.layout, len(entries))
        statuses = np.zeros(len(entries), np.uint8)
        details = np.empty((len(entries), 2), np.int64)
        row, full = 0, 0
        while full >= 0:
            row, full = kernel.run(data, values, entries, slots, statuses, details, row)
            if full >= 0:
                slots.grow(full)
        for failed in np.flatnonzero(statuses).tolist():
            place, found = details[failed].tolist()
            failures[failed] = kernel.reason(int(statuses[failed]), place, found)
        wrong: dict[int, str] = {}
        mark = _marker(slots, wrong)
        arrays = [slots.array(each, data, mark) for each in target.columns.values()]
        if not wrong:
            return Decoded(pa.RecordBatch.from_arrays(arrays, schema=target.schema), failures)
        failures |= wrong
        entries = entries.copy()
        entries[[*wrong]] = NULL


def _marker(slots: Slots, wrong: dict[int, str]) -> Bad:
    def mark(column: SlotColumn, items: NDArray[np.int64], reason: str) -> None:
        for row in slots.rows_of(column, items).tolist():
            wrong.setdefault(row, f"field {column.path}: {reason}")

    return mark
