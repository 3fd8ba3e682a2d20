"""An `Aggregate` in two halves: tasks aggregate their rows, the driver merges the results of all tasks."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import without_rows
from ...reducers.aggregate import ALL, Aggregate
from ...reducers.collect import Collecting, one_table
from ...reducers.grouping import group
from ...reducers.sink import RowsRefused, refusals_among
from ...reducers.sums import SumLimits, named

_MERGE: Final = {"count": "sum"}
"""By function: the function that merges its partial results; others merge their own."""

_OF_LISTS: Final = {"list": "list", "count_distinct": "distinct"}
"""By function that needs all values: the function of Arrow that computes it from their lists."""

_DIGITS: Final = 38
_COUNT_DIGITS: Final = 19


class _AggregateHalf(Collecting):
    """One half of an aggregate: it has its `on_error`, but no limits: a flush is a chunk or a micro-batch."""

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(on_error=aggregate.on_error)
        self.max_rows = self.max_bytes = self.max_age = None
        self.aggregate = aggregate
        self.keys = [f"by.{number}" for number in range(len(aggregate.by))]


class PartialAggregate(_AggregateHalf):
    """The task's half: one row per group, with the partial results that `FinalAggregate` merges."""

    def flush(self) -> pa.Table:
        table, refused = self.aggregate.without_overflows(self.aggregate.table_of(self.rows))
        names: list[str] = []
        wanted: list[Any] = []
        for number, (source, function) in enumerate(self.aggregate.columns.values()):
            if function == "mean" and pa.types.is_integer(table.schema.field(source).type):
                floats = table[source].cast(pa.float64(), safe=False)
                source = f"{number}.mean"
                table = table.append_column(source, floats)
            for part in ("sum", "count") if function == "mean" else (function,):
                names.append(f"{number}.{part}")
                wanted.append(_of_values(table, source, part))
        grouped = group(table, self.aggregate.by, wanted).rename_columns([*self.keys, *names])
        if refused:
            raise RowsRefused(refusals_among(self.rows, refused), out=grouped)
        return grouped


def _of_values(table: pa.Table, source: str, function: str) -> Any:
    if source == ALL:
        return ([], "count_all")
    if function == "count_distinct" and not pa.types.is_null(table.schema.field(source).type):
        # Nulls count as values here, so that no group's list is empty.
        return (source, "distinct", pc.CountOptions(mode="all"))
    # "list" for a column of type null: Arrow crashes on its distinct values.
    return (source, "list" if function in _OF_LISTS else function)


class FinalAggregate(_AggregateHalf):
    """The driver's half: merges the tasks' results to the aggregate of a micro-batch.

    Groups, and the values of `first`, `last` and `list`, are in the order of topic, partition and offset.
    The mean of a decimal column always has 38 digits. A group whose sum would
    overflow has more than one row.
    """

    def flush(self) -> pa.Table:
        table = one_table(self.rows)
        merged: list[pa.Table] = []
        functions = enumerate(self.aggregate.columns.values())
        sums = {f"{n}.sum": source for n, (source, f) in functions if f in ("sum", "mean")}
        while table.num_rows or not merged:
            later = SumLimits(self.keys, sums, named).beyond(table, table.schema.empty_table)
            merged.append(self._merged(without_rows(table, later)))
            table = table.take(pa.array(sorted(later), pa.int64()))
        return pa.concat_tables(merged)

    def _merged(self, table: pa.Table) -> pa.Table:
        results = {}
        plain: list[tuple[str, str]] = []
        for number, (_, function) in enumerate(self.aggregate.columns.values()):
            if function == "mean":
                plain += [(f"{number}.sum", "sum"), (f"{number}.count", "sum")]
            elif function in _OF_LISTS:
                results[number] = self._of_lists(table, number, function)
            else:
                plain.append((f"{number}.{function}", _MERGE.get(function, function)))
        grouped = group(table, self.keys, plain, in_order=True)
        for number, (_, function) in enumerate(self.aggregate.columns.values()):
            if function == "mean":
                sums = grouped.column(f"{number}.sum_sum")
                results[number] = _mean(sums, grouped.column(f"{number}.count_sum"))
            elif function not in _OF_LISTS:
                merged = _MERGE.get(function, function)
                results[number] = grouped.column(f"{number}.{function}_{merged}")
        columns = [grouped.column(key) for key in self.keys]
        columns += [results[number] for number in range(len(self.aggregate.columns))]
        names = [*self.aggregate.by, *self.aggregate.columns]
        return pa.Table.from_arrays(columns, names=names)

    def _of_lists(self, table: pa.Table, number: int, function: str) -> Any:
        """Apply a function to the values of all lists; no list is empty, so that no group is lost."""
        name = f"{number}.{function}"
        lists: Any = table.column(name).combine_chunks()
        rows = table.select(self.keys).take(pc.list_parent_indices(lists))
        rows = rows.append_column(name, pc.list_flatten(lists))
        values = group(rows, self.keys, [(name, function)], in_order=True)
        return values.column(f"{name}_{function}")


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
