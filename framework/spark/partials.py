"""`Aggregate` over a whole micro-batch: tasks aggregate what they have, the driver puts that together.

Both halves are Arrow's, as in the worker, and not Spark SQL: the columns of a map are only known when it
has run, and the same functions give the same results there and here (nulls, overflow and rounding differ
between Arrow and SQL). What tasks send is one row per group and chunk, so the driver holds groups, not
records; `list` and `count_distinct` send every (distinct) value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from framework.reducer import Empty, Flushed
from framework.reducers.aggregate import ALL, group
from framework.reducers.collect import Collecting
from framework.reducers.tables import one_table

if TYPE_CHECKING:
    from framework.reducer import FlushResult
    from framework.reducers.aggregate import Aggregate

__all__ = ["FinalAggregate", "PartialAggregate"]

_AGAIN: Final = {
    "sum": "sum",
    "count": "sum",
    "min": "min",
    "max": "max",
    "first": "first",
    "last": "last",
}
"""How results of a function are put together, where a function of results does it."""

_VALUES: Final = {"list": "list", "count_distinct": "distinct"}
"""How values are put together, where only all of them give the result."""

_DIGITS: Final = 38
_COUNT_DIGITS: Final = 19


class _Half(Collecting):
    """A part of an aggregate: its policies, but not its limits: a chunk, or a micro-batch, is a flush."""

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(on_error=aggregate.on_error)
        self.max_rows = self.max_bytes = self.max_age = None
        self.aggregate = aggregate
        self.keys = [f"by.{number}" for number in range(len(aggregate.by))]


class PartialAggregate(_Half):
    """In a task: one row per group, with what `FinalAggregate` needs of it."""

    def flush(self) -> FlushResult:
        if not self.rows:
            return Empty()
        table = one_table(self.rows)
        self.aggregate.require_columns(table)
        names: list[str] = []
        wanted: list[Any] = []
        for number, (source, function) in enumerate(self.aggregate.columns.values()):
            for part in ("sum", "count") if function == "mean" else (function,):
                names.append(f"{number}.{part}")
                wanted.append(_of_values(table, source, part))
        grouped = group(table, self.aggregate.by, wanted)
        return Flushed(out=grouped.rename_columns([*self.keys, *names]))


def _of_values(table: pa.Table, source: str, function: str) -> Any:
    if source == ALL:
        return ([], "count_all")
    if function == "count_distinct" and not pa.types.is_null(table.schema.field(source).type):
        # With nulls, so that no group is without a value.
        return (source, "distinct", pc.CountOptions(mode="all"))
    # (Arrow crashes on distinct values of a column that has no type yet.)
    return (source, "list" if function in _VALUES else function)


class FinalAggregate(_Half):
    """In the driver: the aggregate of all rows of a micro-batch, from what tasks made of them.

    Groups come out in the order of topic, partition and offset of their first row; so do `first`, `last`
    and `list`. The mean of decimals has 38 digits, whatever its column has.
    """

    def flush(self) -> FlushResult:
        if not self.rows:
            return Empty()
        table = one_table(self.rows)
        results = {}
        plain: list[tuple[str, str]] = []
        for number, (_, function) in enumerate(self.aggregate.columns.values()):
            if function == "mean":
                plain += [(f"{number}.sum", "sum"), (f"{number}.count", "sum")]
            elif function in _VALUES:
                results[number] = self._of_lists(table, number, function)
            else:
                plain.append((f"{number}.{function}", _AGAIN[function]))
        grouped = group(table, self.keys, plain)
        for number, (_, function) in enumerate(self.aggregate.columns.values()):
            if function == "mean":
                sums = grouped.column(f"{number}.sum_sum")
                results[number] = _mean(sums, grouped.column(f"{number}.count_sum"))
            elif function not in _VALUES:
                results[number] = grouped.column(f"{number}.{function}_{_AGAIN[function]}")
        columns = [grouped.column(key) for key in self.keys]
        columns += [results[number] for number in range(len(self.aggregate.columns))]
        names = [*self.aggregate.by, *self.aggregate.columns]
        return Flushed(out=pa.Table.from_arrays(columns, names=names))

    def _of_lists(self, table: pa.Table, number: int, function: str) -> Any:
        """The function of all values in lists; no list is empty, so that no group is lost."""
        name = f"{number}.{function}"
        lists: Any = table.column(name).combine_chunks()
        rows = table.select(self.keys).take(pc.list_parent_indices(lists))
        rows = rows.append_column(name, pc.list_flatten(lists))
        return group(rows, self.keys, [(name, function)]).column(f"{name}_{function}")


def _mean(sums: Any, counts: Any) -> Any:
    counts = pc.if_else(pc.equal(counts, pa.scalar(0)), None, counts)
    if not pa.types.is_decimal(sums.type):
        return pc.divide(sums.cast(pa.float64()), counts.cast(pa.float64()))
    scale = sums.type.scale
    exact = pc.divide(
        sums.cast(pa.decimal256(_DIGITS, scale)), counts.cast(pa.decimal256(_COUNT_DIGITS))
    )
    rounded = pc.round(exact, scale, "half_towards_infinity")
    return rounded.cast(pa.decimal128(_DIGITS, scale))
