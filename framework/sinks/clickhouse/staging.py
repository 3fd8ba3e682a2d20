"""Rows of a Spark job: each task stages its own in a table, the driver publishes those of a batch once.

1. A task writes its rows into a staging table of its own, in numbered blocks.
2. The driver writes into the ledger which staging tables make the batch. The first entry of a batch counts:
   a driver that comes later publishes the tables of that entry, and drops its own.
3. Each block, or each range of offsets, is published by one `INSERT SELECT` with a deduplication token, so
   that it can be repeated.
4. The ledger gets the entry `published`, and the staging tables are dropped.

So it does not matter where a driver or a task dies, and whether a repeated batch has its rows in other tasks.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier

from ...errors import KmrError, SinkError, StrategyError
from ...record import OFFSET_COLUMNS
from ..answers import connected, of_clickhouse
from ..choosing import choose
from .client import ClickHouseAddress, connect_async
from .ddl import create_table, quote_text
from .deduplication import read_deduplication, read_memories
from .staged_ranges import publish_ranges
from .table import MissingTable, read_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from ..choosing import Choice, ExtraColumns
    from .client import ClickHouseConnection
    from .ddl import TableLayout
    from .table import ClickHouseColumn, ClickHouseTable

BLOCK: Final = "_kmr_block"
_CONNECT: Final = 10.0  # seconds
_REQUEST: Final = 300.0  # seconds for one request
_LEDGER_TOKENS: Final = 10_000
_NEVER_NULLABLE: Final = (
    *("Nullable(", "LowCardinality(", "Array(", "Map(", "Tuple(", "Nested(", "AggregateFunction("),
    *("SimpleAggregateFunction(", "Variant(", "Dynamic", "JSON", "Object("),
)
_ONE_BLOCK: Final = {
    "max_threads": 1,
    "max_insert_threads": 1,
    "max_block_size": 100_000_000,
    "preferred_block_size_bytes": 0,
    "min_insert_block_size_rows": 100_000_000,
    "min_insert_block_size_bytes": 0,
    "insert_null_as_default": 1,
    "async_insert": 0,
}
"""Settings with which a block is published as one block."""
_LEDGER_SQL: Final = (
    "SELECT state, staged FROM {ledger} WHERE job = {{job:String}} AND batch = {{batch:Int64}}"
)
_LEFT_SQL: Final = """
SELECT name FROM system.tables
WHERE database = {database:String} AND startsWith(name, {beginning:String})"""


class StagedRows(NamedTuple):
    """What a task has staged: the name of the table, "" if there are no rows, and how many blocks it has."""

    table: str
    blocks: int


@dataclass(frozen=True)
class StagedTable:
    """The table that rows are published to.

    Attributes:
        url, database: as for `ClickHouseWriter`.
        create: make the table, if it is missing, with the columns of the rows.
        extra: what happens to columns that the table lacks.
        range_offsets: the rows carry topic, partition and offset, and are published by ranges of at most so
            many offsets; None: by the blocks of the tasks.
    """

    name: str
    url: str | None
    database: str | None
    create: bool
    layout: TableLayout
    extra: ExtraColumns
    range_offsets: int | None = None

    @property
    def _target(self) -> ClickHouseAddress:
        return ClickHouseAddress.of(self.url, self.database)

    async def using(self, work: Callable[[ClickHouseConnection], Awaitable[Any]]) -> Any:
        """Call a coroutine function with a connection. Errors of the client become one line.

        Raises:
            SinkError: the server does not answer, or refuses.
        """
        target = self._target
        connection: ClickHouseConnection = await connected(
            target,
            _CONNECT,
            lambda: connect_async(
                target, settings={}, connect_timeout=_CONNECT, timeout=_REQUEST, options={}
            ),
            of_clickhouse,
        )
        try:
            return await work(connection)
        except KmrError:
            raise
        except Exception as error:
            reason = of_clickhouse(error).reason
            raise SinkError(f"{target}: table {self.name}: {reason}") from error
        finally:
            await connection.close()

    async def prepare(self, connection: ClickHouseConnection, schema: pa.Schema) -> None:
        """Create the table and the ledger where they are missing, and check the columns of the rows.

        Raises:
            StrategyError: rows with these columns do not fit, there is no such table, or it does not
                recognise a repeated INSERT.
        """
        database = self._target.database
        self._require_coordinates(schema.names, "the rows")
        try:
            table = await read_table(connection, database, self.name, "")
        except MissingTable:
            statement = create_table(database, self.name, schema, self.layout)
            if not self.create:
                raise StrategyError(
                    f"There is no table {database}.{self.name}. Create it, or set create=true: "
                    + " ".join(statement.split())
                ) from None
            await connection.execute(statement)
            table = await read_table(connection, database, self.name, "")
        self._require_coordinates([column.name for column in table.columns], str(table))
        choice = self._choice(table, schema)
        block = table.cast([schema.empty_table()], choice)
        misfit = choice.misfit(
            schema.names, block.fitted.general, f"which has no DEFAULT in {table}"
        )
        if misfit is not None:
            raise StrategyError(f"the columns of the rows do not fit {table}: {misfit}")
        for memory in await read_memories(connection, database, self.name):
            if not memory.deduplicates:
                raise StrategyError(
                    f"{memory.database}.{memory.name} does not recognise a repeated INSERT; "
                    + (f"run {memory.remedy}" if memory.remedy else str(memory.advice()))
                )
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._quoted(self._ledger)} (job String, batch Int64, "
            "state LowCardinality(String), staged String, at DateTime64(3) DEFAULT now64(3)) "
            "ENGINE = MergeTree ORDER BY (job, batch) "
            f"SETTINGS non_replicated_deduplication_window = {_LEDGER_TOKENS}"
        )

    def _require_coordinates(self, names: Sequence[str], where: str) -> None:
        absent = [name for name in OFFSET_COLUMNS if name not in names]
        if self.range_offsets is not None and absent:
            raise StrategyError(
                f"by_offsets=true needs {', '.join(OFFSET_COLUMNS)}: {where} lack {', '.join(absent)}"
            )

    def _choice(self, table: ClickHouseTable, schema: pa.Schema) -> Choice[ClickHouseColumn]:
        return choose(table, table.columns, schema.names, None, self.extra)

    @property
    def _ledger(self) -> str:
        return f"{self.name}_kmr_batches"

    def _beginning(self, job: str) -> str:
        digest = hashlib.sha256(job.encode()).hexdigest()[:12]
        return f"{self.name}_kmr_staging_{digest}_"

    def _quoted(self, name: str) -> str:
        return f"{quote_identifier(self._target.database)}.{quote_identifier(name)}"

    async def stage(
        self,
        connection: ClickHouseConnection,
        job: str,
        batch: int,
        blocks: Iterable[pa.Table],
    ) -> StagedRows:
        """Write rows into a new staging table, a block for each of the tables that are given.

        Raises:
            SinkError: a row does not fit the table.
        """
        staged, count = "", 0
        table = await read_table(connection, self._target.database, self.name, "")
        for rows in blocks:
            if not rows.num_rows:
                continue
            if self.range_offsets is not None and any(
                rows.column(name).null_count for name in OFFSET_COLUMNS
            ):
                raise SinkError(f"{table}: a row has no {', '.join(OFFSET_COLUMNS)}")
            cast = table.cast([rows], self._choice(table, rows.schema))
            if cast.refused:
                raise SinkError(
                    f"{table}: {len(cast.refused)} of {rows.num_rows} rows do not fit: "
                    f"{next(iter(cast.refused.values()))}"
                )
            if not staged:
                staged = f"{self._beginning(job)}{batch}_{uuid.uuid4().hex[:12]}"
                await connection.execute(self._create_staging(staged, cast.columns))
            numbers = pa.array(np.full(rows.num_rows, count, np.uint32))
            numbered = cast.table.append_column(BLOCK, numbers)
            body = replace(cast, fitted=cast.fitted._replace(table=numbered)).encode(
                0, rows.num_rows, None
            )
            assert body is not None  # noqa: S101  there are rows, and none is refused
            name = self._quoted(staged)
            await connection.insert(name, numbered.column_names, body, {"async_insert": 0})
            count += 1
        return StagedRows(staged, count)

    def _create_staging(self, name: str, columns: Sequence[ClickHouseColumn]) -> str:
        """Return the CREATE TABLE of a staging table. A null stays one, for the DEFAULT of the table."""
        kinds = [
            f"{quote_identifier(each.name)} "
            + (
                f"Nullable({each.type_name})"
                if each.has_default and not each.type_name.startswith(_NEVER_NULLABLE)
                else each.type_name
            )
            for each in columns
        ]
        return (
            f"CREATE TABLE {self._quoted(name)} ({', '.join(kinds)}, {BLOCK} UInt32) "
            f"ENGINE = MergeTree ORDER BY {BLOCK}"
        )

    async def publish(
        self, connection: ClickHouseConnection, job: str, batch: int, staged: Sequence[StagedRows]
    ) -> None:
        """Publish the rows of a batch, once: what an earlier driver has begun is completed instead.

        Raises:
            SinkError: the ledger does not keep the entry.
        """
        mine = [each for each in staged if each.table]
        entries = await self._entries(connection, job, batch)
        if "planned" not in entries and "published" not in entries:
            await self._enter(connection, job, batch, "planned", mine)
            entries = await self._entries(connection, job, batch)
        if "published" not in entries:
            settings = {**_ONE_BLOCK, **await read_deduplication(connection)}
            planned = entries["planned"]
            columns = [await self._staged_columns(connection, job, batch, p) for p in planned]
            if self.range_offsets is None:
                for each, names in zip(planned, columns, strict=True):
                    await self._publish_blocks(connection, each, names, settings)
            elif planned:
                tables = [self._quoted(each.table) for each in planned]
                await publish_ranges(
                    connection,
                    self._quoted(self.name),
                    tables,
                    columns[0],
                    self.range_offsets,
                    settings,
                )
            await self._enter(connection, job, batch, "published", [])
        await self.drop(connection, mine)
        await self._drop_others(connection, job, batch)

    async def _entries(
        self, connection: ClickHouseConnection, job: str, batch: int
    ) -> dict[str, list[StagedRows]]:
        sql = _LEDGER_SQL.format(ledger=self._quoted(self._ledger))
        rows = await connection.rows(sql, {"job": job, "batch": batch})
        return {
            row["state"]: msgspec.json.decode(row["staged"], type=list[StagedRows]) for row in rows
        }

    async def _enter(
        self,
        connection: ClickHouseConnection,
        job: str,
        batch: int,
        state: str,
        staged: Sequence[StagedRows],
    ) -> None:
        """Add an entry to the ledger, unless there is one already: of two with one token the first counts.

        A server that dies may remember the token of an entry that it has lost; then another token is used.
        """
        values = ", ".join(map(quote_text, (state, msgspec.json.encode(staged).decode())))
        deduplication = await read_deduplication(connection)
        for attempt in range(3):
            await connection.execute(
                f"INSERT INTO {self._quoted(self._ledger)} (job, batch, state, staged) "  # noqa: S608
                f"VALUES ({quote_text(job)}, {batch}, {values})",
                {
                    **deduplication,
                    "async_insert": 0,
                    "insert_deduplication_token": f"{job}:{batch}:{state}:{attempt}",
                },
            )
            if state in await self._entries(connection, job, batch):
                return
        raise SinkError(f"{self._ledger} does not keep the entry of batch {batch} of job {job}")

    async def _staged_columns(
        self, connection: ClickHouseConnection, job: str, batch: int, staged: StagedRows
    ) -> list[str]:
        """Return the columns of a staging table. Raises SinkError: it is gone."""
        where = {"database": self._target.database, "beginning": staged.table}
        if not await connection.rows(_LEFT_SQL, where):
            raise SinkError(
                f"the staging table {staged.table} of batch {batch} of job {job} is gone, and the batch is "
                f"not published; compare the rows of {self.name} with the source, and write what is missing"
            )
        described = await connection.rows(f"DESCRIBE TABLE {self._quoted(staged.table)}", {})
        return [row["name"] for row in described if row["name"] != BLOCK]

    async def _publish_blocks(
        self,
        connection: ClickHouseConnection,
        staged: StagedRows,
        names: Sequence[str],
        settings: Mapping[str, Any],
    ) -> None:
        columns = ", ".join(map(quote_identifier, names))
        for number in range(staged.blocks):
            await connection.execute(
                f"INSERT INTO {self._quoted(self.name)} ({columns}) SELECT {columns} "  # noqa: S608
                f"FROM {self._quoted(staged.table)} WHERE {BLOCK} = {number}",
                {**settings, "insert_deduplication_token": f"{staged.table}:{number}"},
            )

    async def drop(self, connection: ClickHouseConnection, staged: Sequence[StagedRows]) -> None:
        """Drop staging tables."""
        for each in staged:
            if each.table:
                await connection.execute(f"DROP TABLE IF EXISTS {self._quoted(each.table)}")

    async def _drop_others(self, connection: ClickHouseConnection, job: str, batch: int) -> None:
        """Drop the staging tables of published batches: of attempts that died, and of other drivers."""
        beginning = self._beginning(job)
        where = {"database": self._target.database, "beginning": beginning}
        for row in await connection.rows(_LEFT_SQL, where):
            number = row["name"].removeprefix(beginning).partition("_")[0]
            if number.isdigit() and int(number) <= batch:
                await connection.execute(f"DROP TABLE IF EXISTS {self._quoted(row['name'])}")
