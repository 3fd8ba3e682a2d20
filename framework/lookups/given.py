"""Tables whose rows are given, for tests and simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from ..errors import StrategyError
from ..record import SCHEMA, Record
from ..values.row_classes import fields_of
from .column_versions import ColumnVersions
from .columns_table import ColumnsStore, ColumnsTable, keys_of
from .object_versions import ObjectVersions
from .objects_table import ObjectsStore, ObjectsTable, key_of
from .versions import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .lookup import Lookup
    from .source import TableSource
    from .table import LookupTable


class GivenRows:
    """Rows in the place of a topic or a query.

    Args:
        lookup: says what names a row.
        rows: dicts, or objects of the class of the values; or `Record`s, as the topic has them.

    Raises:
        StrategyError: there are both, or records for a query.
    """

    def __init__(self, lookup: TableSource, rows: Iterable[Any]) -> None:
        self.lookup = lookup
        self.rows = list(rows)
        are_records = {isinstance(row, Record) for row in self.rows}
        if len(are_records) > 1:
            raise StrategyError("the rows of a table are all Records, or none of them is")
        if True in are_records and not lookup.has_records:
            raise StrategyError("the rows of a query are no Records")
        self._are_records = True in are_records

    def __str__(self) -> str:
        return f"{len(self.rows):,} given rows, by {' and '.join(self.lookup.keys)}"

    def table(self, name: str, *, as_columns: bool) -> LookupTable:
        """Return the rows as a map gets them."""
        source = self.lookup
        if self._are_records:
            store = (ColumnsStore if as_columns else ObjectsStore)(name, cast("Lookup", source))
            store.apply(_batch_of(self.rows))
            if store.rejected:
                raise StrategyError(f"table {name}: a given record makes no row: {store.example}")
            return store.table()
        if not as_columns:
            objects = {key_of(row, source.keys): row for row in self.rows}
            if source.as_of is None:
                return ObjectsTable(name, source, objects)
            versions = ObjectVersions(source.keep)
            for number, (key, row) in enumerate(objects.items()):
                versions.put(key, row, (ALWAYS, number, 0))
            return versions.table(name, source)
        schema = source.columns
        if schema is not None:
            schema = pa.schema([each.with_nullable(nullable=True) for each in schema])
        rows = [row if isinstance(row, dict) else fields_of(row) for row in self.rows]
        try:
            batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StrategyError(
                f"table {name}: the given rows do not fit their columns: {error}. Give Python's own values "
                "(a datetime, a Decimal), or Records, whose values are decoded"
            ) from error
        if source.as_of is None:
            return ColumnsTable.of(name, source, batch)
        where = ColumnVersions(source.keep)
        for number, key in enumerate(keys_of(batch, source.keys)):
            where.put(key, number, (ALWAYS, number, 0))
        return ColumnsTable(name, source, batch.slice(0, 0), batch, where.index(0))


def _batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Return the columns of records that a store reads."""
    columns: dict[str, Any] = {
        name: [getattr(record, name) for record in records]
        for name in ("key", "value", "partition", "offset")
    }
    columns["timestamp"] = [record.timestamp_us for record in records]
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_pydict(columns, schema=schema)


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
