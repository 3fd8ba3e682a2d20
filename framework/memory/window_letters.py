"""The rows that a window does not take: which of them are dropped, and which records fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..delivery.failures import original_records
from ..delivery.ranges import ranges_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..record import Rows
    from .window import Window


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
