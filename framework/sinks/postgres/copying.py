"""Write rows into a table, and find those that the server refuses: the others are written.

COPY is tried first; a part that is refused is halved. A small part is inserted row by row, by one statement
that runs in the server. While such parts have many refused rows, the next ones are larger and not copied
first: so 30,000 refused rows of 32,768 take seconds. A part that takes longer than the timeout, for a slow
trigger, is divided too; a row that alone takes longer is refused, if the server writes the others.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
from psycopg import sql

from ...columns.kinds import whole
from ...columns.reasons import cannot_hold
from ...columns.texts import POSTGRES, text_of
from ...errors import StrategyError
from ...service.threads import run_in_thread
from ..answers import Answer, PutOff, of_postgres, of_sqlstate, put_off
from .table import quote
from .types import copy_columns, copy_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    import pyarrow as pa

    from .connection import Connection
    from .pace import Pace
    from .table import TableName
    from .types import PostgresColumn


_PIECE: Final = 1 << 20  # bytes
_SMALL: Final = 256  # rows; fewer are inserted one by one
_LARGE: Final = 2_048  # the same, where many are refused
_MANY: Final = 128  # one refused row of so many: most parts of 256 have some
_MOST_BYTES: Final = 16 << 20  # of a part that is inserted one by one
_SECURITY: Final = "SELECT row_security_active(to_regclass(%s))"

# Its values are literals without a type, so that the server reads them as COPY does. Errors do not name the
# column: of a row with a wrong value, each is cast alone.
_ONE_BY_ONE: Final = """
DO $kmr$
DECLARE
    line record;
    cast_alone record;
    refused json[] := '{}';
    detail text;
    state text;
    message text;
    wrong int;
    stored int := 0;
    count int;
BEGIN
    FOR line IN
        SELECT number - 1 AS number, cells AS row_of, (
            SELECT string_agg(quote_nullable(cell), ', ' ORDER BY at)
            FROM json_array_elements_text(cells) WITH ORDINALITY AS each(cell, at)) AS cells
        FROM json_array_elements(current_setting('kmr.rows')::json) WITH ORDINALITY AS rows(cells, number)
    LOOP
        BEGIN
            EXECUTE current_setting('kmr.insert') || '(' || line.cells || ')' || current_setting('kmr.after');
            GET DIAGNOSTICS count = ROW_COUNT;
            stored := stored + count;
        EXCEPTION WHEN ASSERT_FAILURE OR OTHERS THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            state := SQLSTATE;
            message := SQLERRM;
            wrong := NULL;
            IF state ~ '^(22|42601|23514|0A)' THEN
                FOR cast_alone IN
                    SELECT (each.value->>0)::int AS at, line.row_of->>(each.value->>0)::int AS cell,
                           each.value->>1 AS type
                    FROM json_array_elements(current_setting('kmr.casts')::json) AS each
                LOOP
                    BEGIN
                        EXECUTE 'SELECT ' || quote_nullable(cast_alone.cell) || '::' || cast_alone.type;
                    EXCEPTION WHEN OTHERS THEN
                        wrong := cast_alone.at;
                        EXIT;
                    END;
                END LOOP;
            END IF;
            refused := array_append(refused, json_build_array(line.number, state, message, detail, wrong));
        END;
    END LOOP;
    PERFORM set_config('kmr.refused', json_build_array(stored, refused)::text, true);
END $kmr$"""
_GIVE: Final = """
SELECT set_config('kmr.insert', %s, true), set_config('kmr.after', %s, true),
       set_config('kmr.rows', %s, true), set_config('kmr.casts', %s, true)"""
_TAKE: Final = "SELECT current_setting('kmr.refused')"


class ServerAnswer(Exception):
    """The server's answer is not about single rows."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class _TooSlow(Exception):
    """The server has cancelled a statement for the timeout."""


@dataclass(slots=True)
class Transaction:
    """A transaction that writes into a table.

    Attributes:
        pace: how many rows a statement gets.
        progress: called before each step; none takes longer than the caller's timeout for a statement.
        divides_later: an answer "later" is taken for one about some of the rows, where others are stored.
    """

    connection: Connection
    table: TableName
    pace: Pace
    progress: Callable[[], None]
    divides_later: bool


class Copying:
    """Writes rows in a transaction.

    Attributes:
        stored: how many rows the server has stored: a trigger may leave others out.
    """

    def __init__(self, transaction: Transaction, columns: Sequence[PostgresColumn]) -> None:
        self._transaction = transaction
        self._connection, self._pace = transaction.connection, transaction.pace
        self._columns = columns
        self._names = ", ".join(quote(column.name) for column in columns)
        casts = [(at, each.type_name) for at, each in enumerate(columns)]
        self.stored = 0
        self._late = PutOff[Answer]()
        self._casts = msgspec.json.encode(casts).decode()
        self._is_secured = False
        self._insert = f"INSERT INTO {transaction.table} ({self._names}) VALUES "  # noqa: S608  quoted
        self._after = ""

    async def write(self, rows: pa.Table) -> dict[int, Answer]:
        """Write rows; return the answers about those that the server refuses.

        Raises:
            ServerAnswer: another answer than about rows.
            psycopg.Error: the connection is lost.
        """
        refused: dict[int, Answer] = {}
        table = await run_in_thread(copy_columns, rows)
        self._is_secured = await self._has_row_security()
        todo = [(0, table.num_rows)] if table.num_rows else []
        many = self._is_secured  # COPY would be in vain
        slow: dict[int, int] = {}  # rows that were too slow alone, how often
        while todo:
            start, stop = todo.pop()
            count = stop - start
            self._transaction.progress()
            if self._pace.rows is not None and count > self._pace.rows:
                middle = start + self._pace.rows
                todo += [(middle, stop), (start, middle)]
                continue
            part = table.slice(start, count)
            try:
                if not many and await self._copied(part):
                    continue
                small = count <= (_LARGE if many else _SMALL) and part.nbytes <= _MOST_BYTES
                if count == 1 or small:
                    found = await self._one_by_one(part)
                    refused.update((start + row, answer) for row, answer in found.items())
                    many = self._is_secured or len(found) * _MANY >= count
                    continue
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
            except _TooSlow:
                self._pace.exceeded(count)
                if count > 1:
                    todo.append((start, stop))
                    continue
                slow[start] = slow.get(start, 0) + 1
                if not self.stored and len(slow) > 1:
                    raise ServerAnswer(Answer("later", self._too_slow)) from None
                if slow[start] > 1:
                    refused[start] = Answer("rows", self._too_slow)
                else:  # once more, when the others are written
                    todo.insert(0, (start, stop))
        self._late.is_written = self.stored > 0
        if (late := self._late.reason_to_wait) is not None:
            raise ServerAnswer(late)
        return refused

    @property
    def _too_slow(self) -> str:
        return (
            f"the server takes more than {self._pace.timeout:g} s for one row: look at its triggers and "
            "constraints, or raise PostgresWriter(timeout=...)"
        )

    @asynccontextmanager
    async def _timed(self, rows: int) -> AsyncIterator[None]:
        """Run the statements for a part behind a savepoint. Raises _TooSlow if they exceed the timeout."""
        began = time.monotonic()
        try:
            async with self._connection.transaction():
                yield
        except psycopg.errors.QueryCanceled as error:
            if time.monotonic() - began < self._pace.timeout / 2:  # somebody has cancelled it
                raise
            raise _TooSlow from error
        self._pace.took(rows, time.monotonic() - began)

    async def _has_row_security(self) -> bool:
        """Return whether policies limit our rows: COPY does not work then."""
        found = await (
            await self._connection.execute(_SECURITY, (str(self._transaction.table),))
        ).fetchone()
        return bool(found and found[0])

    async def _copied(self, part: pa.Table) -> bool:
        """Copy rows, behind a savepoint; return False if the server refuses some."""
        text = await run_in_thread(copy_text, part)
        try:
            async with self._timed(part.num_rows):
                stored = await self._copy(text)
        except psycopg.Error as error:
            answer = of_postgres(error)
            if answer.kind == "later" and not (
                self._transaction.divides_later and answer.may_be_of_rows
            ):
                raise
            if answer.kind == "stop":
                raise ServerAnswer(answer) from error
            return False
        self.stored += stored
        return True

    async def _copy(self, text: bytes) -> int:
        """Write the rows of a part, which are all written or none; return how many are stored."""
        return await self._send(str(self._transaction.table), text)

    async def _send(self, table: str, text: bytes) -> int:
        statement = f"COPY {table} ({self._names}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
        async with self._connection.cursor() as cursor:
            async with cursor.copy(statement.encode()) as copy:
                for at in range(0, len(text), _PIECE):
                    await copy.write(text[at : at + _PIECE])
            return cursor.rowcount

    async def _one_by_one(self, part: pa.Table) -> dict[int, Answer]:
        rows = await run_in_thread(_cells, part)
        execute: Any = self._connection.execute
        async with self._timed(part.num_rows):
            await execute(_GIVE, (self._insert, self._after, rows, self._casts))
            await execute(sql.SQL(_ONE_BY_ONE))
            (found,) = await (await execute(_TAKE)).fetchone()
        stored, answers = msgspec.json.decode(found)
        self.stored += stored
        refused = {}
        for row, state, text, detail, wrong in answers:
            answer = of_sqlstate(state, text, detail)
            if wrong is None:  # the server cuts bits to their length where it casts them alone
                of_type = [
                    at
                    for at, each in enumerate(self._columns)
                    if f"type {each.type_name}" in text and part.column(at)[row].is_valid
                ]
                wrong = of_type[0] if len(of_type) == 1 else None
            if wrong is not None:
                value = part.column(wrong)[row].as_py()
                column = self._columns[wrong]
                named = cannot_hold(column.name, column.type_name, value)
                answer = replace(answer, reason=f"{named}: {answer.reason}")
            if state == "42501" and self._is_secured:  # a policy refuses the row
                answer = Answer("rows", answer.reason)
            if self._transaction.divides_later and answer.may_be_of_rows:
                self._late.note(answer)
                answer = Answer("rows", put_off(answer.reason))
            if answer.kind in ("later", "stop"):
                raise ServerAnswer(answer)
            refused[row] = answer
        return refused


def _cells(part: pa.Table) -> str:
    """Return the rows as a JSON array of arrays of texts, as `copy_text` writes them."""
    columns = [text_of(whole(column), POSTGRES).to_pylist() for column in part.columns]
    return msgspec.json.encode(list(zip(*columns, strict=True))).decode()


_UNIQUE: Final = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
GROUP BY i.indexrelid"""
_NUMBERS: Final = count()


class _StagedCopying(Copying):
    """Applies rows to a table by way of a temporary one.

    Args:
        apply: the statement that applies all rows; `{staged}` is the temporary table.
        one: the statement for one row, up to the parenthesis of its values; `{values}`.
        after: the end of that statement.
    """

    def __init__(
        self,
        transaction: Transaction,
        columns: Sequence[PostgresColumn],
        apply: str,
        one: str,
        after: str = "",
    ) -> None:
        super().__init__(transaction, columns)
        self._apply = apply
        self._insert, self._after = one, after

    async def _copy(self, text: bytes) -> int:
        staged = quote(f"kmr_staged_{next(_NUMBERS)}")
        rows = f"SELECT {self._names} FROM {self._transaction.table} WITH NO DATA"  # noqa: S608  quoted
        make = f"CREATE TEMP TABLE {staged} ON COMMIT DROP AS {rows}"
        await self._connection.execute(make.encode())
        await self._send(staged, text)
        applied = await self._connection.execute(self._apply.format(staged=staged).encode())
        await self._connection.execute(f"DROP TABLE {staged}".encode())
        return applied.rowcount


def upserting(
    transaction: Transaction, columns: Sequence[PostgresColumn], key: Sequence[str]
) -> Copying:
    """Return what inserts rows, or updates those with their keys."""
    names = ", ".join(quote(column.name) for column in columns)
    keys = ", ".join(map(quote, key))
    others = [quote(column.name) for column in columns if column.name not in key]
    updates = ", ".join(f"{name} = excluded.{name}" for name in others)
    conflict = f" ON CONFLICT ({keys}) DO {f'UPDATE SET {updates}' if others else 'NOTHING'}"
    into = f"INSERT INTO {transaction.table} ({names})"
    apply = f"{_braces(into)} SELECT {_braces(names)} FROM {{staged}}{_braces(conflict)}"  # noqa: S608  quoted
    return _StagedCopying(transaction, columns, apply, f"{into} VALUES ", conflict)


def deleting(transaction: Transaction, columns: Sequence[PostgresColumn]) -> Copying:
    """Return what deletes the rows with some keys; `columns` are those of the key."""
    table, names = transaction.table, [quote(column.name) for column in columns]
    same = " AND ".join(f"t.{name} = s.{name}" for name in names)
    apply = f"DELETE FROM {_braces(str(table))} t USING {{staged}} s WHERE {_braces(same)}"  # noqa: S608  quoted
    one = f"DELETE FROM {table} WHERE ({', '.join(names)}) = "  # noqa: S608  quoted
    return _StagedCopying(transaction, columns, apply, one)


async def delete_ended(
    connection: Connection,
    table: TableName,
    columns: Sequence[PostgresColumn],
    keys: pa.Table,
    deleted: Sequence[bool],
) -> None:
    """Delete the rows whose last change is a delete, where the table holds keys equal that differ for us.

    Args:
        columns: those of the key.
        keys: of changes that the table has taken, in order; texts that it casts.
        deleted: which of the changes are deletes.
    """
    names = [quote(column.name).replace("%", "%%") for column in columns]
    into = str(table).replace("%", "%%")
    cells = [f"(cells->>{at})::{column.type_name}" for at, column in enumerate(columns)]
    same = " AND ".join(f"t.{name} = e.{name}" for name in names)
    key = ", ".join(names)
    # The empty first half gives the columns their collations.
    statement = f"""
WITH given AS (
    SELECT {key}, NULL::bigint AS "kmr at", NULL::boolean AS "kmr gone" FROM {into} WHERE false
    UNION ALL SELECT {", ".join(cells)}, at, (%s::json->>(at - 1)::int)::boolean
    FROM json_array_elements(%s::json) WITH ORDINALITY AS rows(cells, at)),
ended AS (SELECT DISTINCT ON ({key}) * FROM given ORDER BY {key}, "kmr at" DESC)
DELETE FROM {into} t USING ended e WHERE "kmr gone" AND {same}"""  # noqa: S608  quoted
    gone = msgspec.json.encode(deleted).decode()
    await connection.execute(statement.encode(), (gone, await run_in_thread(_cells, keys)))


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
