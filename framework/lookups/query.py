"""`Lookup.query`: the result of a query is a table for maps."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ..columns.texts import python_values
from ..config.schema import Duration, parse_duration
from ..config.secrets import read_secret
from ..errors import StrategyError
from ..values.schemas import row_type
from .columns_table import ColumnsTable, keys_of
from .databases import CLICKHOUSE_URL, POSTGRES_URL, database_of
from .objects_table import ObjectsTable, key_of
from .source import TableSource, require_single

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..kafka.connection import ConnectionConfig
    from .follower import Follower
    from .source import Missing
    from .table import LookupTable

_ROW_BYTES = 350  # an object of a few fields, and its place in the table


class QueryLookup(TableSource):
    """The result of a query as a table; see `Lookup.query`."""

    def __init__(
        self,
        sql: str,
        *,
        key: str | Sequence[str],
        every: Duration,
        url: str | None,
        row: type | None,
        missing: Missing,
        max_bytes: int,
    ) -> None:
        super().__init__(key, missing=missing, max_bytes=max_bytes)
        self.sql = sql.strip().rstrip(";")
        self.every = parse_duration(every, "Lookup: every")
        self.url = url
        self.row = row
        self._type = None if row is None else row_type(row)
        if not self.sql:
            raise StrategyError("Lookup.query: the query is empty")
        if url is not None:
            database_of(url)
        self.check_keys(row)

    @property
    def columns(self) -> pa.Schema | None:
        return None if self._type is None else self._type.schema

    @property
    def address(self) -> str:
        """The URL of the database. Raises StrategyError if none is named."""
        named = [
            found
            for variable in (POSTGRES_URL, CLICKHOUSE_URL)
            if (found := self.url or read_secret(os.environ, variable)) is not None
        ]
        if self.url is None and len(named) != 1:
            raise StrategyError(
                f"Lookup.query: no database is named; set url=, or one of {POSTGRES_URL} and {CLICKHOUSE_URL}"
            )
        return named[0]

    def follower(self, name: str, config: ConnectionConfig | None, *, as_columns: bool) -> Follower:
        from .query_follower import QueryFollower

        return QueryFollower(name, self, database_of(self.address), as_columns=as_columns)

    def table(self, name: str, rows: pa.Table, *, as_columns: bool) -> tuple[LookupTable, int]:
        """Make the table of a result; return it, and its estimated size in bytes.

        Raises:
            StrategyError: a column is missing or has another type, two rows have one key, or it is too large.
        """
        (batch,) = rows.combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], schema=rows.schema)
        ]
        batch = self._typed(batch)
        for key in self.keys:
            if key not in batch.schema.names:
                raise StrategyError(
                    f"table {name}: the query has no column {key}, which key= names; it has "
                    f"{', '.join(batch.schema.names)}"
                )
            require_single(f"table {name}", batch.schema.field(key))
            batch = batch.filter(batch.column(key).is_valid())
        keys = keys_of(batch, self.keys)
        self._check_unique(name, keys)
        nbytes = batch.nbytes + len(batch) * (0 if as_columns else _ROW_BYTES)
        if nbytes > self.max_bytes:
            raise StrategyError(
                f"table {name} ({self}): {len(batch):,} rows need {nbytes:,} bytes, more than "
                f"max_bytes={self.max_bytes:,}; raise it, or select less"
            )
        if as_columns:
            return ColumnsTable.of(name, self, batch), nbytes
        objects = self._objects(batch)
        if self._type is not None:
            keys = [key_of(each, self.keys) for each in objects]
        return ObjectsTable(name, self, dict(zip(keys, objects, strict=True))), nbytes

    def _check_unique(self, name: str, keys: list[Any]) -> None:
        counts = Counter(keys) if len(set(keys)) < len(keys) else {}
        for key, count in counts.items():
            if count > 1:
                raise StrategyError(
                    f"table {name} ({self}): {count:,} rows have the key {key!r}; group them, or add a "
                    "column to key="
                )

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of `row=`, with their types."""
        if self._type is None:
            return batch
        of, arrays = self._type.cls.__name__, []
        for field in self._type.schema:
            if field.name not in batch.schema.names:
                raise StrategyError(
                    f"Lookup.query: the query has no column {field.name}, a field of {of}"
                )
            try:
                arrays.append(batch.column(field.name).cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise StrategyError(
                    f"Lookup.query: column {field.name} does not fit {of}: {error}"
                ) from error
        schema = [field.with_nullable(nullable=True) for field in self._type.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(schema))

    def _objects(self, batch: pa.RecordBatch) -> list[Any]:
        names = batch.schema.names
        columns = [python_values(column) for column in batch.columns]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if self._type is None:
            return rows
        cls: Any = self._type.cls
        try:
            if self._type.is_pydantic:
                return [cls.model_validate(row) for row in rows]
            return msgspec.convert(rows, list[cls])
        except ValueError as error:  # both libraries raise subclasses
            raise StrategyError(f"Lookup.query: a row is no {cls.__name__}: {error}") from error

    def __str__(self) -> str:
        short = " ".join(self.sql.split())
        return f"query {short if len(short) < 60 else short[:57] + '...'}, by {' and '.join(self.keys)}"
