"""Tables whose rows are given, for tests and simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..values.schemas import fields_of
from .columns_table import ColumnsTable
from .objects_table import ObjectsTable, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .source import TableSource
    from .table import LookupTable


class GivenRows:
    """Rows in the place of a topic or a query.

    Args:
        lookup: says what names a row.
        rows: dicts, or objects of the class of the values.
    """

    def __init__(self, lookup: TableSource, rows: Iterable[Any]) -> None:
        self.lookup = lookup
        self.rows = list(rows)

    def __str__(self) -> str:
        return f"{len(self.rows):,} given rows, by {' and '.join(self.lookup.keys)}"

    def table(self, name: str, *, as_columns: bool) -> LookupTable:
        """Return the rows as a map gets them."""
        source = self.lookup
        if not as_columns:
            return ObjectsTable(name, source, {key_of(row, source.keys): row for row in self.rows})
        schema = source.columns
        if schema is not None:
            schema = pa.schema([each.with_nullable(nullable=True) for each in schema])
        rows = [row if isinstance(row, dict) else fields_of(row) for row in self.rows]
        return ColumnsTable.of(name, source, pa.RecordBatch.from_pylist(rows, schema=schema))


def empty_tables(sources: Mapping[str, TableSource | GivenRows]) -> dict[str, LookupTable]:
    """Return tables without rows for a per-batch map, where the columns are known before there are rows."""
    given = {
        n: GivenRows(s.lookup if isinstance(s, GivenRows) else s, ()) for n, s in sources.items()
    }
    return {
        name: each.table(name, as_columns=True)
        for name, each in given.items()
        if each.lookup.columns is not None
    }
