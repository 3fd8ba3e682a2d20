"""Rows before and after windows: those of windows that close, and those that no window takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
import numpy as np
import structlog

from ..delivery.failures import original_records
from ..delivery.ranges import ranges_of
from ..record import Rows
from .window_functions import FAILED, failures_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from ..record import Range, TopicPartition
    from .window import Window

_log = structlog.get_logger(__name__)


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


def of_closed(closed: pa.Table) -> tuple[pa.Table, dict[int, str]]:
    """Return rows of windows as sinks get them, and those for which a function failed, with the reasons."""
    reasons = failures_in(closed)
    if FAILED in closed.column_names:
        closed = closed.drop_columns([FAILED])
    return closed, {row: reason for row, reason in enumerate(reasons) if reason is not None}


def split_late(
    window: Window, rows: Rows, late: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """Divide late rows into those that are dropped, and those whose records go to `reduce_err`, and why."""
    assert rows.offsets is not None  # noqa: S101  windows take no others
    dropped = late
    if window.late == "dead-letter":
        # A record of which other rows are in time gets no letter: its replay would double those.
        dropped = late & np.isin(rows.offsets, rows.offsets[~late])
    return dropped, dict.fromkeys(np.flatnonzero(late & ~dropped).tolist(), window.late_reason)


def letters_of(rows: Rows, refused: Mapping[int, str], stage: str) -> list[Rows]:
    """Return the records of some rows, with the reason of each, as rows for `reduce_err`."""
    if not refused:
        return []
    assert rows.offsets is not None  # noqa: S101  windows take no others
    which = sorted(refused)
    gone = ranges_of(np.unique(rows.offsets[which]), rows.ranges[0])
    reasons = [refused[row] for row in which]
    return original_records(replace(rows.take(which), ranges=gone), reasons, stage, 1)


def warn_of_left_out(
    partition: TopicPartition | None, offsets: NDArray[np.int64], left_out: Mapping[int, str]
) -> None:
    """Log rows that a sum leaves out of a window, though their records do not fail."""
    if left_out:
        row, reason = next(iter(left_out.items()))
        _log.warning(
            "rows left out of windows: a sum would overflow",
            partition=str(partition),
            rows=len(left_out),
            example=int(offsets[row]),
            reason=reason,
        )
