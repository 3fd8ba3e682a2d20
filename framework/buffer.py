"""What one copy of a reducer holds: the rows added since its last flush, and whether they still count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from framework.ranges import merge_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from framework.record import Batch, Range, Rows
    from framework.reducer import FlushReason, Reducer

__all__ = ["Buffer"]


class Buffer:
    """A reducer and the rows that were added to it.

    The rows are kept beside the reducer, because only they say which offsets a flush settles, and
    because a partition that is taken away must be taken out again: the reducer is reset, and what is
    still ours is added anew.
    """

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.held: list[Rows] = []
        self.rows = 0
        self.bytes = 0
        self.since: float | None = None
        reducer.reset()

    def add(self, rows: Rows, *, limited: bool = True) -> Rows | None:
        """Add as many rows as the limits allow; returns the rest, None if all found room.

        An empty buffer takes at least one record, however large.
        """
        rest: Rows | None = None
        if limited:
            limit = self._room(rows)
            if limit < 1 and self.held:
                return rows
            rows, rest = rows.cut(max(1, limit))
        if self.since is None:
            self.since = anyio.current_time()
        self._add(rows)
        return rest

    def _room(self, rows: Rows) -> int:
        """How many of these rows the limits allow."""
        room = len(rows)
        reducer = self.reducer
        if reducer.max_rows is not None:
            room = min(room, reducer.max_rows - self.rows)
        if reducer.max_bytes is not None and room > 0:
            per_row = max(1.0, rows.nbytes / len(rows))
            room = min(room, int((reducer.max_bytes - self.bytes) / per_row))
        return room

    def _add(self, rows: Rows) -> None:
        self.held.append(rows)
        self.rows += len(rows)
        self.bytes += rows.nbytes
        self.reducer.add(rows)

    def full(self) -> FlushReason | None:
        """The limit that is reached, if one is."""
        reducer = self.reducer
        if reducer.max_rows is not None and self.rows >= reducer.max_rows:
            return "count"
        if reducer.max_bytes is not None and self.bytes >= reducer.max_bytes:
            return "bytes"
        return None

    @property
    def deadline(self) -> float:
        """When the oldest row reaches its age; infinite without rows or without `max_age`."""
        if self.since is None or self.reducer.max_age is None:
            return float("inf")
        return self.since + self.reducer.max_age

    def drop_stale(self, is_current: Callable[[Iterable[Range]], bool]) -> list[Rows]:
        """Take out rows of partitions that are no longer ours; returns them."""
        stale = [rows for rows in self.held if not is_current(rows.ranges)]
        if stale:
            kept = [rows for rows in self.held if is_current(rows.ranges)]
            self.reducer.reset()
            self.held, self.rows, self.bytes = [], 0, 0
            for rows in kept:
                self._add(rows)
        return stale

    def clear(self) -> None:
        """Begin anew, empty."""
        self.reducer.reset()
        self.held, self.rows, self.bytes, self.since = [], 0, 0, None

    def sources(self) -> tuple[Batch, ...]:
        """The batches that the rows came from, each once."""
        return tuple({id(batch): batch for rows in self.held for batch in rows.sources}.values())

    def ranges(self) -> tuple[Range, ...]:
        """The offsets that settle when all of the rows are delivered."""
        return merge_ranges(r for rows in self.held for r in rows.ranges)
