"""A reducer that groups rows by columns and aggregates the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, get_args

import pyarrow as pa

from ..columns.kinds import without_rows
from ..errors import MANY, StrategyError, require_columns
from .collect import Collecting, one_table
from .grouping import group
from .sink import RowsRefused, refusals_among
from .sums import SumLimits, named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..record import Rows
    from .reducer import Limits

AggregateFunction = Literal[
    "sum", "count", "min", "max", "mean", "count_distinct", "first", "last", "list"
]
_FUNCTIONS: Final = get_args(AggregateFunction)
ALL: Final = "*"
"""The column name for whole rows; they can only be counted."""


class Aggregate(Collecting):
    """Groups the collected rows by the values of some columns, and aggregates other columns.

    Each flush is aggregated separately: a group that spans flushes has a partial result in each. Sums,
    counts, minima and maxima can be aggregated again downstream; a mean needs its sum and count.
    With exactly-once delivery each flush has the rows of one partition. On Spark a flush is a micro-batch,
    with all of its partitions, and limits have no effect.

    Example:
        ```python
        from kmr import Aggregate

        delays = Aggregate(["carrier"], {"flights": ("*", "count"), "delay": ("dep_delay", "mean")})
        ```

    Args:
        by: the columns that make a group; groups come out in any order.
        columns: for each new column, its source column and the function: sum, count, min, max, mean,
            count_distinct, first, last or list. All but list ignore nulls. `("*", "count")` counts rows.
        limits: the limits and policies of `Reducer`.

    Raises:
        StrategyError: there is no such function; from `flush`: all of 100 rows or more lack a column, or
            have a type that the function does not support.
        RowsRefused: from `flush`: fewer rows do, or overflow a sum; their records fail.
    """

    def __init__(
        self, by: Sequence[str], columns: Mapping[str, tuple[str, str]], **limits: Unpack[Limits]
    ) -> None:
        super().__init__(**limits)
        if not by:
            raise StrategyError(f"Aggregate: by must be a list of at least one column, not {by!r}")
        self.by = list(by)
        self.columns = sources_and_functions("Aggregate", columns)
        for name, (source, function) in self.columns.items():
            if function not in _FUNCTIONS:
                raise StrategyError(
                    f"Aggregate: {name}: unknown function {function!r}; "
                    f"use one of {', '.join(_FUNCTIONS)}"
                )
            if source == ALL and function != "count":
                raise StrategyError(f"Aggregate: {name}: '*' can only be counted, not {function!r}")
        if clash := set(self.by) & set(self.columns):
            raise StrategyError(
                f"Aggregate: {sorted(clash)} are in both by and columns; rename the new columns"
            )

    def flush(self) -> pa.Table:
        try:
            return self._aggregated()
        except StrategyError as error:
            count = sum(each.table.num_rows for each in self.rows)
            if count >= MANY:
                raise
            refused = dict.fromkeys(range(count), str(error))
            raise RowsRefused(refusals_among(self.rows, refused)) from error

    def _aggregated(self) -> pa.Table:
        table, refused = self.without_overflows(self.table_of(self.rows))
        grouped = group(
            table,
            self.by,
            [
                ([], "count_all") if source == ALL else (source, function)
                for source, function in self.columns.values()
            ],
        ).rename_columns([*self.by, *self.columns])
        if refused:
            raise RowsRefused(refusals_among(self.rows, refused), out=grouped)
        return grouped

    def without_overflows(self, table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return the rows that overflow no sum, and the reasons for which the others are refused."""
        sums = {
            source: source
            for source, function in self.columns.values()
            if function == "sum"
            or (function == "mean" and not pa.types.is_integer(table.schema.field(source).type))
        }
        beyond = SumLimits(self.by, sums, named).beyond(table, table.schema.empty_table)
        return without_rows(table, beyond), beyond

    def table_of(self, rows: Sequence[Rows]) -> pa.Table:
        """Join rows, with the coordinates of their records where these are grouped or aggregated.

        Raises:
            StrategyError: they lack a column.
        """
        wanted = self._wanted()
        table = one_table([replace(each, table=each.with_coordinates(wanted)) for each in rows])
        self.require(table.column_names)
        return table

    def _wanted(self) -> list[str]:
        return [*self.by, *(source for source, _ in self.columns.values() if source != ALL)]

    def require(self, columns: Sequence[str]) -> None:
        """Raise StrategyError unless all columns that are grouped or aggregated are there."""
        require_columns("Aggregate", self._wanted(), columns)


def sources_and_functions(what: str, columns: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the new columns with their sources and functions.

    Raises:
        StrategyError: `columns`, a parameter of `what`, has another shape.
    """
    if any(type(pair) not in (tuple, list) or len(pair) != 2 for pair in columns.values()):
        raise StrategyError(
            f'{what}: columns has for each new column its source and its function: {{"hits": ("*", "count"), '
            f'"ms": ("ms", "mean")}}, not {columns!r}'
        )
    return {name: (source, function) for name, (source, function) in columns.items()}
