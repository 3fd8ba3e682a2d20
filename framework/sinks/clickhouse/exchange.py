"""Exchange two tables of ClickHouse while their writers run: see `fences`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clickhouse_connect.driver.binding import quote_identifier

from ...errors import StrategyError
from ...service.threads import run_in_thread
from ..exchanging import TableExchange, TableFacts, require_plain, same_table
from .client import connect
from .fences import Fence, fences_in, place_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from ..exchanging import VersionGroups
    from .writer import ClickHouseWriter

_DATABASE: Final = "SELECT engine FROM system.databases WHERE name = {database:String}"
_TABLES: Final = """
SELECT name, engine, total_rows, total_bytes, create_table_query, dependencies_table
FROM system.tables
WHERE database = {database:String} AND (name IN {names:Array(String)}
    OR position(create_table_query, '`kmr {"was":') > 0)"""
_COLUMNS: Final = """
SELECT table, groupArray(name) FROM (
    SELECT table, name FROM system.columns
    WHERE database = {database:String} AND table IN {names:Array(String)} ORDER BY position
) GROUP BY table"""
_ATOMIC: Final = ("Atomic", "Overlay")  # the second is the default database of chDB


@dataclass(frozen=True, slots=True)
class _ExchangedTables:
    """The two tables: name now, row of system.tables, columns."""

    new: dict[str, Any]
    old: dict[str, Any]
    columns: dict[str, tuple[str, ...]]


class ClickHouseExchange(TableExchange):
    """See `TableExchange`.

    Args:
        writer: of the new version.
        replaced: the table that readers use, with or without its database.
    """

    def __init__(self, writer: ClickHouseWriter, replaced: str, groups: VersionGroups) -> None:
        self._target, self._name = writer.target()
        database, _, self._replaced = replaced.rpartition(".")
        self._groups = groups
        for name in (self._name, self._replaced):
            require_plain(name, "a table")
        if database not in ("", self._target.database):
            raise StrategyError(
                f"{self._target.database}.{self._name} and {replaced} are in different "
                "databases; let the new version write to a table beside the old one"
            )
        if writer.changes:
            raise StrategyError(
                "ClickHouseWriter(changes=True) empties its table without a token where the "
                "source was truncated, so its tables are not exchanged while it runs. Stop both versions, "
                "run EXCHANGE TABLES, and start the new one with the other name"
            )

    async def look(self) -> tuple[TableFacts, TableFacts]:
        return await run_in_thread(self._look)

    async def statements(self) -> list[str]:
        return await run_in_thread(self._with_client, self._statements)

    async def run(self) -> None:
        await run_in_thread(self._with_client, self._run)

    def _with_client(self, call: Any) -> Any:
        with connect(self._target) as client:
            return call(client)

    def _look(self) -> tuple[TableFacts, TableFacts]:
        found: _ExchangedTables = self._with_client(self._find)
        new, old = (
            TableFacts(
                each["name"],
                found.columns.get(each["name"], ()),
                each["total_rows"],
                each["total_bytes"],
            )
            for each in (found.new, found.old)
        )
        return new, old

    def _find(self, client: Client) -> _ExchangedTables:
        where: dict[str, Any] = {"database": self._target.database}
        where["names"] = [self._name, self._replaced]
        rows = {row["name"]: row for row in client.query(_TABLES, where).named_results()}
        definitions = {name: str(row["create_table_query"]) for name, row in rows.items()}
        name = place_of(definitions, self._name, self._groups.new[0]) or self._name
        where["names"] = [name, self._replaced]
        columns = {row[0]: tuple(row[1]) for row in client.query(_COLUMNS, where).result_rows}
        for each in (name, self._replaced):
            if each not in rows:
                raise StrategyError(
                    f"there is no table {self._target.database}.{each}. Start the new version "
                    "first, and name with --replaces the table that readers use"
                )
            self._check(rows[each])
        engines = client.query(_DATABASE, where).result_rows
        if not engines or engines[0][0] not in _ATOMIC:
            kind = engines[0][0] if engines else "unknown"
            raise StrategyError(
                f"the database {self._target.database} has the engine {kind}; EXCHANGE TABLES "
                "is one step in a database of the engine Atomic"
            )
        fences = fences_in(rows[name]["create_table_query"])
        if name == self._replaced and not any(self._groups.new == each.groups for each in fences):
            raise StrategyError(same_table(name))
        return _ExchangedTables(rows[name], rows[self._replaced], columns)

    def _check(self, row: dict[str, Any]) -> None:
        table, engine = f"{self._target.database}.{row['name']}", str(row["engine"])
        if engine == "Distributed":
            raise StrategyError(
                f"{table} is Distributed: its rows are in tables of several servers, which are "
                "not exchanged in one step"
            )
        if not engine.endswith("MergeTree"):
            raise StrategyError(f"{table} is a {engine}, not a MergeTree")
        if engine.startswith(("Replicated", "Shared")):
            raise StrategyError(
                f"{table} is {engine}: each replica has names of its own, so there is no one "
                "step for all. Stop both versions, run EXCHANGE TABLES ... ON CLUSTER, and start the new one "
                "with the other name"
            )
        if views := row["dependencies_table"]:
            raise StrategyError(
                f"{table} feeds the materialized view {', '.join(views)}, which belongs to the "
                "name and not to the table: it would have rows of both versions. Drop it, and fill one from "
                "the new table"
            )

    def _statements(self, client: Client) -> list[str]:
        found = self._find(client)
        new, old, groups = found.new["name"], found.old["name"], self._groups
        # Writers of still earlier versions know the name, too.
        earlier = (fence.refuses for fence in fences_in(found.old["create_table_query"]))
        refused = {*groups.old, *(group for each in earlier for group in each)} - {*groups.new}
        return [
            Fence(new, groups.new, tuple(sorted(refused))).statement(self._quoted(new)),
            Fence(old, groups.old, groups.new).statement(self._quoted(old)),
            f"EXCHANGE TABLES {self._quoted(new)} AND {self._quoted(old)}",
        ]

    def _run(self, client: Client) -> None:
        for statement in self._statements(client):
            client.command(statement)

    def _quoted(self, name: str) -> str:
        return f"{quote_identifier(self._target.database)}.{quote_identifier(name)}"
