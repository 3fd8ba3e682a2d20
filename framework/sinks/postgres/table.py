"""A table of PostgreSQL, and the statements that make one for the columns of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...errors import StrategyError
from .types import PostgresColumn, column_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from .connection import Connection

_COLUMNS: Final = """
WITH RECURSIVE base (oid, type, modifier, not_null, has_default) AS (
    SELECT oid, oid, -1, false, false FROM pg_type
    UNION ALL
    SELECT base.oid, t.typbasetype, greatest(modifier, t.typtypmod), not_null OR t.typnotnull,
           has_default OR t.typdefault IS NOT NULL
    FROM base JOIN pg_type t ON t.oid = base.type WHERE t.typtype = 'd')
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, greatest(a.atttypmod, base.modifier),
       NOT (a.attnotnull OR base.not_null), a.atthasdef OR a.attidentity <> '' OR base.has_default,
       a.attgenerated <> '' OR a.attidentity = 'a', base.type::bigint, t.typcategory IN ('A', 'C', 'R'),
       coalesce((SELECT collisdeterministic FROM pg_collation c WHERE c.oid = a.attcollation), true)
FROM pg_attribute a JOIN base ON base.oid = a.atttypid JOIN pg_type t ON t.oid = base.type
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND t.typtype <> 'd'
ORDER BY a.attnum"""
# The types inside of others, in order; a domain is the type that it is of.
_INSIDE: Final = """
SELECT t.typname,
       CASE WHEN e.oid IS NOT NULL THEN 'array' WHEN r.rngsubtype IS NOT NULL THEN 'range'
            WHEN t.typtype = 'c' THEN 'row' ELSE '' END,
       t.typtypmod, nullif(t.typbasetype, 0)::bigint, coalesce(e.oid, r.rngsubtype)::bigint,
       (SELECT json_agg(json_build_array(a.atttypid::bigint, a.atttypmod, a.attname) ORDER BY a.attnum)
        FROM pg_attribute a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
WHERE t.oid = %s"""


_KINDS_OF: Final = {
    "topic": ("text", "varchar", "bpchar"),
    "partition": ("int2", "int4", "int8"),
    "offset": ("int8",),
    "timestamp": ("timestamptz", "timestamp"),
}
"""The types that can hold the coordinates of records."""
_CLOCKS: Final = ("time", "timetz", "timestamp", "timestamptz", "interval")
_MOST_DIGITS: Final = 6  # of a second


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table: `schema.table`, or `table` in the first schema of the search path.

    `str` is the name, quoted for SQL.
    """

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> TableName:
        """Parse a name without quotes."""
        schema, _, name = text.rpartition(".")
        return cls(schema, name)

    def __str__(self) -> str:
        return ".".join(quote(part) for part in (self.schema, self.name) if part)

    def beside(self, name: str) -> TableName:
        """Return the table of another name in the same schema."""
        return TableName(self.schema, name)


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a text without backslashes."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """The definition of a table, at the time of `read_table`."""

    name: TableName
    columns: tuple[PostgresColumn, ...]

    def coordinates(self, only: Sequence[str] | None) -> list[str]:
        """Return the columns that can hold the coordinates of records (`kmr.record.COORDINATES`).

        Args:
            only: the columns that are written; None: all.
        """
        return [
            column.name
            for column in self.columns
            if column.kind in _KINDS_OF.get(column.name, ())
            and (only is None or column.name in only)
        ]


async def read_table(connection: Connection, name: TableName) -> PostgresTable | None:
    """Read the definition of a table, without generated columns; None if there is no such table."""
    rows = await (await connection.execute(_COLUMNS, (str(name),))).fetchall()
    columns = []
    for row in rows:
        column, type_name, kind, modifier, nullable, has_default = row[:6]
        generated, oid, has_items, is_literal = row[6:]
        if generated:
            continue
        made = await _container(connection, oid, modifier) if has_items else _column(kind, modifier)
        columns.append(
            made._replace(
                name=column,
                type_name=type_name,
                nullable=nullable,
                has_default=has_default,
                is_literal=is_literal,
            )
        )
    return PostgresTable(name, tuple(columns)) if rows else None


def _column(kind: str, modifier: int) -> PostgresColumn:
    """Return a column of a type without its name."""
    has_clock = kind in _CLOCKS and modifier & 0xFFFF <= _MOST_DIGITS
    return PostgresColumn(
        "",
        kind,
        kind,
        _digits(kind, modifier),
        modifier - 4 if kind in ("varchar", "bpchar") and modifier > 4 else None,
        clock=modifier & 0xFFFF if has_clock else None,
    )


async def _container(connection: Connection, oid: int, modifier: int) -> PostgresColumn:
    """Return a column of a type that may have others inside, without its name."""
    found = await (await connection.execute(_INSIDE, (oid,))).fetchone()
    if found is None:  # dropped a moment ago
        return _column("", modifier)
    kind, form, own, base, item, fields = found
    if base is not None:
        return await _container(connection, base, max(modifier, own))
    inside = fields or ([] if item is None else [(item, modifier if form == "array" else -1, "")])
    items = [
        (await _container(connection, each, limit))._replace(name=name)
        for each, limit, name in inside
    ]
    return _column(kind, modifier)._replace(form=form if items else "", items=tuple(items))


def _digits(kind: str, modifier: int) -> tuple[int, int] | None:
    """Decode precision and scale of a `numeric`; the scale is from -1000 to 1000."""
    if kind != "numeric" or modifier < 0:
        return None
    return (modifier - 4) >> 16, ((modifier - 4) & 0x7FF ^ 1024) - 1024


def create_table(name: TableName, schema: pa.Schema, key: Sequence[str] = ()) -> str:
    """Return the CREATE TABLE for rows with the columns of a schema.

    Args:
        key: the columns of the primary key; none without one.

    Raises:
        StrategyError: the schema is empty, or PostgreSQL has no type for a column.
    """
    if not len(schema):
        raise StrategyError(f"the rows for {name} have no columns: declare some")
    columns = []
    for field in schema:
        try:
            kind = column_type(field.type)
        except StrategyError as error:
            raise StrategyError(f"column {field.name}: {error}") from error
        columns.append(f"{quote(field.name)} {kind}{'' if field.nullable else ' NOT NULL'}")
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    return f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)})"
