"""Rows before and after windows: those of windows that close, and those that no window takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
import numpy as np

from ..delivery.failures import original_records
from ..delivery.ranges import ranges_of
from ..record import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..record import Range
    from .window import Window


@dataclass(frozen=True)
class WindowRows(Rows):
    """Rows of windows that close; without rows a mark, which says how far was read.

    `ranges` are all offsets that were read and are not settled.

    Attributes:
        settles: those of `ranges` below the first record of a window that stays open.
        read_to: the last offset that was read.
        definition: see `Window.definition`.
        level_before: see `Closed.level`, before these rows.
        level: after them.
        emitted_to: see `Closed.emitted_to`, before these rows.
        done: set when the rows are written and settled.
    """

    settles: tuple[Range, ...] = ()
    read_to: int = -1
    definition: str = ""
    level_before: int = 0
    level: int = 0
    emitted_to: int | None = None
    done: anyio.Event = field(default_factory=anyio.Event, compare=False)


def split_late(
    window: Window, rows: Rows, late: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Divide late rows into those that are dropped, and those whose records go to `reduce_err`."""
    assert rows.offsets is not None  # noqa: S101  windows take no others
    dropped = late
    if window.late == "dead-letter":
        # A record of which other rows are in time gets no letter: its replay would double those.
        dropped = late & np.isin(rows.offsets, rows.offsets[~late])
    return dropped, late & ~dropped


def letters_of(rows: Rows, which: NDArray[np.bool_], reason: str, stage: str) -> list[Rows]:
    """Return the records of some rows as rows for `reduce_err`."""
    if not which.any():
        return []
    assert rows.offsets is not None  # noqa: S101  windows take no others
    gone = ranges_of(np.unique(rows.offsets[which]), rows.ranges[0])
    return original_records(replace(rows.filter(which), ranges=gone), reason, stage, 1)
