"""Upserts and deletes by key: one INSERT ... ON CONFLICT and one DELETE for a range.

Rows are copied to a temporary table first. What the server refuses is bisected as other rows are (`Copying`),
so a row that violates a constraint goes to `reduce_err` and the others are written.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from ...errors import StrategyError
from .copying import Copying
from .table import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .connection import Connection
    from .table import TableName
    from .types import PostgresColumn

_UNIQUE: Final = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
GROUP BY i.indexrelid"""
_NUMBERS: Final = count()


class _Staged(Copying):
    """Applies rows to a table by way of a temporary one.

    Args:
        apply: the statement that applies all rows; `{staged}` is the temporary table.
        one: the statement for one row, up to the parenthesis of its values; `{values}`.
        after: the end of that statement.
    """

    def __init__(
        self,
        connection: Connection,
        table: TableName,
        columns: Sequence[PostgresColumn],
        progress: Callable[[], None],
        apply: str,
        one: str,
        after: str = "",
    ) -> None:
        super().__init__(connection, table, columns, progress)
        self._apply = apply
        self._insert, self._after = one, after
        self._of_copy = ", ".join(quote(column.name) for column in columns)

    async def _copy(self, text: bytes) -> None:
        staged = quote(f"kmr_staged_{next(_NUMBERS)}")
        rows = f"SELECT {self._of_copy} FROM {self._table} WITH NO DATA"  # noqa: S608  quoted
        make = f"CREATE TEMP TABLE {staged} ON COMMIT DROP AS {rows}"
        await self._connection.execute(make.encode())
        await self._send(
            f"COPY {staged} ({self._of_copy}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')", text
        )
        await self._connection.execute(self._apply.format(staged=staged).encode())
        await self._connection.execute(f"DROP TABLE {staged}".encode())


def upserting(
    connection: Connection,
    table: TableName,
    columns: Sequence[PostgresColumn],
    key: Sequence[str],
    progress: Callable[[], None],
) -> Copying:
    """Return what inserts rows, or updates those with their keys."""
    names = [quote(column.name) for column in columns]
    keys = ", ".join(map(quote, key))
    others = [quote(column.name) for column in columns if column.name not in key]
    updates = ", ".join(f"{name} = excluded.{name}" for name in others)
    conflict = f" ON CONFLICT ({keys}) DO {f'UPDATE SET {updates}' if others else 'NOTHING'}"
    into = f"INSERT INTO {table} ({', '.join(names)})"
    rows = _braces(", ".join(names))
    apply = f"{_braces(into)} SELECT {rows} FROM {{staged}}{_braces(conflict)}"  # noqa: S608  quoted
    return _Staged(connection, table, columns, progress, apply, f"{into} VALUES ", conflict)


def deleting(
    connection: Connection,
    table: TableName,
    columns: Sequence[PostgresColumn],
    progress: Callable[[], None],
) -> Copying:
    """Return what deletes the rows with some keys; `columns` are those of the key."""
    names = [quote(column.name) for column in columns]
    same = " AND ".join(f"t.{name} = s.{name}" for name in names)
    apply = f"DELETE FROM {_braces(str(table))} t USING {{staged}} s WHERE {_braces(same)}"  # noqa: S608  quoted
    one = f"DELETE FROM {table} WHERE ({', '.join(names)}) = "  # noqa: S608  quoted
    return _Staged(connection, table, columns, progress, apply, one)


def _braces(text: str) -> str:
    """Keep braces in names from `str.format`."""
    return text.replace("{", "{{").replace("}", "}}")


async def check_key(connection: Connection, name: TableName, key: Sequence[str]) -> None:
    """Check that a table has a unique index on exactly these columns. Raises StrategyError if not."""
    found = await (await connection.execute(_UNIQUE, (str(name),))).fetchall()
    if not any(set(columns) == set(key) for (columns,) in found):
        columns = ", ".join(map(quote, key))
        raise StrategyError(
            f"PostgreSQL table {name} has no primary key, and no unique index, on {columns}, the columns of "
            f"key=; run ALTER TABLE {name} ADD PRIMARY KEY ({columns})"
        )
