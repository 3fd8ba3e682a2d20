"""The definition of a ClickHouse table: its columns, and rows cast to fit it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier

from ...columns.casting import Misfit
from ...columns.kinds import either
from ...columns.reasons import reasons
from ...errors import StrategyError
from ...record import COORDINATES
from .ddl import Layout, create_table, one_line
from .deduplication import REPLICATED
from .types import cast_to, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...columns.kinds import Mask
    from .client import Connection
    from .types import ColumnType

__all__ = ["Block", "Column", "MissingTable", "SchemaMismatch", "Table", "read_table"]

Compression = Literal["lz4", "zstd"] | None
ExtraColumns = Literal["error", "ignore"]

SCHEMA_ID = "schema_id"
"""A column of the rows with this name is quoted in the reasons of refused rows."""

_COLUMNS_SQL = """
SELECT name, type, default_kind FROM system.columns
WHERE database = {database:String} AND table = {table:String} ORDER BY position"""
_TABLE_SQL = """
SELECT engine FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""


_EXAMPLE = pa.schema(
    [("partition", pa.uint32()), ("offset", pa.uint64()), ("timestamp", pa.timestamp("us"))]
)


class MissingTable(StrategyError):
    """There is no table of this name. The message has an example of CREATE TABLE."""


class SchemaMismatch(StrategyError):
    """Rows and table do not fit each other; the table may have been altered since it was read."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can be written; `has_default`: the table has a DEFAULT for it."""

    name: str
    type_name: str
    has_default: bool
    type: ColumnType = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows cast for a table.

    Attributes:
        table: the columns to send; rows that do not fit have null or an arbitrary value.
        refused: the row numbers that do not fit, each with the reason.
    """

    table: pa.Table
    refused: dict[int, str]

    def encode(self, start: int, stop: int, compression: Compression) -> pa.Buffer | None:
        """Encode the rows `[start, stop)` that fit as an Arrow stream of one batch; None if none fit."""
        rows = self.table.slice(start, stop - start)
        refused = [row - start for row in self.refused if start <= row < stop]
        if refused:
            fits = np.ones(rows.num_rows, dtype=np.bool_)
            fits[refused] = False
            rows = rows.filter(pa.array(fits))
        if rows.num_rows == 0:
            return None
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
            stream.write_table(rows.combine_chunks())
        return sink.getvalue()


@dataclass(frozen=True, slots=True)
class Table:
    """A table definition; two are equal if rows are cast for both in the same way."""

    database: str
    name: str
    engine: str
    columns: tuple[Column, ...]

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def identifier(self) -> str:
        """The name, quoted for SQL."""
        return f"{quote_identifier(self.database)}.{quote_identifier(self.name)}"

    @property
    def is_replicated(self) -> bool:
        """Whether replicas share its data and its memory of inserts."""
        return self.engine.startswith(REPLICATED)

    @property
    def keeps_rows(self) -> bool:
        """Whether the engine keeps every row; others merge rows with the same sorting key."""
        return self.engine in ("MergeTree", *(f"{each}MergeTree" for each in REPLICATED))

    def coordinates(self, only: Sequence[str] | None) -> list[str]:
        """Return the columns that can hold the coordinates of records (`kmr.record.COORDINATES`).

        Args:
            only: the columns that are written; None: all.
        """
        return [
            column.name
            for column in self.columns
            if column.name in COORDINATES.names
            and (only is None or column.name in only)
            and _holds(column, COORDINATES.field(column.name))
        ]

    def choose(
        self,
        names: Sequence[str],
        only: Sequence[str] | None,
        extra: ExtraColumns,
        *,
        refuse: bool = False,
    ) -> list[Column]:
        """Choose the columns to write, for rows with the columns `names`.

        Args:
            refuse: choose columns too that the rows lack and need, so that `cast` refuses these rows.

        Raises:
            SchemaMismatch: the table lacks a column of the rows, or the rows one without a default.
        """
        known = {column.name: column for column in self.columns}
        wanted = names if only is None else only
        if absent := [name for name in wanted if name not in names]:
            raise SchemaMismatch(f"the rows for {self} have no column {_names(absent)}")
        unknown = [name for name in wanted if name not in known]
        if unknown and (extra == "error" or only is not None):
            raise SchemaMismatch(
                f"{self} has no column {_names(unknown)} to write to; its columns are "
                f"{_names(list(known))}. Alter the table, return other columns, "
                "or set extra_columns='ignore'"
            )
        chosen = [known[name] for name in wanted if name in known]
        if only is None:
            left = [
                column
                for column in self.columns
                if column.name not in names and not column.has_default and not column.type.nullable
            ]
            if refuse:
                chosen += left
            elif left:
                raise SchemaMismatch(
                    f"the rows for {self} have no column {_names([column.name for column in left])}, "
                    "which has no DEFAULT there: return it, give it a DEFAULT, or name the columns to "
                    "write with columns=[...]"
                )
        if not chosen:
            raise SchemaMismatch(f"the rows for {self} have none of its columns")
        return chosen

    def cast(
        self, parts: Sequence[pa.Table], columns: Sequence[Column], *, refuse: bool = False
    ) -> Block:
        """Cast rows, part after part, to the types of the columns.

        Args:
            refuse: refuse the values of a type that cannot become that of the table.

        Raises:
            SchemaMismatch: the type of a column of the rows cannot become that of the table.
        """
        cast: list[pa.Table] = []
        refused: dict[int, str] = {}
        row = 0
        for _, alike in groupby(parts, key=lambda part: part.schema):
            rows = pa.concat_tables(alike).combine_chunks()
            cast.append(self._cast(rows, columns, row, refused, refuse=refuse))
            row += rows.num_rows
        return Block(pa.concat_tables(cast, promote_options="permissive"), refused)

    def _cast(
        self,
        rows: pa.Table,
        columns: Sequence[Column],
        at: int,
        refused: dict[int, str],
        *,
        refuse: bool,
    ) -> pa.Table:
        arrays = []
        bad: Mask = None
        for column in columns:
            array = _array(rows, column.name)
            try:
                cast = cast_to(array, column.type, has_default=column.has_default)
            except Misfit as misfit:
                reason = (
                    f"column {column.name} of {self} is {column.type_name}, but the rows have "
                    f"{array.type}: {misfit}"
                )
                if not refuse:
                    raise SchemaMismatch(reason) from misfit
                wrong = array.is_valid().to_numpy(zero_copy_only=False)
                new = np.flatnonzero(wrong if bad is None else wrong & ~bad)
                refused.update(dict.fromkeys((new + at).tolist(), reason))
                bad = either(bad, wrong)
                array = pa.nulls(rows.num_rows)
                cast = cast_to(array, column.type, has_default=column.has_default)
            found = reasons(column.name, column.type_name, array, cast, skip=bad)
            refused.update((row + at, reason) for row, reason in found.items())
            bad = either(bad, cast.bad)
            arrays.append(cast.array)
        if bad is not None and SCHEMA_ID in rows.column_names:
            ids = rows.column(SCHEMA_ID)
            for row in np.flatnonzero(bad).tolist():
                refused[at + row] += f" (schema id {ids[row].as_py()})"
        return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _holds(column: Column, coordinate: pa.Field[Any]) -> bool:
    """Return whether a column has a type of numbers, texts or times, as its coordinate."""
    kind = column.type_name.removeprefix("LowCardinality(").removeprefix("Nullable(")
    if pa.types.is_string(coordinate.type):
        return kind.startswith("String")
    if pa.types.is_timestamp(coordinate.type):
        return kind.startswith("DateTime")
    return kind.startswith(("Int", "UInt"))


def _array(rows: pa.Table, name: str) -> Any:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows)
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.array([], column.type)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


async def read_table(connection: Connection, database: str, name: str) -> Table:
    """Read a table's definition.

    Raises:
        MissingTable: there is no such table.
        Exception: the client's own.
    """
    where = {"database": database, "table": name}
    found = await connection.rows(_TABLE_SQL, where)
    if not found:
        example = one_line(create_table(database, name, _EXAMPLE, Layout()))
        raise MissingTable(
            f"There is no table {database}.{name}. Create it with the columns that your map returns, "
            f"for example: {example}; kmr clickhouse create-table STRATEGY prints it for columns that are "
            "declared, or those of a --sample"
        )
    engine = found[0]["engine"]
    columns = tuple(
        Column(
            name=row["name"],
            type_name=row["type"],
            has_default=row["default_kind"] != "",
            type=type_of(row["type"]),
        )
        for row in await connection.rows(_COLUMNS_SQL, where)
        if row["default_kind"] not in ("MATERIALIZED", "ALIAS")
    )
    return Table(database, name, engine, columns)
