"""The rows that a reducer collects until they are flushed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import anyio
import numpy as np

from ..columns.column_types import join_tables
from ..columns.kinds import mask_of
from ..delivery.ranges import merge_ranges, subtract_ranges
from .sink import Refusal, refusals_among

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..record import Batch, Range, Rows
    from .joined_turn import JoinedTurn
    from .reducer import Reducer

FlushReason = Literal["count", "bytes", "age", "awaited", "replay", "revoke", "shutdown", "trigger"]
"""Why rows are flushed: see `kmr.reducers.flushing`."""


class Buffer:
    """A reducer and the rows that were added to it.

    The rows are kept beside the reducer for two reasons: they say which offsets a flush settles, and
    when a partition is lost, the reducer is reset and the rows of the other partitions are added again.

    Attributes:
        since: when the oldest row was added, less the time for which its record was left at the broker (event
            loop's clock); None without rows.
        set_aside: rows that the reducer does not get: their types do not fit the others', or they came as
            refused ones.
        turn: the turn that the flush has together with those of other lanes; None: it has its own.
    """

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.held: list[Rows] = []
        self.set_aside: list[Refusal] = []
        self.rows = 0
        self.bytes = 0
        self.since: float | None = None
        self.turn: JoinedTurn | None = None
        self._ranges: tuple[Range, ...] | None = None
        reducer.reset()

    def add(self, rows: Rows) -> tuple[Rows | None, FlushReason | None]:
        """Add as many rows as the limits allow. An empty buffer takes at least one record.

        Returns:
            The rows that did not fit, and the reason to flush; there is always a reason when there is
            a rest.
        """
        room = self._room(rows)
        rest: Rows | None = rows
        if room >= 1 or not self.held:
            head, rest = rows.cut(max(1, room))
            self.add_unlimited(head)
        return rest, self._limit_reached() or ("bytes" if rest is not None else None)

    def has_room(self, rows: Rows) -> bool:
        """Return whether these rows may be added without reaching a limit."""
        reducer = self.reducer
        if reducer.max_rows is not None and self.rows + len(rows) >= reducer.max_rows:
            return False
        return reducer.max_bytes is None or self.bytes + rows.nbytes < reducer.max_bytes

    def add_unlimited(self, rows: Rows) -> None:
        """Add rows to which the limits do not apply: of a replayed range, or `has_room` was asked."""
        if self.since is None:
            gathered = max((batch.gathered for batch in rows.sources), default=0.0)
            self.since = anyio.current_time() - gathered
        self._append(rows)

    def _room(self, rows: Rows) -> int:
        """Return how many of these rows the limits allow."""
        room = len(rows)
        reducer = self.reducer
        if reducer.max_rows is not None:
            room = min(room, reducer.max_rows - self.rows)
        if reducer.max_bytes is not None and room > 0:
            per_row = max(1.0, rows.nbytes / len(rows))
            room = min(room, int((reducer.max_bytes - self.bytes) / per_row))
        return room

    def _limit_reached(self) -> FlushReason | None:
        reducer = self.reducer
        if reducer.max_rows is not None and self.rows >= reducer.max_rows:
            return "count"
        if reducer.max_bytes is not None and self.bytes >= reducer.max_bytes:
            return "bytes"
        return None

    def _append(self, rows: Rows) -> None:
        if rows.refused:
            self.set_aside += refusals_among([rows], rows.refused)
            rows = replace(rows.filter(~mask_of(list(rows.refused), len(rows))), refused={})
        self.held.append(rows)
        self._ranges = None
        self.rows += len(rows)
        self.bytes += rows.nbytes
        if len(rows):  # else all of them were set aside
            self.reducer.add(rows)

    @property
    def deadline(self) -> float:
        """When the oldest row reaches `max_age`; infinite without rows or without `max_age`."""
        if self.since is None or self.reducer.max_age is None:
            return math.inf
        return self.since + self.reducer.max_age

    def drop_stale(self, is_current: Callable[[Iterable[Range]], bool]) -> None:
        """Remove the rows of partitions that are no longer ours."""
        kept = [rows for rows in self.held if is_current(rows.ranges)]
        if len(kept) < len(self.held):
            self.set_aside = [each for each in self.set_aside if is_current(each.rows.ranges)]
            self._hold(kept)

    def remove(self, failed: Sequence[Rows]) -> None:
        """Remove all rows of these records."""
        gone = [r for rows in failed for r in rows.ranges]
        kept = []
        for rows in self.held:
            left = subtract_ranges(rows.ranges, gone)
            if left and rows.offsets is not None and left != rows.ranges:
                inside = np.zeros(len(rows), dtype=np.bool_)
                for r in left:
                    inside |= (rows.offsets >= r.first) & (rows.offsets <= r.last)
                kept.append(replace(rows.filter(inside), ranges=left))
            elif left:
                kept.append(rows)
        self.set_aside = []
        self._hold(kept)

    def set_misfits_aside(self) -> bool:
        """Take the records from the reducer whose types do not fit the others'; False if all fit."""
        kept, misfits = _separate(self.held)
        if misfits:
            self.set_aside += misfits
            self._hold(kept)
        return bool(misfits)

    def _hold(self, kept: list[Rows]) -> None:
        """Hold these rows, and no others, in a reducer that was reset."""
        since, set_aside = self.since, self.set_aside
        self.clear()
        self.since, self.set_aside = since, set_aside
        for rows in kept:
            self._append(rows)

    def clear(self) -> None:
        """Remove all rows."""
        self.reducer.reset()
        self.held, self.rows, self.bytes, self.since = [], 0, 0, None
        self.set_aside, self._ranges = [], None

    def leave_turn(self) -> None:
        """Write the rows alone. Not after they were announced with the turn's token."""
        if self.turn is not None:
            self.turn.leave(self)
            self.turn = None

    def sources(self) -> tuple[Batch, ...]:
        """Return the batches that the rows came from, each once."""
        return tuple({id(batch): batch for rows in self.held for batch in rows.sources}.values())

    def ranges(self) -> tuple[Range, ...]:
        """Return the offsets that are settled when all of the rows are delivered."""
        if self._ranges is None:
            self._ranges = merge_ranges(r for rows in self.held for r in rows.ranges)
        return self._ranges


def _separate(held: Sequence[Rows]) -> tuple[list[Rows], list[Refusal]]:
    """Separate the records with values that fit no common type of their column (`kmr.columns.column_types`).

    Both parts keep the ranges of the whole: those of failed records are subtracted after the flush.
    """
    joined = join_tables([rows.table for rows in held])
    misfits = np.array(sorted(joined.misfits), dtype=np.int64)
    kept, refusals = [], []
    begin = 0
    for rows in held:
        end = begin + len(rows)
        first, last = np.searchsorted(misfits, [begin, end])
        here = rows
        if first < last:
            # Rows that belong to no single record have one type, and fail together.
            fits = np.zeros(len(rows), dtype=np.bool_)
            reason: str | tuple[str, ...] = joined.misfits[int(misfits[first])]
            if rows.offsets is not None:
                of_record = {
                    int(rows.offsets[row - begin]): joined.misfits[row]
                    for row in reversed(misfits[first:last].tolist())
                }
                fits = ~np.isin(rows.offsets, list(of_record))
                reason = tuple(of_record[offset] for offset in rows.offsets[~fits].tolist())
            refusals.append(Refusal(rows.filter(~fits), reason))
            here = replace(rows, table=joined.table.slice(begin, len(rows))).filter(fits)
        kept.append(here)
        begin = end
    return kept, refusals
