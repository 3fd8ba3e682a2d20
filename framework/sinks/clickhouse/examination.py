"""What a worker would meet at a ClickHouse table, for `kmr doctor`. It creates and alters nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier

from ...record import filled
from ...reducers.finding import Finding, compare_clocks
from ..answers import one_line
from ..choosing import choose
from .counting import advice_to_count, columns_to_count
from .deduplication import read_memories
from .inserts import moved
from .table import MissingTable, read_table

if TYPE_CHECKING:
    from ...reducers.finding import Level
    from ...reducers.reducer import Context
    from .client import ClickHouseConnection
    from .table import ClickHouseTable
    from .writer import ClickHouseWriter

_SERVER_SQL: Final = (
    "SELECT version() AS version, toUnixTimestamp64Milli(now64(3)) AS now, currentUser() AS user"
)


@dataclass(eq=False)
class Examination:
    """One examination of a writer's table; `connection`: to the server; the caller closes it."""

    writer: ClickHouseWriter
    connection: ClickHouseConnection
    database: str
    name: str
    context: Context
    _user: str = field(default="", init=False)
    _found: list[Finding] = field(default_factory=list, init=False)

    async def run(self, declared: pa.Schema | None) -> list[Finding]:
        """Return what was found.

        Args:
            declared: the columns of the rows; None if they are not known.

        Raises:
            StrategyError: the table and the writer do not fit.
            Exception: the client's own.
        """
        await self._server()
        try:
            table = await read_table(self.connection, self.database, self.name, self.context.group)
        except MissingTable:
            await self._missing(self.writer.create_statement(declared), declared)
            return self._found
        self._note("ok", f"table {table} exists ({table.engine})")
        if message := moved(self.name, table):
            self._note("warning", *message.split(". ", 1))
        self.name = table.name
        await self._memory()
        await self._turns(table)
        await self._privileges(table, declared)
        if declared is not None:
            coordinates = filled(declared, table.coordinates(self.writer.columns))
            await self._columns(table, pa.schema([*declared, *coordinates]))
        return self._found

    def _note(self, level: Level, text: str, remedy: str = "") -> None:
        self._found.append(Finding(level, self.context.stage, text, remedy))

    async def _server(self) -> None:
        before = time.time()
        (server,) = await self.connection.rows(_SERVER_SQL, {})
        after = time.time()
        self._user = server["user"]
        self._note("ok", f"ClickHouse {server['version']} answers, as user {self._user}")
        theirs = server["now"] / 1000
        self._found.append(compare_clocks(self.context.stage, theirs, before, after))

    async def _missing(self, statement: str, declared: pa.Schema | None) -> None:
        name = f"{self.database}.{self.name}"
        if self.writer.create:
            self._note("ok", f"table {name} will be created: {one_line(statement)}")
            for doubt in self.writer.doubts(declared):
                self._note("warning", *_halves(doubt.replace(". ", "; ", 1)))
            await self._require("CREATE TABLE", "the worker will not start")
            await self._require("INSERT", "every flush will fail")
        else:
            self._note(
                "problem",
                f"there is no table {name}: the worker will not start",
                f"create it, or set create=True: {one_line(statement)}",
            )

    async def _privileges(self, table: ClickHouseTable, declared: pa.Schema | None) -> None:
        await self._require("INSERT", "every flush will fail")
        if self.writer.capabilities.delivery != "exactly-once":
            return
        names: set[str] = set() if declared is None else set(declared.names)
        if advice := advice_to_count(table, self.writer.columns, names):
            self._note("warning", *_halves(advice))
        elif columns_to_count(table, self.writer.columns):
            await self._require(
                "SELECT(topic, partition, offset)",
                "exactly-once counts rows there, and the worker will stop",
            )
            if table.is_replicated and not table.engine.startswith("Shared"):
                await self._require(
                    "SYSTEM SYNC REPLICA", "a flush that must be repeated stops the worker"
                )

    async def _require(self, privilege: str, without: str) -> None:
        """Note a problem if our user lacks a privilege on the table; `without`: what happens then."""
        table = f"{quote_identifier(self.database)}.{quote_identifier(self.name)}"
        granted = await self.connection.is_granted(privilege, table)
        if granted is None:
            self._note("ok", f"this version cannot tell whether {self._user} may {privilege}")
        elif not granted:
            self._note(
                "problem",
                f"user {self._user} must not {privilege} at {self.database}.{self.name}: {without}",
                f"run GRANT {privilege} ON {table} TO {quote_identifier(self._user)}",
            )

    async def _memory(self) -> None:
        memories = await read_memories(self.connection, self.database, self.name)
        prepares = self.context.for_sinks.prepare
        advices = [each.advice() for each in memories if not (prepares and each.remedy)]
        if not prepares:
            self.writer.choose_delivery(memories)
        for memory in memories:
            if prepares and memory.remedy:
                self._note("ok", f"prepare_table will run {memory.remedy}")
        if prepares and any(memory.remedy for memory in memories):
            await self._require("ALTER SETTINGS", "prepare_table will fail")
        for advice in dict.fromkeys(advice for advice in advices if advice is not None):
            self._note("warning", *_halves(advice))
        if not any(advices):
            self._note(
                "ok",
                f"it recognises repeated INSERTs: delivery is {self.writer.capabilities.delivery}",
            )

    async def _turns(self, table: ClickHouseTable) -> None:
        """Tell from how many partitions on rows wait longer than `max_age` for an INSERT of their own."""
        writer, can = self.writer, self.writer.capabilities
        rate, age = can.flushes_per_second, writer.max_age
        if can.delivery != "exactly-once" or rate is None or age is None:
            return
        if can.joins_rows and await writer.takes_joined(self.connection, table):
            return
        self._note(
            "ok",
            f"each partition has INSERTs of its own, {rate:g} a second in a worker (inserts_per_second): "
            f"with more than {rate * max(age, 1.0):.0f} partitions it does not keep max_age ({age:g} s). "
            "A table that can be counted by topic, partition and offset, without PARTITION BY, TTL and views "
            "takes them together",
        )

    async def _columns(self, table: ClickHouseTable, declared: pa.Schema) -> None:
        writer, names = self.writer, declared.names
        new = [name for name in names if name not in {each.name for each in table.columns}]
        if writer.evolve is not None and writer.columns is None and new:
            self._note("ok", f"evolve will add the columns {', '.join(new)}")
            await self._require("ALTER ADD COLUMN", "the worker stops at the first new column")
            names = [name for name in names if name not in new]
        choice = choose(table, table.columns, names, writer.columns, writer.extra_columns)
        block = table.cast([declared.empty_table().select(names)], choice)
        misfit = choice.misfit(names, block.fitted.general, f"which has no DEFAULT in {table}")
        if misfit is not None:
            self._note("problem", f"the declared columns do not fit: {misfit}")
        else:
            self._note("ok", f"the {len(choice.columns)} declared columns fit the table")


def _halves(advice: str) -> tuple[str, str]:
    """Divide an advice into the fact and the remedy."""
    fact, _, remedy = advice.rpartition("; ")
    return fact, remedy
