"""The definition of a ClickHouse table: its columns, and rows cast to fit it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier

from ...columns.column_types import join_tables
from ...columns.fitted import Fitted, TargetColumn, fit_columns
from ...columns.kinds import is_bytes, is_text, nulls_inside, whole, without_rows
from ...columns.texts import json_texts
from ...errors import StrategyError
from ...record import COORDINATES
from .counting import Counting
from .deduplication import REPLICATED
from .fences import new_name, refusal, refuses
from .types import cast_to, is_cast_by_server, takes_null, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...columns.kinds import Array
    from ..choosing import Choice
    from .client import ClickHouseConnection
    from .types import ColumnType

Compression = Literal["lz4", "zstd"] | None

SCHEMA_ID = "schema_id"
"""A column of the rows with this name is quoted in the reasons of refused rows."""

_VARIANT: Final = re.compile(r"\b(Dynamic|Variant)\b")
_COLUMNS_SQL = """
SELECT name, type, default_kind FROM system.columns
WHERE database = {database:String} AND table = {table:String} ORDER BY position"""
_SIGNATURE_SQL = """
SELECT groupBitXor(cityHash64(name, type, default_kind)) AS signature FROM system.columns
WHERE database = {database:String} AND table = {table:String}"""
_TABLE_SQL = """
SELECT engine, engine_full, sorting_key, create_table_query FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""


class MissingTable(StrategyError):
    """There is no table of this name."""


class SchemaMismatch(Exception):
    """The server says that rows and table do not fit; the table may have been altered since it was read."""


@dataclass(frozen=True, slots=True)
class ClickHouseColumn:
    """A column that can be written; `has_default`: the table has a DEFAULT for it."""

    name: str
    type_name: str
    has_default: bool
    type: ColumnType = field(compare=False, repr=False)

    @property
    def is_needed(self) -> bool:
        """Whether every row must have a value."""
        return not self.has_default and not takes_null(self.type)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows cast for a table.

    Attributes:
        fitted: all rows; those that do not fit have null or anything.
        columns: those of the table.
        filled: the columns with null in some rows that fit, which the server fills by their DEFAULT.
    """

    fitted: Fitted
    columns: Sequence[ClickHouseColumn]
    filled: Sequence[str] = ()

    @property
    def table(self) -> pa.Table:
        """The columns to send."""
        return self.fitted.table

    @property
    def refused(self) -> dict[int, str]:
        """The row numbers that do not fit, each with the reason."""
        return self.fitted.refused

    def encode(self, start: int, stop: int, compression: Compression) -> BytesIO | None:
        """Encode the rows `[start, stop)` that fit as an Arrow stream of one batch; None if none fit."""
        rows = self.table.slice(start, stop - start)
        refused = [row - start for row in self.refused if start <= row < stop]
        rows = self._without_null(without_rows(rows, refused))
        if rows.num_rows == 0:
            return None
        for each in self.columns if self.filled else ():
            if each.type.base_type in ("Dynamic", "Variant") and each.name in rows.column_names:
                at = rows.column_names.index(each.name)
                rows = rows.set_column(at, each.name, _with_null(whole(rows.column(at))))
        body = BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(body, rows.schema, options=options) as stream:
            stream.write_table(rows.combine_chunks())
        body.seek(0)
        return body

    @property
    def has_filled_nulls(self) -> bool:
        """Whether null is sent for columns with a DEFAULT, which the server fills."""
        return bool(self.filled) or len(self._null(self.table)) == self.table.num_columns

    def refuse_lost_nulls(self) -> None:
        """Refuse null inside of lists and objects of Dynamic or Variant, where the server fills columns.

        It would fill these, too: with 0 beside numbers.
        """
        for each in self.columns if self.filled else ():
            if each.type.base_type in ("Dynamic", "Variant") or not _VARIANT.search(each.type_name):
                continue
            lost = nulls_inside(whole(self.table.column(each.name)))
            for row in () if lost is None else np.flatnonzero(lost).tolist():
                self.refused.setdefault(
                    row,
                    f"column {each.name} ({each.type_name}) cannot keep null in an insert with null in "
                    f"{self.filled[0]}, which its DEFAULT fills: return a value there",
                )

    def _null(self, rows: pa.Table) -> list[str]:
        """Return the columns of nulls of which the server makes the same if they are left out.

        Their type may be one that it does not know, or they have a DEFAULT.
        """
        return [
            each.name
            for each in self.columns
            if (is_cast_by_server(each.type) or (each.has_default and not takes_null(each.type)))
            and each.name in rows.column_names
            and rows.column(each.name).null_count == rows.num_rows
        ]

    def _without_null(self, rows: pa.Table) -> pa.Table:
        null = self._null(rows)
        return rows.drop_columns(null) if len(null) < rows.num_columns else rows


@dataclass(frozen=True, slots=True)
class ClickHouseTable:
    """A table definition; two are equal if rows are cast for both in the same way."""

    database: str
    name: str
    engine: str
    columns: tuple[ClickHouseColumn, ...]
    counting: Counting

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

    def cast(
        self, parts: Sequence[pa.Table], choice: Choice[ClickHouseColumn], *, letters: bool = False
    ) -> Block:
        """Cast rows, part after part, to the types of the columns; `letters` as in `Choice.fit`."""
        columns = choice.columns
        cast: list[pa.Table] = []
        refused: dict[int, str] = {}
        general: set[str] = set()
        left_out: Counter[str] = Counter()
        cut: Counter[str] = Counter()
        targets = [
            TargetColumn(
                each.name,
                each.type_name,
                partial(cast_to, target=each.type, has_default=each.has_default),
            )
            for each in columns
        ]
        at = 0
        for _, alike in groupby(parts, key=lambda part: part.schema):
            rows = pa.concat_tables(alike).combine_chunks()
            fitted = choice.fit(rows, targets, letters=letters)
            ids = rows.column(SCHEMA_ID) if SCHEMA_ID in rows.column_names else None
            for row, reason in fitted.refused.items():
                more = "" if ids is None else f" (schema id {ids[row].as_py()})"
                refused[at + row] = reason + more
            general |= fitted.general
            for counts, more_counts in ((left_out, fitted.left_out), (cut, fitted.cut)):
                counts.update(more_counts)
            cast.append(fitted.table)
            at += rows.num_rows
        objects = [each.name for each in columns if each.type.base_type == "JSON"]
        table, misfits = join_tables(cast)
        if misfits and objects:
            table, misfits = join_tables(_with_documents(cast, objects, refused))
        # The server stores a value otherwise beside some others at its path, which another part may have.
        if len(cast) > 1 and objects:
            typed = [each for each in targets if each.name in objects]
            refused = fit_columns(table.select(objects), typed).refused | refused
        refused = misfits | refused
        fitted = Fitted(table, refused, frozenset(general), cut, left_out)
        kept = fitted.kept()
        filled = [
            each.name
            for each in columns
            if each.has_default
            and not takes_null(each.type)
            and 0 < kept.column(each.name).null_count < kept.num_rows
        ]
        return Block(fitted, columns, filled)


def _holds(column: ClickHouseColumn, coordinate: pa.Field[Any]) -> bool:
    """Return whether a column has a type of numbers, texts or times, as its coordinate."""
    kind = column.type_name.removeprefix("LowCardinality(").removeprefix("Nullable(")
    if pa.types.is_string(coordinate.type):
        return kind.startswith("String")
    if pa.types.is_timestamp(coordinate.type):
        return kind.startswith("DateTime")
    return kind.startswith(("Int", "UInt"))


def _with_null(values: Array) -> Array:
    """Return values as a union of one type, whose null the server does not fill."""
    if pa.types.is_null(values.type):
        return values
    return pa.UnionArray.from_sparse(pa.array([0] * len(values), pa.int8()), [values])


def _with_documents(
    parts: Sequence[pa.Table], names: Sequence[str], refused: dict[int, str]
) -> list[pa.Table]:
    """Make texts of the objects in these columns; `refused` gets the rows that JSON cannot hold."""
    made: list[pa.Table] = []
    at = 0
    for part in parts:
        texts: dict[str, Any] = {}
        for name in names:
            texts[name] = array = whole(part.column(name))
            if not (is_text(array.type) or is_bytes(array.type)):
                texts[name], bad = json_texts(array)
                for row, why in bad.items():
                    refused.setdefault(at + row, f"column {name}{why}")
        made.append(
            pa.table({each: texts.get(each, part.column(each)) for each in part.column_names})
        )
        at += part.num_rows
    return made


async def signature_of(connection: ClickHouseConnection, table: ClickHouseTable) -> int:
    """Return a number that is another one after the columns of a table were altered."""
    where = {"database": table.database, "table": table.name}
    (row,) = await connection.rows(_SIGNATURE_SQL, where)
    return int(row["signature"])


async def read_table(
    connection: ClickHouseConnection, database: str, name: str, group: str
) -> ClickHouseTable:
    """Read a table's definition.

    Args:
        group: whose table it is. If `kmr cutover` has exchanged it, it has another name.

    Raises:
        MissingTable: there is no such table.
        StrategyError: the table is another group's, and that of this group is gone.
        Exception: the client's own.
    """
    where = {"database": database, "table": name}
    found = await connection.rows(_TABLE_SQL, where)
    is_refused = bool(found) and refuses(found[0]["create_table_query"], group)
    if is_refused or not found:
        new = await new_name(connection, database, name, group)
        if new is not None:
            return await read_table(connection, database, new, group)
        if is_refused:
            raise refusal(f"{database}.{name}", group)
    if not found:
        raise MissingTable(f"There is no table {database}.{name}")
    engine, key = found[0]["engine"], found[0]["sorting_key"]
    counting = Counting.of(engine, found[0]["engine_full"], key)
    columns = tuple(
        ClickHouseColumn(
            name=row["name"],
            type_name=row["type"],
            has_default=row["default_kind"] != "",
            type=type_of(row["type"]),
        )
        for row in await connection.rows(_COLUMNS_SQL, where)
        if row["default_kind"] not in ("MATERIALIZED", "ALIAS")
    )
    return ClickHouseTable(database, name, engine, columns, counting)
