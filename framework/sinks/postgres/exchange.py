"""Exchange two tables of PostgreSQL while their writers run: renames and `kmr_ranges` in one transaction."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from ...errors import SinkError, StrategyError
from ..answers import of_postgres
from ..exchanging import TableExchange, TableFacts, require_plain, same_table
from .connection import Pool
from .ranges import Ranges, move_statements
from .table import TableName, quote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ..exchanging import VersionGroups
    from .connection import Connection
    from .writer import PostgresWriter

_PATIENCE: Final = 10.0  # seconds to wait for the server, and for locks
_FACTS: Final = """
SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.reltuples::bigint AS rows,
    pg_total_relation_size(c.oid) AS size, pg_has_role(c.relowner, 'USAGE') AS ours, c.oid::int8 AS oid,
    ARRAY(SELECT attname::text FROM pg_attribute
          WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum) AS columns,
    ARRAY(SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
          WHERE d.refobjid = c.oid AND r.ev_class <> c.oid) AS views,
    ARRAY(SELECT conrelid::regclass::text FROM pg_constraint
          WHERE confrelid = c.oid AND contype = 'f') AS referrers
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)"""
_LACKING: Final = """
SELECT format('GRANT %%s ON %%s TO %%s', privilege_type, %(new)s,
              CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
FROM (
    SELECT a.grantee, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
    WHERE c.oid = to_regclass(%(old)s) AND a.grantee <> c.relowner
    EXCEPT
    SELECT a.grantee, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
    WHERE c.oid = to_regclass(%(new)s)
) AS lacking ORDER BY 1"""


class PostgresExchange(TableExchange):
    """See `TableExchange`.

    Args:
        writer: of the new version.
        replaced: the table that readers use, with or without its schema.
    """

    def __init__(self, writer: PostgresWriter, replaced: str, groups: VersionGroups) -> None:
        self._pool = Pool.of(writer.url, writer.timeout)
        self._written, self._replaced = TableName.of(writer.table), TableName.of(replaced)
        self._groups = groups
        self._ranges = Ranges(self._written.beside("kmr_ranges"))
        for name in (writer.table, replaced):
            require_plain(name, "a table")

    async def look(self) -> tuple[TableFacts, TableFacts]:
        async with self._connection() as connection:
            new, old = await self._find(connection)
        return _facts(new), _facts(old)

    async def statements(self) -> list[str]:
        async with self._connection() as connection:
            return self._statements(*await self._find(connection))

    async def run(self) -> None:
        async with self._connection() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE:g}s'".encode())
            for statement in self._statements(*await self._find(connection)):
                await connection.execute(statement.encode())

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        await self._pool.wait(_PATIENCE)
        try:
            async with self._pool.connection() as connection:
                yield connection
        except psycopg.errors.LockNotAvailable:
            raise SinkError(
                f"{self._pool}: a query or a transaction holds a lock on the tables for more than "
                f"{_PATIENCE:g} s, so they were not exchanged; try again when it has ended"
            ) from None
        except (psycopg.Error, OSError) as error:
            raise SinkError(
                f"{self._pool}: the tables were not exchanged: {of_postgres(error).reason}"
            ) from error
        finally:
            await self._pool.close()

    async def _find(self, connection: Connection) -> tuple[dict[str, Any], dict[str, Any]]:
        group = self._groups.new[0]
        name, is_exchanged = self._written, False
        if await self._row(connection, str(self._ranges.name)) is not None:
            name = await self._ranges.place_of(connection, self._written, group)
            is_exchanged = await self._ranges.are_moved(
                connection, self._replaced, self._groups.old
            )
        new, old = [await self._row(connection, str(each)) for each in (name, self._replaced)]
        for each, row in ((name, new), (self._replaced, old)):
            if row is None:
                raise StrategyError(
                    f"there is no table {each}. Start the new version first, and name with "
                    "--replaces the table that readers use"
                )
            _check(row)
        assert new is not None and old is not None  # noqa: S101, PT018  just looked
        if new["schema"] != old["schema"]:
            raise StrategyError(
                f"{name} and {self._replaced} are in different schemas; let the new version "
                "write to a table beside the old one"
            )
        if new["oid"] == old["oid"] and not is_exchanged:
            raise StrategyError(same_table(str(self._replaced)))
        names = {"old": str(self._replaced), "new": str(name)}
        lacking = await (await connection.execute(_LACKING, names)).fetchall()
        if lacking:
            raise StrategyError(
                f"privileges belong to the table, and {name} lacks some of {self._replaced}; "
                f"run: {'; '.join(row[0] for row in lacking)}"
            )
        return new, old

    async def _row(self, connection: Connection, name: str) -> dict[str, Any] | None:
        answer = await connection.execute(_FACTS, (name,))
        row = await answer.fetchone()
        described = answer.description or ()
        return (
            None if row is None else dict(zip([each.name for each in described], row, strict=True))
        )

    def _statements(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
        schema = new["schema"]
        names = [TableName(schema, each["name"]) for each in (new, old)]
        between = f"kmr_cutover_{new['oid']}"
        return [
            # Writers enter their range there before they write: none is between the two.
            f"LOCK TABLE {self._ranges.name} IN EXCLUSIVE MODE",
            f"LOCK TABLE {names[0]}, {names[1]} IN ACCESS EXCLUSIVE MODE",
            f"ALTER TABLE {names[1]} RENAME TO {quote(between)}",
            f"ALTER TABLE {names[0]} RENAME TO {quote(names[1].name)}",
            f"ALTER TABLE {TableName(schema, between)} RENAME TO {quote(names[0].name)}",
            *move_statements(self._ranges.name, names[0], names[1], self._groups),
        ]


def _check(row: Mapping[str, Any]) -> None:
    name = f"{row['schema']}.{row['name']}"
    if row["kind"] not in ("r", "p"):
        raise StrategyError(f"{name} is not a table")
    if not row["ours"]:
        raise StrategyError(
            f"only the owner of {name} may rename it; run it as the owner (KMR_POSTGRES_URL)"
        )
    for what, each in (("view", row["views"]), ("foreign key of", row["referrers"])):
        if each:
            raise StrategyError(
                f"the {what} {', '.join(each)} belongs to the table {name} and not to its "
                "name, so it would follow it. Drop it, and make it again after the exchange"
            )


def _facts(row: Mapping[str, Any]) -> TableFacts:
    rows = row["rows"] if row["rows"] >= 0 else None
    return TableFacts(row["name"], tuple(row["columns"]), rows, row["size"])
