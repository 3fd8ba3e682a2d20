"""The open windows of one partition: which rows are late, when windows close, where reading must begin again.

Everything follows from the rows in the order of their offsets, and from the two numbers that are committed
with an offset (`Closed`): the last offset read, and the event time closed up to. So a state that was built by
reading again from the lowest open window is the state that was lost:

- rows of closed windows are recognised by the time of their window alone;
- a row of a window that is still open was not late when it was first read, because windows close in order;
- up to the last offset read, rows of closed windows are in rows that are written, or were late then; above
  it, they are late now.

With `late="reemit"` windows stay for a time after they have closed. A late row then corrects its group, whose
row comes out again. Which groups do follows from their last offsets: those above the last offset read when
rows came out before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..columns.kinds import mask_of
from ..columns.times import shown_time
from ..config.schema import show_count
from ..delivery.announcement import NOTHING_CLOSED
from ..errors import MANY, StrategyError
from .event_time import event_times, require_time
from .window_aggregates import LAST_OFFSET, START
from .window_types import in_types_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ..delivery.announcement import Closed
    from ..record import Rows, TopicPartition
    from .window import Window

_NUMBERS, _FIRSTS, _TIMES, _OF = "state", "open windows", "event times", "aggregates"
_COLUMNS = "columns"
"""The names of the tables of `WindowState.saved`."""

SHOWN: Final = 3
"""Windows that `WindowState.largest` names."""

_PER_WINDOW: Final = 200
"""Bytes of a window beside the aggregates of its groups."""


@dataclass(frozen=True, slots=True)
class RowsOutsideWindows:
    """Rows that are in no window; those that were read before the restart are not named again.

    Attributes:
        late: which rows are late: all of their windows have closed.
        refused: the rows whose records fail, and why: all rows of a record.
        left_out: rows that a sum leaves out of a window, and why. Their records are in other windows or
            groups, and do not fail: a replay of their letters would double those.
    """

    late: NDArray[np.bool_]
    refused: Mapping[int, str]
    left_out: Mapping[int, str]


class WindowState:
    """The open windows of a partition. All times are microseconds since 1970.

    Args:
        window: what is aggregated.
        closed: what the committed offset says of closed windows, see `Closed`.

    Attributes:
        closed_to: up to which time windows are closed, in the rows that came out.
        level: the highest event time so far, less the lateness; windows that end up to here can close.
        left_out: the number of rows that sums have left out of sessions that closed.
    """

    def __init__(
        self,
        window: Window,
        partition: TopicPartition | None = None,
        closed: Closed = NOTHING_CLOSED,
    ) -> None:
        self._window = window
        self._partition = partition
        self._read_to = closed.read_to
        self.closed_to = self.level = closed.closed_to
        self.left_out = 0
        self._type: pa.DataType | None = None
        self._schema: pa.Schema | None = None  # the columns that `take` has checked
        self._emitted_to = closed.read_to if closed.emitted_to is None else closed.emitted_to
        self._begin()

    @property
    def emitted_to(self) -> int:
        """The last offset of the rows in what came out, as far as corrections need it."""
        return self._emitted_to

    def _begin(self) -> None:
        self._lasting = self._window.length + self._window.correct
        self._seen = -1  # the last offset
        self._corrected: set[int] = set()  # closed windows with rows that did not come out
        self._aggregates = self._window.aggregates()
        self._firsts: dict[int, int] = {}  # the first offset of each open window, by its start

    @property
    def nbytes(self) -> int:
        """The size of the state."""
        return self._aggregates.nbytes + _PER_WINDOW * len(self._firsts)

    @property
    def first_offset(self) -> int | None:
        """The first offset of the open windows; None if none is open."""
        return min(self._firsts.values(), default=None)

    @property
    def next_end(self) -> int | None:
        """When the next open window ends; None if none is open."""
        return min(self._ends(), default=None)

    def _ends(self) -> Iterator[int]:
        """Yield when open windows close, and until when closed ones stay."""
        for start in self._firsts:
            end = start + self._window.length
            yield end if end > self.closed_to else start + self._lasting

    def last_end_up_to(self, level: int) -> int:
        """Return when the last of the open windows ends that can close at a time."""
        return max((end for end in self._ends() if end <= level), default=0)

    @property
    def idle_end(self) -> int | None:
        """When the wall clock may close windows of a partition without records; None if none is open."""
        return self.next_end

    @property
    def last_end(self) -> int:
        """When the last of the open windows ends; 0 if none is open."""
        return max(self._firsts, default=-self._window.length) + self._window.length

    @property
    def level_before(self) -> int:
        """The level before the first record of the open windows, as far as later readings need it."""
        return 0

    def largest(self) -> list[str]:
        """Return the windows with the most groups, in words."""
        groups = sorted(self._aggregates.groups().items(), key=lambda each: -each[1])
        return [f"{shown_time(start)} with {show_count(n, 'group')}" for start, n in groups[:SHOWN]]

    def take(self, rows: Rows) -> RowsOutsideWindows:
        """Add rows to their windows, and move the event time on.

        Raises:
            StrategyError: a column is missing, or cannot be aggregated.
        """
        window, offsets = self._window, rows.offsets
        if offsets is None:
            raise StrategyError(
                "Window: its rows belong to no single record; a reducer before it made them"
            )
        try:
            table = rows.with_coordinates(window.sources)
            window.require(table.column_names)
            times = self._times(rows, table.column(window.time))
            used, refused = self._fitted(table.select(window.sources))
            if pa.types.is_timestamp(kind := table.column(window.time).type):
                self._type = kind
        except StrategyError as error:
            if not 0 < len(offsets) < MANY:
                raise
            refused = dict.fromkeys(range(len(offsets)), str(error))
            return self._outside(offsets, np.zeros(len(offsets), np.bool_), refused, {})
        refused |= dict.fromkeys(np.flatnonzero(times < 0).tolist(), window.invalid_reason)
        refused = _of_whole_records(refused, offsets)
        fails = mask_of(list(refused), len(offsets))
        times = np.where(fails, 0, times)
        reached = self._reached(times, offsets)
        late = ~fails & self._is_late(times, reached)
        found = np.flatnonzero(~late & ~fails)
        if window.correct:
            used = used.append_column(LAST_OFFSET, pa.array(offsets))
        beyond, inside = self._add(used, found, times, offsets, reached)
        if len(found):
            self.level = max(self.level, int(times[found].max()) - window.lateness)
        left_out: dict[int, str] = {}
        if beyond:
            kept = set(offsets[inside].tolist())
            left_out = {row: beyond[row] for row in beyond if offsets[row] in kept}
            refused |= {row: beyond[row] for row in beyond if row not in left_out}
        return self._outside(offsets, late, refused, left_out)

    def _outside(
        self,
        offsets: NDArray[np.int64],
        late: NDArray[np.bool_],
        refused: Mapping[int, str],
        left_out: Mapping[int, str],
    ) -> RowsOutsideWindows:
        """Leave out the rows that were read before the restart."""
        is_new = offsets > self._read_to
        refused, left_out = (
            {row: reason for row, reason in each.items() if is_new[row]}
            for each in (refused, left_out)
        )
        return RowsOutsideWindows(late & is_new, refused, left_out)

    def _fitted(self, table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return rows in the types of those that are kept, and the rows that do not fit, with the reasons.

        Raises:
            StrategyError: no row fits, or columns cannot be grouped or aggregated.
        """
        if table.schema == self._schema:
            return table, {}
        self._window.require_types(table.schema)
        if self._schema is None or self.first_offset is None:
            self._schema = table.schema
            return table, {}
        fitted, refused = in_types_of(
            self._schema, table, lambda schema: self._can_add(schema.empty_table())
        )
        if len(refused) == len(fitted) >= MANY:
            raise StrategyError(
                f"Window: {refused[0]}; windows are over before their columns have other types"
            )
        self._schema = fitted.schema
        return fitted, refused

    def _can_add(self, rows: pa.Table) -> bool:
        """Return whether rows of other types can be added; `rows` is an empty table of these types."""
        if self._window.correct:
            rows = rows.append_column(LAST_OFFSET, pa.array([], pa.int64()))
        return self._aggregates.can_add(rows)

    def _is_late(self, times: NDArray[np.int64], reached: NDArray[np.int64]) -> NDArray[np.bool_]:
        # The last window that a row is in has closed, and takes no corrections.
        late: NDArray[np.bool_] = times - times % self._window.every + self._lasting <= reached
        return late

    def _add(
        self,
        table: pa.Table,
        found: NDArray[np.intp],
        times: NDArray[np.int64],
        offsets: NDArray[np.int64],
        reached: NDArray[np.int64],
    ) -> tuple[dict[int, str], NDArray[np.int64]]:
        """Add the rows that were found to their windows.

        Returns:
            The rows that would overflow the sum of a window, and why; and the rows that are in a window.
        """
        window = self._window
        newest = times - times % window.every  # the start of the last window that a row is in
        numbers, starts = found, newest[found]
        if (hops := window.length // window.every) > 1:
            numbers = np.repeat(found, hops)
            starts = newest[numbers] - np.tile(
                np.arange(hops - 1, -1, -1) * window.every, len(found)
            )
            opened = starts + self._lasting > reached[numbers]
            numbers, starts = numbers[opened], starts[opened]
        is_whole = hops == 1 and len(found) == table.num_rows
        refused = self._aggregates.add(
            starts, table if is_whole else table.take(pa.array(numbers, pa.int64()))
        )
        beyond = {int(numbers[at]): reason for at, reason in refused.items()}
        if refused:
            numbers, starts = (np.delete(each, list(refused)) for each in (numbers, starts))
        for start, row in zip(*_first_rows(starts), strict=True):
            self._firsts.setdefault(start, int(offsets[numbers[row]]))
        if window.correct and len(offsets):
            self._seen = int(offsets[-1])
            late = (starts + window.length <= self.closed_to) & (
                offsets[numbers] > self._emitted_to
            )
            self._corrected.update(np.unique(starts[late]).tolist())
        return beyond, numbers

    def saved(self) -> dict[str, pa.Table]:
        """Return the open windows as tables, for `restore`."""
        numbers = {
            "closed_to": self.closed_to,
            "level": self.level,
            "emitted_to": self._emitted_to,
        }
        return {
            _NUMBERS: pa.table({name: pa.array([n], pa.int64()) for name, n in numbers.items()}),
            _TIMES: pa.table({"time": pa.array([], self._type or pa.null())}),
            _COLUMNS: (self._schema or pa.schema([])).empty_table(),
            **self._saved(),
        }

    def _saved(self) -> dict[str, pa.Table]:
        firsts = {"start": list(self._firsts), "first_offset": list(self._firsts.values())}
        return {
            _FIRSTS: pa.table({name: pa.array(n, pa.int64()) for name, n in firsts.items()}),
            **{f"{_OF} {name}": table for name, table in self._aggregates.saved().items()},
        }

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Go on with the windows that `saved` returned."""
        numbers = tables[_NUMBERS].to_pylist()[0]
        self.closed_to, self.level = numbers["closed_to"], numbers["level"]
        self._emitted_to = numbers["emitted_to"]
        kind = tables[_TIMES].schema.field("time").type
        self._type = None if pa.types.is_null(kind) else kind
        # A file of kmr 0.1 has no columns.
        self._schema = tables[_COLUMNS].schema if _COLUMNS in tables else None
        if self._type is not None:
            self._restore(tables)

    def _restore(self, tables: Mapping[str, pa.Table]) -> None:
        firsts = tables[_FIRSTS]
        self._firsts = dict(
            zip(*(firsts.column(name).to_pylist() for name in firsts.column_names), strict=True)
        )
        of = {k.removeprefix(f"{_OF} "): t for k, t in tables.items() if k.startswith(_OF)}
        self._aggregates.restore(of)

    def _times(self, rows: Rows, column: pa.ChunkedArray[Any]) -> NDArray[np.int64]:
        """Return the times; those that are not valid are below 0."""
        window = self._window
        require_time("Window", window.time, column.type)
        return event_times(column, rows.sources, rows.record_times, window.ahead)

    def _reached(self, times: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each row up to which time windows were closed before its record."""
        levels = np.maximum.accumulate(
            np.concatenate([[self.level], times - self._window.lateness])
        )
        if len(offsets) == 0 or (offsets[1:] > offsets[:-1]).all():
            return levels[:-1]
        return levels[np.searchsorted(offsets, offsets, side="left")]

    def can_close(self, to: int) -> bool:
        """Return whether an open window ends up to a time, or a closed one has late rows."""
        return bool(self._corrected) or self._can_end(to)

    def _can_end(self, to: int) -> bool:
        end = self.next_end
        return end is not None and end <= to

    @property
    def is_due(self) -> bool:
        """Whether windows should close now: a worker asks after each batch, and `can_close` now and then."""
        return self._can_end(self.level)

    def close(self, to: int) -> pa.Table:
        """Close the windows that end up to a time, and return their rows."""
        to = max(to, self.closed_to)
        closed = pa.table({}) if self._type is None else self._take(to, self._type)
        self.closed_to = to
        self.level = max(self.level, to)
        return closed

    def _take(self, to: int, kind: pa.DataType) -> pa.Table:
        length, before = self._window.length, to - self._lasting + 1
        if self._window.correct:
            closed = self._corrections(to)
            self._aggregates.take(before)
        else:
            closed = self._aggregates.take(before)
        self._firsts = {start: first for start, first in self._firsts.items() if start >= before}
        starts = closed.column(START).to_numpy().astype(np.int64)
        return self._window.rows_of(closed, starts, starts + length, kind, self._partition)

    def _corrections(self, to: int) -> pa.Table:
        """Return the rows of windows that close, and of groups with late rows."""
        length = self._window.length
        ends = {start for start in self._firsts if self.closed_to < start + length <= to}
        rows = self._aggregates.rows(ends | self._corrected)
        closes = rows.column(START).to_numpy() + length > self.closed_to
        last = rows.column(LAST_OFFSET).to_numpy()
        rows = rows.filter(pa.array(closes | (last > self._emitted_to)))
        self._corrected, self._emitted_to = set(), max(self._seen, self._emitted_to)
        return rows

    def close_all(self) -> pa.Table:
        """Close every window, and return the rows."""
        return self.close(max(self.level, self.last_end))


def _of_whole_records(refused: Mapping[int, str], offsets: NDArray[np.int64]) -> dict[int, str]:
    """Return all rows of the records of some rows, with the reason of the first one of each."""
    reasons: dict[int, str] = {}
    for row in sorted(refused):
        reasons.setdefault(int(offsets[row]), refused[row])
    rows = np.flatnonzero(np.isin(offsets, list(reasons))) if reasons else offsets[:0]
    return {row: reasons[int(offsets[row])] for row in rows.tolist()}


def _first_rows(starts: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return the distinct starts, and the first row of each."""
    begins = np.flatnonzero(np.append(True, starts[1:] != starts[:-1])[: len(starts)])
    found, first = np.unique(starts[begins], return_index=True)
    return found.tolist(), begins[first].tolist()
