"""A reducer that groups rows by columns and aggregates the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from framework.collect import Collecting
from framework.errors import StrategyError
from framework.reducer import Empty, Flushed, FlushResult
from framework.tables import one_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Aggregate"]

_FUNCTIONS: Final = (
    "sum",
    "count",
    "min",
    "max",
    "mean",
    "count_distinct",
    "first",
    "last",
    "list",
)
_ALL: Final = "*"


class Aggregate(Collecting):
    """Groups what was collected by the values of some columns, and aggregates others.

    Each flush is aggregated by itself: its rows are partial results wherever a group spans flushes.
    Sums, counts, minima and maxima can be aggregated again downstream; a mean needs its sum and count.

    Example:
        `Aggregate(["carrier"], {"flights": ("*", "count"), "delay": ("dep_delay", "mean")})`

    Args:
        by: the columns that make a group; groups come out in the order of their first row.
        columns: for each new column, the column it is made of and the function: sum, count, min, max,
            mean, count_distinct, first, last or list. Nulls are left out, except by first, last and
            list. `("*", "count")` counts rows.
        limits: the limits and policies of `Reducer`.

    Raises:
        StrategyError: there is no such function; from `flush`: the rows lack a column, or its type
            does not go with the function.
    """

    def __init__(
        self, by: Sequence[str], columns: Mapping[str, tuple[str, str]], **limits: Any
    ) -> None:
        super().__init__(**limits)
        if isinstance(by, str) or not by:
            raise StrategyError(f"Aggregate: by must be a list of at least one column, not {by!r}")
        self.by = list(by)
        self.columns = dict(columns)
        for name, (source, function) in self.columns.items():
            if function not in _FUNCTIONS:
                raise StrategyError(
                    f"Aggregate: {name}: there is no function {function!r}; "
                    f"use one of {', '.join(_FUNCTIONS)}"
                )
            if source == _ALL and function != "count":
                raise StrategyError(f"Aggregate: {name}: only rows can be counted by '*'")
        if clash := set(self.by) & set(self.columns):
            raise StrategyError(f"Aggregate: {sorted(clash)} are columns of by already")

    def flush(self) -> FlushResult:
        if not self.rows:
            return Empty()
        table = one_table(self.rows)
        wanted = [*self.by, *(source for source, _ in self.columns.values() if source != _ALL)]
        if missing := [name for name in wanted if name not in table.column_names]:
            raise StrategyError(
                f"Aggregate: the rows have no column {missing[0]!r}, only {table.column_names}"
            )
        aggregations: list[Any] = [
            ([], "count_all") if source == _ALL else (source, function)
            for source, function in self.columns.values()
        ]
        try:
            # One thread keeps the order of the rows, which first, last and list need.
            grouped = table.group_by(self.by, use_threads=False).aggregate(aggregations)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise StrategyError(
                f"Aggregate: {self.columns} cannot be computed: {error}; the rows are "
                f"{', '.join(f'{field.name} {field.type}' for field in table.schema)}"
            ) from error
        return Flushed(out=grouped.rename_columns([*self.by, *self.columns]))
