"""The open sessions of one partition: rows of a group that follow each other within a gap.

The rows that are in time are kept until their session closes, because a row may join two sessions. Whether a
row is late follows from event times alone, and not from what is open: it is late if its time is below the
level. So no row that comes after a session has closed could have joined it, and sessions are the same in
whatever parts the log is read.

A session that would last longer than `max` is cut where multiples of `max` are, so that it needs no memory of
where a long one began. Two reasons follow for records that are held though their rows came out:

- until a long session ends, the last two parts that came out show a second reading that it is long;
- the level before the first record that is held is committed: a second reading has the same late rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..columns.column_types import joined_rows
from ..columns.times import shown_time
from ..config.schema import show_count
from .window_aggregates import START, can_join
from .window_rows import warn_of_left_out
from .window_state import SHOWN, WindowState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..delivery.announcement import Closed
    from ..record import TopicPartition
    from .window import Window

    Integers = NDArray[np.int64]

_TIME, _OFFSET, _LEVEL = "kmr time", "kmr offset", "kmr level"
_ROWS: Final = "rows"
_MOST_GROUPS: Final = 2**62
_PER_ROW: Final = 8  # bytes of the number of its part
_FEW: Final = 65_536
"""Up to so many rows are arranged after each batch. More rows are arranged when a quarter of them is new, or
after some seconds."""


@dataclass(frozen=True)
class _Parts:
    """Rows arranged as sessions, or parts of long ones.

    Attributes:
        of_row: the part of each row.
        start: of each part: its first time.
        end: of each part: when the window ends.
        closes: of each part: the level at which it comes out.
        cell: of each part: which multiple of `max` its times follow; -1 of a session that is not cut.
        session: of each part: the number of its session; those of one session are neighbours.
        over: of each part: when its session is over.
    """

    of_row: Integers
    start: Integers
    end: Integers
    closes: Integers
    cell: Integers
    session: Integers
    over: Integers


class SessionState(WindowState):
    """The open sessions of a partition. See `WindowState` for arguments and attributes."""

    def __init__(
        self,
        window: Window,
        partition: TopicPartition | None,
        closed: Closed,
        gap: int,
        longest: int,
    ) -> None:
        self._gap, self._longest = gap, longest
        super().__init__(window, partition, closed)
        self.level = closed.level

    def _begin(self) -> None:
        self._rows: list[pa.Table] = []
        self._none: pa.Table | None = None  # the columns of rows
        self._arranged: _Parts | None = None
        self._bound: int | None = None  # the earliest time at which a session may close
        self._newest = 0
        self._new = 0  # rows that came since the last arrangement

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes + _PER_ROW * part.num_rows for part in self._rows)

    @property
    def first_offset(self) -> int | None:
        return self._rows[0].column(_OFFSET)[0].as_py() if self._rows else None

    @property
    def level_before(self) -> int:
        level: int = self._rows[0].column(_LEVEL)[0].as_py() if self._rows else self.level
        return level

    @property
    def next_end(self) -> int | None:
        return self._bound

    @property
    def idle_end(self) -> int | None:
        """When all sessions are over: the wall clock closes them together, and holds no record after it."""
        return self._newest + self._gap if self._rows else None

    @property
    def last_end(self) -> int:
        return self.idle_end or 0

    def last_end_up_to(self, level: int) -> int:
        return self.last_end if self.last_end <= level else 0

    def largest(self) -> list[str]:
        if not self._rows:
            return []
        parts = self._arrange()
        counts = np.bincount(parts.of_row, minlength=len(parts.start))
        found = []
        for part in np.argsort(-counts, kind="stable")[:SHOWN].tolist():
            row = self._table.slice(int(np.flatnonzero(parts.of_row == part)[0]), 1)
            values = row.select(self._window.by).to_pylist()[0].values()
            group = f" of {', '.join(map(str, values))[:100]}" if self._window.by else ""
            found.append(
                f"{shown_time(parts.start[part])}{group} with {show_count(counts[part], 'row')}"
            )
        return found

    def _is_late(self, times: Integers, reached: Integers) -> NDArray[np.bool_]:
        late: NDArray[np.bool_] = times < reached
        return late

    def _add(
        self,
        table: pa.Table,
        found: NDArray[np.intp],
        times: Integers,
        offsets: Integers,
        reached: Integers,
    ) -> tuple[dict[int, str], Integers]:
        self._none = table.slice(0, 0)
        if not len(found):
            return {}, found
        added = table.take(pa.array(found, pa.int64()))
        for name, values in ((_TIME, times), (_OFFSET, offsets), (_LEVEL, reached)):
            added = added.append_column(name, pa.array(values[found]))
        self._keep([*self._rows, added], len(found))
        first = int(times[found].min())
        soonest = min(first + self._gap, (first // self._longest + 1) * self._longest)
        self._bound = soonest if self._bound is None else min(self._bound, soonest)
        return {}, found

    def _can_add(self, rows: pa.Table) -> bool:
        return can_join(self._rows, rows)

    def _keep(self, rows: list[pa.Table], new: int) -> None:
        self._rows = [part for part in rows if part.num_rows]
        self._arranged = None
        self._new += new
        times = [part.column(_TIME).to_numpy().max() for part in self._rows[-1 if new else 0 :]]
        self._newest = max([self._newest if new else 0, *map(int, times)])

    @property
    def _table(self) -> pa.Table:
        if len(self._rows) > 1:
            self._rows = [joined_rows(self._rows).combine_chunks()]
        return self._rows[0]

    def _groups(self) -> Integers:
        """Return a number for each row, which rows of the same group share."""
        table, none = self._table, np.zeros(self._table.num_rows, np.int64)

        def divide(groups: Integers, name: str) -> Integers:
            column: Any = table.column(name).combine_chunks()
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            codes = column.dictionary_encode(null_encoding="encode")
            most = int(groups.max(initial=0) + 1) * len(codes.dictionary)
            if most > _MOST_GROUPS:
                groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
            numbers: Integers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            return groups * len(codes.dictionary) + numbers

        return reduce(divide, self._window.by, none)

    def _arrange(self) -> _Parts:
        """Arrange the rows as sessions."""
        if self._arranged is not None:
            return self._arranged
        gap, longest = self._gap, self._longest
        times, groups = self._table.column(_TIME).to_numpy(), self._groups()
        order = np.lexsort((times, groups))
        times, groups = times[order], groups[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (groups[1:] != groups[:-1]) | (np.diff(times) >= gap)
        session = np.cumsum(begins) - 1
        first = times[begins]
        over = times[np.append(np.flatnonzero(begins)[1:], len(order)) - 1] + gap
        is_long = over - first > longest
        cell = np.where(is_long[session], times // longest, -1)
        parts = begins.copy()
        parts[1:] |= cell[1:] != cell[:-1]
        last = times[np.append(np.flatnonzero(parts)[1:], len(order)) - 1]
        cell, session = cell[parts], session[parts]
        end = np.where(cell < 0, last + gap, np.minimum(last + gap, (cell + 1) * longest))
        of_row = np.empty(len(order), np.int64)
        of_row[order] = np.cumsum(parts) - 1
        # The first part of a session comes out when it is certain whether the session is long.
        closes = np.where(cell < 0, end, np.maximum(end, first[session] + longest))
        arranged = _Parts(of_row, times[parts], end, closes, cell, session, over[session])
        self._arranged, self._new = arranged, 0
        self._bound = _soonest(arranged, np.ones(len(closes), np.bool_), self.closed_to)
        return arranged

    def can_close(self, to: int) -> bool:
        if to < self.closed_to or self._bound is None or self._bound > to:
            return False
        self._arrange()
        return self._bound <= to

    @property
    def is_due(self) -> bool:
        rows = sum(part.num_rows for part in self._rows)
        return (rows <= _FEW or self._new * 4 >= rows) and self.can_close(self.level)

    def _take(self, to: int, kind: pa.DataType) -> pa.Table:
        if not self._rows:
            return pa.table({}) if self._none is None else self._rows_of(self._none, kind)
        parts = self._arrange()
        closed = self._rows_of(
            self._table, kind, (parts.closes > self.closed_to) & (parts.closes <= to)
        )
        last = np.full(len(parts.start), -1)  # the last part of each session that came out
        np.maximum.at(last, parts.session, np.where(parts.closes <= to, parts.cell, -1))
        stays = (parts.over > to) & ((parts.cell < 0) | (parts.cell >= last[parts.session] - 1))
        self._keep([self._table.filter(pa.array(stays[parts.of_row]))], 0)
        self._bound = _soonest(parts, stays, to)
        return closed

    def _rows_of(
        self, table: pa.Table, kind: pa.DataType, which: NDArray[np.bool_] | None = None
    ) -> pa.Table:
        """Aggregate the rows of some parts: by their starts, then by their first offsets."""
        starts = ends = numbers = np.empty(0, np.int64)
        if which is not None:
            parts = self._arrange()
            offsets = table.column(_OFFSET).to_numpy()
            firsts = offsets[np.unique(parts.of_row, return_index=True)[1]]
            chosen = np.flatnonzero(which)
            chosen = chosen[np.lexsort((firsts[chosen], parts.start[chosen]))]
            starts, ends = parts.start[chosen], parts.end[chosen]
            rank = np.full(len(which), -1)
            rank[chosen] = np.arange(len(chosen))
            numbers = rank[parts.of_row]
            table, numbers = table.filter(pa.array(numbers >= 0)), numbers[numbers >= 0]
        aggregates = self._window.aggregates(starts)
        beyond = aggregates.add(numbers, table.select(self._window.sources))
        if beyond:
            # Which rows are in a session is known only now, and their records are kept no more.
            warn_of_left_out(self._partition, table.column(_OFFSET).to_numpy(), beyond)
            self.left_out += len(beyond)
        closed = aggregates.take(len(starts))
        part = closed.column(START).to_numpy().astype(np.int64)
        return self._window.rows_of(closed, starts[part], ends[part], kind, self._partition)

    def _saved(self) -> dict[str, pa.Table]:
        return {_ROWS: self._table} if self._rows else {}

    def _restore(self, tables: Mapping[str, pa.Table]) -> None:
        self._begin()
        if _ROWS in tables:
            self._keep([tables[_ROWS]], 0)
            self._arrange()


def _soonest(parts: _Parts, among: NDArray[np.bool_], closed_to: int) -> int | None:
    """Return when the next of some parts comes out, or a session is over; None without one."""
    later = parts.closes[among & (parts.closes > closed_to)]
    ends = np.append(later, parts.over[among])
    return int(ends.min()) if len(ends) else None
