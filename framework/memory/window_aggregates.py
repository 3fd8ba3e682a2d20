"""The aggregates of open windows: one row for each window and group, into which new rows are folded.

How rows are divided among batches changes no result: a fold appends new rows, in the order of their offsets,
to the rows of what was folded before, and aggregates both at once, in one thread. So also sums of floats are
added in the order of offsets, whatever was folded when.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns.column_types import joined_rows
from ..columns.kinds import without_rows
from ..columns.times import shown_time
from ..errors import MANY, StrategyError
from ..reducers.aggregate import ALL
from ..reducers.grouping import group
from ..reducers.sums import SumLimits, named
from .window_functions import FAILED, Made, WindowFunction, buckets_of, quantile_of, quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    Function = str | WindowFunction

START: Final = "window_start"
"""The column of the windows' first microsecond, int64."""

LAST_OFFSET: Final = "kmr last offset"
"""The column of the last offset of a group, where late rows correct it."""

_ROW: Final = "kmr row"
"""The column of the number of a group's first row: pyarrow's groups come in any order."""

_FOLD_ROWS: Final = 65_536
"""New rows that wait at least before they are folded: a fold costs as much as the rows folded before."""

_MERGES: Final = {"sum": "sum", "min": "min", "max": "max", "first": "first", "last": "last"}
_BUCKET, _COUNT, _PLACES = "kmr bucket", "kmr count", "kmr places"


class Aggregates:
    """Aggregated rows by window and group.

    Args:
        by: the columns of a group.
        columns: for each new column its source and function, as in `Window`.
        starts: the starts of windows that are given by their numbers; None: they are given by their starts.

    Attributes:
        nbytes: the size of everything that is kept.
    """

    def __init__(
        self,
        by: Sequence[str],
        columns: Mapping[str, tuple[str, Function]],
        starts: NDArray[np.int64] | None = None,
    ) -> None:
        self._keys = [START, *by]
        self._columns = dict(columns)
        # Values that become one number or value: a column for each part of an aggregate.
        self._merged = _Folded(self._keys, {**self._merges(), _ROW: "min"})
        means = {f"{n} sum": source for n, (source, f) in columns.items() if f == "mean"}
        sums = {name: source for name, (source, f) in columns.items() if f == "sum"}
        self._limits = SumLimits(self._keys, sums | means, partial(_named, starts))
        self._rows = 0  # rows added so far
        self._failing: tuple[str, int] | None = None  # the reason of all last rows, and how many
        # Values that are kept: a table for each aggregate, of the distinct ones, of buckets or of all.
        self._tall: dict[str, _Folded] = {}
        for name, (source, function) in columns.items():
            if isinstance(function, WindowFunction):
                self._tall[name] = _States(self._keys, name, function)
            elif function == "list":
                self._tall[name] = _Folded(self._keys, None)
            elif function == "count_distinct":
                self._tall[name] = _Folded([*self._keys, name], {_ROW: "min"})
            elif quantile_of(function) is not None:
                folds = {_COUNT: "sum", _ROW: "min"}
                self._tall[_quantiles(source)] = _Folded([*self._keys, _BUCKET], folds)

    def _merges(self) -> dict[str, str]:
        merges = {}
        for name, (_, function) in self._columns.items():
            if isinstance(function, str) and function in _MERGES:
                merges[name] = _MERGES[function]
            elif function in ("count", "mean"):
                merges[f"{name} count"] = "sum"
                merges |= {f"{name} sum": "sum"} if function == "mean" else {}
        return merges

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._all.values())

    def add(self, starts: NDArray[np.int64], rows: pa.Table) -> dict[int, str]:
        """Add rows, each with the start of its window, in the order of their offsets.

        Returns:
            The rows that would overflow a sum, and why: they are not added.

        Raises:
            StrategyError: a function does not support the type of its column.
        """
        tables = self._tables(starts, rows)
        beyond = self._limits.beyond(tables[""], self._merged.saved)
        for name, folded in self._all.items():
            folded.add(without_rows(tables[name], beyond))
        self._rows += len(starts)
        return beyond

    def can_add(self, rows: pa.Table) -> bool:
        """Return whether rows of other types can be added; `rows` is an empty table of these types."""
        tables = self._tables(np.empty(0, np.int64), rows)
        return all(can_join(each.parts, tables[name]) for name, each in self._all.items())

    def _tables(self, starts: NDArray[np.int64], rows: pa.Table) -> dict[str, pa.Table]:
        """Return a table of the rows for each entry of `_all`."""
        keys: dict[str, Any] = {START: pa.array(starts)}
        keys |= {name: rows.column(name) for name in self._keys[1:]}
        keys[_ROW] = pa.array(np.arange(self._rows, self._rows + len(starts)))
        merged, tables = dict(keys), {}
        for name, (source, function) in self._columns.items():
            values = None if source == ALL else rows.column(source)
            if function in ("count", "mean"):
                counts = (
                    _ones(len(starts)) if values is None else values.is_valid().cast(pa.int64())
                )
                merged[f"{name} count"] = counts
            if values is None:
                continue
            if name in self._tall:
                tables[name] = pa.table({**keys, name: values})
            elif quantile_of(function) is not None:
                if _quantiles(source) in tables:  # of another quantile
                    continue
                buckets = buckets_of(values)
                ones = buckets.is_valid().cast(pa.int64())
                tables[_quantiles(source)] = pa.table({**keys, _BUCKET: buckets, _COUNT: ones})
            elif function == "sum":
                merged[name] = values.cast(_sum_type(values.type))
            elif function == "mean":
                is_whole = pa.types.is_integer(values.type)
                kind = pa.float64() if is_whole else _sum_type(values.type)
                merged[f"{name} sum"] = values.cast(kind, safe=not is_whole)
            elif function != "count":
                merged[name] = values
        return {"": pa.table(merged), **tables}

    def saved(self) -> dict[str, pa.Table]:
        """Return everything that is kept as tables, for `restore`."""
        return {name: folded.saved() for name, folded in self._all.items()}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Keep what `saved` returned."""
        self._limits.forget()
        for name, folded in self._all.items():
            if tables[name].num_rows:
                folded.restore(tables[name])
                self._rows = max(self._rows, 1 + pc.max(tables[name].column(_ROW)).as_py())

    @property
    def _all(self) -> dict[str, _Folded]:
        return {"": self._merged, **self._tall}

    def groups(self) -> dict[int, int]:
        """Return the number of groups of each window, by its start."""
        starts, counts = np.unique(self._merged.starts(), return_counts=True)
        return dict(zip(starts.tolist(), counts.tolist(), strict=True))

    def take(self, before: int) -> pa.Table:
        """Remove the windows that start before a time, and return their rows, as `rows`."""
        return self._finished({name: each.take(before) for name, each in self._all.items()})

    def rows(self, starts: Collection[int]) -> pa.Table:
        """Return the rows of some windows, which stay.

        Returns:
            `window_start` (int64), the columns of the group, and the new columns; by window, then in the
            order of each group's first row.
        """
        wanted = np.array(sorted(starts), np.int64)
        return self._finished({name: each.rows(wanted) for name, each in self._all.items()})

    def _finished(self, kept: Mapping[str, pa.Table]) -> pa.Table:
        merged = _in_order(kept[""], _ROW)
        out: dict[str, Any] = {name: merged.column(name) for name in self._keys}
        failed: dict[int, str] = {}
        for name, (source, function) in self._columns.items():
            if isinstance(function, WindowFunction):
                made = function.finished(_in_order(kept[name], _ROW), name)
                out[name], failed = made.values, made.failed | failed
            elif (share := quantile_of(function)) is not None:
                lists: list[Any] = [(_BUCKET, "list"), (_COUNT, "list"), (_ROW, "min")]
                values = _in_order(
                    group(kept[_quantiles(source)], self._keys, lists), f"{_ROW}_min"
                )
                out[name] = quantiles(values, f"{_BUCKET}_list", f"{_COUNT}_list", share)
            elif name in self._tall:
                values = group(kept[name], self._keys, [(name, function), (_ROW, "min")])
                out[name] = _in_order(values, f"{_ROW}_min").column(f"{name}_{function}")
            elif function == "count":
                out[name] = merged.column(f"{name} count")
            elif function == "mean":
                total, count = merged.column(f"{name} sum"), merged.column(f"{name} count")
                out[name] = pc.divide(total.cast(pa.float64()), count.cast(pa.float64()))
            else:
                out[name] = merged.column(name)
        self._judge(merged.num_rows, failed)
        if failed:
            out[FAILED] = Made(out[START], failed).reasons
        return pa.table(out)

    def _judge(self, rows: int, failed: Mapping[int, str]) -> None:
        """Raise StrategyError if functions fail for all rows in the same words: for 100, or more."""
        words = set(failed.values())
        if len(failed) < rows or len(words) > 1:
            self._failing = None
        elif rows:
            (reason,) = words
            before, count = self._failing or (reason, 0)
            self._failing = reason, rows + (count if reason == before else 0)
            if self._failing[1] >= MANY:
                raise StrategyError(f"{reason}; so did all of the last {self._failing[1]} rows")


def _in_order(groups: pa.Table, row: str) -> pa.Table:
    """Return groups by window, then in the order of their first rows."""
    start, first = (groups.column(name).to_numpy() for name in (START, row))
    return groups.take(pa.array(np.lexsort((first, start)), pa.int64()))


def _quantiles(source: str) -> str:
    return f"quantiles of {source}"


def _named(starts: NDArray[np.int64] | None, keys: Mapping[str, Any]) -> str:
    """Name a group of a window, by the values of its keys."""
    (_, start), *by = keys.items()
    group = f" and {named(dict(by))}" if by else ""
    return f"the window of {shown_time(start if starts is None else starts[start])}{group}"


def _ones(rows: int) -> pa.ChunkedArray[Any]:
    return pa.chunked_array([pa.array(np.ones(rows, np.int64))])


def can_join(parts: Sequence[pa.Table], empty: pa.Table) -> bool:
    """Return whether tables can be joined with rows of other types; `empty` has these types and no rows."""
    try:
        pa.concat_tables([*parts, empty], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


@cache
def _sum_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the sum of values. Raises StrategyError if there is none."""
    empty = pa.schema([("key", pa.int8()), ("value", kind)]).empty_table()
    summed: pa.DataType = group(empty, ["key"], [("value", "sum")]).column("value_sum").type
    return summed


class _Folded:
    """Rows that are aggregated by keys now and then; without functions they are only kept.

    Args:
        keys: the columns of a key.
        functions: the function that merges two values of each other column; none: distinct keys are kept.
            None: all rows are kept.

    Attributes:
        parts: what is kept.
    """

    def __init__(self, keys: Sequence[str], functions: Mapping[str, str] | None) -> None:
        self._keys, self._functions = list(keys), functions
        self.parts: list[pa.Table] = []
        self._folded = 0  # rows of the first part
        self._new = 0

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def add(self, rows: pa.Table) -> None:
        self.parts.append(rows)
        self._new += rows.num_rows
        if self._new >= max(_FOLD_ROWS, self._folded):
            self._fold()

    def restore(self, rows: pa.Table) -> None:
        """Keep what `saved` returned."""
        self.add(rows)

    def saved(self) -> pa.Table:
        """Return the rows that are kept."""
        return self._fold()

    def _fold(self) -> pa.Table:
        if not self.parts:
            return pa.table({START: pa.array([], pa.int64())})
        table = joined_rows(self.parts)
        if self._new:
            table = self._merge(table)
        table = table.combine_chunks()
        self.parts, self._folded, self._new = [table], table.num_rows, 0
        return table

    def _merge(self, table: pa.Table) -> pa.Table:
        if self._functions is None:
            return table
        names = [*self._keys, *self._functions]
        return group(table, self._keys, list(self._functions.items())).rename_columns(names)

    def starts(self) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self._fold().column(START).to_numpy()
        return column

    def rows(self, starts: NDArray[np.int64]) -> pa.Table:
        """Return the rows of windows."""
        table = self._fold()
        return table.filter(pa.array(np.isin(table.column(START).to_numpy(), starts)))

    def take(self, before: int) -> pa.Table:
        """Remove the rows of windows that start before a time, and return them."""
        table = self._fold()
        closes = table.column(START).to_numpy() < before
        kept = table.filter(pa.array(~closes))
        self.parts, self._folded = [kept], kept.num_rows
        return table.filter(pa.array(closes))


class _States(_Folded):
    """The states of a function of one's own: values become states when they are folded.

    Args:
        name: the column of values, and of states.
    """

    def __init__(self, keys: Sequence[str], name: str, function: WindowFunction) -> None:
        super().__init__(keys, None)
        self._name, self._function = name, function
        self._states = _Folded(keys, None)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._states.nbytes

    def restore(self, rows: pa.Table) -> None:
        self._states.add(rows)

    def _fold(self) -> pa.Table:
        if self.parts:
            values = joined_rows(self.parts)
            self.parts, self._new = [], 0
            self._states.add(self._by_group(values, self._function.states))
        states = self._states.saved()
        if _ROW in states.column_names:
            states = self._by_group(states, self._function.merged)
            self._states = _Folded(self._keys, None)
            self._states.add(states)
        self._folded = states.num_rows
        return states

    def _by_group(self, table: pa.Table, compute: Callable[..., Made]) -> pa.Table:
        places = table.append_column(_PLACES, pa.array(np.arange(table.num_rows)))
        groups = group(places, self._keys, [(_ROW, "min"), (_PLACES, "list")])
        made = compute(table, self._name, groups.column(f"{_PLACES}_list").to_pylist())
        rows: dict[str, Any] = {name: groups.column(name) for name in self._keys}
        rows |= {_ROW: groups.column(f"{_ROW}_min"), self._name: made.values}
        return pa.table(rows | {FAILED: made.reasons})

    def take(self, before: int) -> pa.Table:
        states = self._fold()
        closes = states.column(START).to_numpy() < before
        self._states = _Folded(self._keys, None)
        self._states.add(states.filter(pa.array(~closes)))
        return states.filter(pa.array(closes))
