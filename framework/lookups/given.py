"""Tables whose rows are given, for tests and simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..values.schemas import fields_of
from .columns_table import ColumnsTable, keys_of
from .objects_table import ObjectsTable, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .lookup import Lookup
    from .table import LookupTable


class GivenRows:
    """Rows in the place of a topic.

    Args:
        lookup: says what names a row.
        rows: dicts, or objects of the class of the values.
    """

    def __init__(self, lookup: Lookup, rows: Iterable[Any]) -> None:
        self.lookup = lookup
        self.rows = list(rows)

    def __str__(self) -> str:
        return f"{len(self.rows):,} given rows, by {' and '.join(self.lookup.keys)}"

    def table(self, name: str, *, as_columns: bool) -> LookupTable:
        """Return the rows as a map gets them."""
        keys = self.lookup.keys
        if not as_columns:
            return ObjectsTable(name, {key_of(row, keys): row for row in self.rows})
        schema = pa.schema([each.with_nullable(nullable=True) for each in self.lookup.columns])
        rows = [row if isinstance(row, dict) else fields_of(row) for row in self.rows]
        base = pa.RecordBatch.from_pylist(rows, schema=schema)
        index = {key: row for row, key in enumerate(keys_of(base, keys))}
        return ColumnsTable(name, keys, base, index, base.slice(0, 0), {}, len(index))
