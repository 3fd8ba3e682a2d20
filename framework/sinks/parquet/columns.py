"""Rows cast to the columns of a destination, so that all files have the same types."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import StrategyError
from ..casts import cast_parts, excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["TYPE_NAME", "Columns", "Fitted", "fit", "without_nulls"]

TYPE_NAME: Final = b"type"
"""The key in the metadata of a field whose value is the destination's name of its type, for messages."""


class Fitted(NamedTuple):
    """Rows cast to a schema.

    Attributes:
        table: the rows that fit.
        refused: the numbers of the rows that do not fit, with the reasons; they are not in `table`.
    """

    table: pa.Table
    refused: dict[int, str]


def without_nulls(table: pa.Table) -> pa.Table:
    """Leave out columns of type null: they have no value yet, and so no type."""
    empty = [each.name for each in table.schema if pa.types.is_null(each.type)]
    return table.drop_columns(empty) if empty else table


@dataclass(slots=True)
class Columns:
    """The columns of a destination that are known so far. Threads may share it.

    Attributes:
        destination: its name, for messages.
        schema: the columns; None before the first rows.
        reread: reads a table's columns again; rows must not have others. None: new columns are allowed.
        types: casts rows to types that the destination has.
    """

    destination: str
    schema: pa.Schema | None = None
    reread: Callable[[], pa.Schema] | None = None
    types: Callable[[pa.Table], pa.Table] = without_nulls
    _lock: Lock = field(default_factory=Lock)

    def fit(self, rows: pa.Table) -> Fitted:
        """Cast rows to the known columns, so that all files have the same types.

        Raises:
            StrategyError: a table does not have a column, or its type cannot become that of the destination.
        """
        rows = self.types(rows)
        with self._lock:
            if self.schema is None:
                self.schema = rows.schema
                return Fitted(rows, {})
            if self.reread is not None and self._unknown(rows):
                self.schema = self.reread()
                if unknown := self._unknown(rows):
                    raise StrategyError(
                        f"{self.destination} has no column {', '.join(unknown)}; its columns are "
                        f"{', '.join(self.schema.names)}. Alter the table, or return other columns"
                    )
            known = self.schema
            for name in self._unknown(rows):
                self.schema = self.schema.append(pa.field(name, rows.schema.field(name).type))
        return fit(rows, known, self.destination)

    def _unknown(self, rows: pa.Table) -> list[str]:
        known = () if self.schema is None else self.schema.names
        return [name for name in rows.column_names if name not in known]


def fit(table: pa.Table, schema: pa.Schema, destination: str) -> Fitted:
    """Cast rows to a schema, and leave out rows with values that do not fit.

    A column that only the rows have stays as it is, after the others; one that only the schema has is null.

    Raises:
        StrategyError: a column's type cannot be cast, whatever the values are.
    """
    columns: dict[str, Any] = {}
    reasons: dict[int, str] = {}
    for known in schema:
        if known.name not in table.column_names:
            columns[known.name] = pa.nulls(table.num_rows, known.type)
            continue
        column = table.column(known.name)
        if column.type == known.type:
            columns[known.name] = column
            continue
        array = column.combine_chunks()
        try:
            cast = cast_parts(array, partial(pc.cast, target_type=known.type))
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise StrategyError(
                f"column {known.name} of {destination} is {known.type}, but the rows have {array.type}: "
                "return the same type always, with @map_record(schema=...)"
            ) from error
        columns[known.name] = cast.array
        if cast.bad is not None:
            reasons |= _reasons(known, array, cast.bad, reasons)
    for name in table.column_names:
        columns.setdefault(name, table.column(name))
    fitted = pa.table(columns)
    if reasons:
        keep = np.ones(fitted.num_rows, dtype=np.bool_)
        keep[list(reasons)] = False
        fitted = fitted.filter(pa.array(keep))
    return Fitted(fitted, reasons)


def _reasons(
    field: pa.Field[Any], array: Any, bad: NDArray[np.bool_], known: Mapping[int, str]
) -> dict[int, str]:
    kind = (field.metadata or {}).get(TYPE_NAME, str(field.type).encode()).decode()
    rows = [row for row in np.flatnonzero(bad).tolist() if row not in known]
    values = array.take(pa.array(rows, pa.int64())).to_pylist()
    return {
        row: f"column {field.name} ({kind}) cannot hold {excerpt(value)}"
        for row, value in zip(rows, values, strict=True)
    }
