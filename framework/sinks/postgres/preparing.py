"""The tables that a writer needs, its own and `kmr_ranges`: created, read, and checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import structlog

from ...errors import SinkError, StrategyError
from ...record import filled
from ...reducers.finding import Finding, compare_clocks
from ...reducers.sink import declared_columns
from ..answers import one_line
from ..choosing import choose, schema_to_create
from .copying import check_key
from .ranges import Ranges
from .table import TableName, create_table, quote, read_table
from .types import targets

if TYPE_CHECKING:
    from ...reducers.reducer import Context
    from ..changes import Changes
    from .connection import Connection
    from .table import PostgresTable
    from .writer import PostgresWriter

_RANGES_NEED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_SERVER: Final = "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())"
_MAY_CREATE: Final = """
SELECT has_schema_privilege(to_regnamespace(quote_ident(name))::oid, 'CREATE'), name, current_user
FROM (SELECT coalesce(nullif(%s, ''), current_schema(), current_setting('search_path')) AS name) AS wanted"""

_log = structlog.get_logger(__name__)


class WriterTables:
    """The table of a writer, and `kmr_ranges` beside it.

    Args:
        changes: how the writer applies changes; None if it only adds rows.
        connection: to the server; the caller closes it.
    """

    def __init__(
        self,
        writer: PostgresWriter,
        changes: Changes | None,
        connection: Connection,
        context: Context,
    ) -> None:
        self._writer = writer
        self._changes = changes
        self._connection = connection
        self._context = context
        self._name = TableName.of(writer.table)
        self._ranges = Ranges(self._name.beside("kmr_ranges"))

    async def prepare(self) -> PostgresTable:
        """Create the tables that are missing; return the one of the rows.

        Raises:
            StrategyError: there is no such table, or a permission is missing.
            psycopg.Error: the server refuses a statement.
        """
        found = await self._read_or_create()
        await self._require(self._name, *self._needs)
        if self._changes is not None:
            await check_key(self._connection, self._name, self._changes.key)
        ranges = self._ranges
        if await read_table(self._connection, ranges.name) is None:
            await self._make(ranges.create_statement())
        await self._require(ranges.name, *_RANGES_NEED)
        return found

    async def examine(self) -> list[Finding]:
        """Return for `kmr doctor` what a worker would meet, and create nothing. Raises as `prepare`."""
        stage, before = self._context.stage, time.time()
        answer = await self._connection.execute(_SERVER)
        version, now = await answer.fetchone() or ("", 0.0)
        found = [
            Finding("ok", stage, f"PostgreSQL {version} answers"),
            compare_clocks(stage, float(now), before, time.time()),
        ]
        table = await read_table(self._connection, self._name)
        to_create = []
        if table is None:
            statement = await self._create_statement()
            to_create.append(statement)
            if not self._writer.create:
                raise self._missing(statement)
            found.append(
                Finding("ok", stage, f"{self._writer} will be created: {one_line(statement)}")
            )
        else:
            await self._require(self._name, *self._needs)
            if self._changes is not None:
                await check_key(self._connection, self._name, self._changes.key)
            found.append(Finding("ok", stage, f"{self._writer} exists, and may be written to"))
            declared = await declared_columns(self._context)
            if declared is not None:
                if self._changes is not None:
                    declared = self._changes.columns(declared)
                coordinates = filled(declared, table.coordinates(self._writer.columns))
                declared = pa.schema([*declared, *coordinates])
                found.append(self._examine_columns(table, declared, stage))
        ranges = self._ranges
        has_ranges = await read_table(self._connection, ranges.name) is not None
        if has_ranges:
            await self._require(ranges.name, *_RANGES_NEED)
        else:
            to_create.append(ranges.create_statement())
        if to_create:
            await self._require_create("; ".join(to_create))
        state = "exists, and may be written to" if has_ranges else "will be created"
        found.append(Finding("ok", stage, f"{ranges.name} {state}"))
        return found

    def _examine_columns(self, table: PostgresTable, declared: pa.Schema, stage: str) -> Finding:
        choice = choose(
            self._writer,
            table.columns,
            declared.names,
            self._writer.columns,
            self._writer.extra_columns,
        )
        fitted = choice.fit(declared.empty_table(), targets(choice.columns))
        misfit = choice.misfit(declared.names, fitted.general, "which cannot be null")
        if misfit is not None:
            return Finding("problem", stage, f"the declared columns do not fit: {misfit}")
        return Finding("ok", stage, f"the {len(choice.columns)} declared columns fit")

    async def _require_create(self, statement: str) -> None:
        """Raise StrategyError if there is no schema for a table, or if none may be created there."""
        answer = await self._connection.execute(_MAY_CREATE, (self._name.schema,))
        granted, schema, user = await answer.fetchone() or (None, "", "")
        if granted is None:
            raise StrategyError(
                f"{self._writer}: there is no schema {schema}; run: CREATE SCHEMA {quote(schema)}"
            )
        if not granted:
            raise StrategyError(
                f"{self._writer}: {user} must not CREATE in the schema {schema}; as its owner run: "
                f"GRANT CREATE ON SCHEMA {quote(schema)} TO {quote(user)}, or {one_line(statement)}"
            )

    @property
    def _needs(self) -> tuple[str, ...]:
        """The privileges on the table."""
        return ("INSERT",) if self._changes is None else ("SELECT", "INSERT", "UPDATE", "DELETE")

    async def _read_or_create(self) -> PostgresTable:
        found = await read_table(self._connection, self._name)
        if found is not None:
            return found
        statement = await self._create_statement()
        if not self._writer.create:
            raise self._missing(statement)
        await self._make(statement)
        found = await read_table(self._connection, self._name)
        if found is None:
            raise SinkError(f"{self._writer} is gone, though it was just created")
        return found

    def _missing(self, statement: str) -> StrategyError:
        return StrategyError(
            f"There is no {self._writer}. Create it, or set create=True: {one_line(statement)}"
        )

    async def _create_statement(self) -> str:
        declared = await declared_columns(self._context)
        schema = schema_to_create(
            self._writer.table, self._writer.create, declared, self._changes, self._writer.columns
        )
        if schema is None:
            raise StrategyError(
                f"There is no {self._writer}, and the columns of its rows are not declared. Create it, or "
                "declare them with Strategy(value=Json(Hit)), the map's return annotation (-> Hit), "
                "@map_record(schema=...) or PostgresWriter(create=pa.schema(...))"
            )
        return create_table(self._name, schema, () if self._changes is None else self._changes.key)

    async def _make(self, statement: str) -> None:
        """Create a table. Another process may do the same at the same time."""
        await self._require_create(statement)
        async with self._connection.transaction():
            await self._connection.execute("SELECT pg_advisory_xact_lock(hashtext('kmr'))")
            await self._connection.execute(statement.encode())
        _log.info("table created", statement=" ".join(statement.split()))

    async def _require(self, name: TableName, *privileges: str) -> None:
        """Raise StrategyError unless the user has these privileges on a table."""
        for privilege in privileges:
            answer = await self._connection.execute(
                "SELECT has_table_privilege(to_regclass(%s), %s), current_user",
                (str(name), privilege),
            )
            granted, user = await answer.fetchone() or (False, "")
            if not granted:
                raise StrategyError(
                    f"{self._writer}: {user} must not {privilege} in {name}; as its owner run: "
                    f"GRANT {', '.join(privileges)} ON {name} TO {quote(user)}"
                )
