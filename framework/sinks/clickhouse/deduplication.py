"""How long a table remembers its inserts, by which it recognises one that is repeated.

A table without replication remembers a number of inserts. A replicated one also forgets them by age, since
25.10 after an hour (measured against newer inserts). The target table of a materialized view remembers for
itself: since 26.2 a repeated INSERT reaches it, and doubles its rows if it remembers nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clickhouse_connect.driver.binding import quote_identifier

if TYPE_CHECKING:
    from .client import ClickHouseConnection

ENOUGH_TOKENS = 10_000
"""The number of inserts whose tokens a table should remember."""

ENOUGH_SECONDS = 7 * 24 * 3600
"""How long a replicated table should remember a token: longer than a partition may be without a worker."""

REPLICATED = ("Replicated", "Shared")
"""The names of engines whose replicas share data and memory begin with one of these."""

_INSERTS = "replicated_deduplication_window"
_SECONDS = "replicated_deduplication_window_seconds"
_REACHES_VIEWS = "deduplicate_blocks_in_dependent_materialized_views"

_TABLE_SQL = """
SELECT engine, engine_full FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""
_DEFAULTS_SQL = """
SELECT name, value FROM system.%s WHERE name IN ({inserts:String}, {seconds:String})"""
_SETTING_SQL = "SELECT value FROM system.settings WHERE name = {name:String}"
_DEDUPLICATION = {"insert_deduplicate": "1", "deduplicate_insert": "enable"}
_VIEWS_SQL = """
SELECT view.1 AS database, view.2 AS name FROM (
    SELECT arrayJoin(arrayZip(dependencies_database, dependencies_table)) AS view FROM system.tables
    WHERE database = {database:String} AND name = {table:String})"""
_VIEW_SQL = """
SELECT engine, toString(uuid) AS uuid, create_table_query AS definition FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""
_ATOMIC_SQL = """
SELECT partition_key, length(dependencies_table) AS views FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""
_HIDDEN = "hidden"  # in place of the engine of a table that our user does not see
_TO = re.compile(r" TO (?:`((?:[^`\\]|\\.)+)`|(\w+))\.(?:`((?:[^`\\]|\\.)+)`|(\w+))")


def needed_settings(*, replicated: bool) -> dict[str, int]:
    """Return the settings, and their least values, with which a table remembers enough for exactly once."""
    if replicated:
        return {_INSERTS: ENOUGH_TOKENS, _SECONDS: ENOUGH_SECONDS}
    return {f"non_{_INSERTS}": ENOUGH_TOKENS}


@dataclass(frozen=True, slots=True)
class InsertMemory:
    """What one table remembers of its inserts.

    Attributes:
        inserts: how many; None if its engine never recognises a repeated one.
        seconds: for how long at most; None: without a limit.
        engine: `hidden` if our user does not see the table.
        view: the materialized view that writes to the table; empty for the table of the writer.
    """

    database: str
    name: str
    engine: str
    inserts: int | None
    seconds: int | None = None
    view: str = ""

    @property
    def deduplicates(self) -> bool:
        """Whether the table recognises a repeated INSERT, at least for a while."""
        return bool(self.inserts)

    @property
    def remedy(self) -> str | None:
        """The statement that makes the table remember enough; None if it does, or never can."""
        if self.inserts is None:
            return None
        needed = needed_settings(replicated=self.engine.startswith(REPLICATED)).items()
        present = (self.inserts, self.seconds)
        settings = [
            f"{name} = {least}"
            for (name, least), value in zip(needed, present, strict=False)
            if value is not None and value < least
        ]
        if not settings:
            return None
        table = f"{quote_identifier(self.database)}.{quote_identifier(self.name)}"
        return f"ALTER TABLE {table} MODIFY SETTING {', '.join(settings)}"

    def advice(self) -> str | None:
        """Return how to make the table recognise repeated INSERTs; None if nothing need be done."""
        table = f"{self.database}.{self.name}"
        if self.engine in ("Distributed", "Null"):
            behind = "its views fill" if self.engine == "Null" else "it distributes to"
            return (
                f"the engine {self.engine} of {table} does not deduplicate: an INSERT that is repeated after "
                f"a lost answer may double rows in the tables that {behind}; write to one of them"
            )
        if self.engine == _HIDDEN:
            hidden = f"{quote_identifier(self.database)}.{quote_identifier(self.name)}"
            return (
                f"the view {self.view} writes to another table, and our user does not see {table}: whether "
                "an INSERT that is repeated after a lost answer doubles its rows is not known; "
                f"run GRANT SHOW ON {hidden} TO our user"
            )
        if self.view:
            table += f", the target of the view {self.view},"
        if self.inserts is None:
            return (
                f"the engine {self.engine} of {table} does not deduplicate: an INSERT that is repeated "
                "after a lost answer doubles its rows; use an engine of the MergeTree family"
            )
        if self.remedy is None:
            return None
        limit = "" if self.seconds is None else f", for {self.seconds} s"
        return (
            f"{table} remembers the last {self.inserts} inserts only{limit}: an INSERT that is repeated "
            f"after a lost answer may double its rows; run {self.remedy} or start with --prepare-table"
        )


async def read_deduplication(connection: ClickHouseConnection) -> dict[str, str]:
    """Return the settings of an INSERT that let the server recognise a repetition, of those that it knows.

    A profile or a URL may have turned them off.
    """
    return {
        name: value
        for name, value in _DEDUPLICATION.items()
        if await connection.rows(_SETTING_SQL, {"name": name})
    }


async def takes_joined(connection: ClickHouseConnection, database: str, table: str) -> bool:
    """Return whether ranges of several partitions may be one INSERT, of which all is written or nothing.

    Not into several parts, and not into the tables of views: there, the token of one range that is written
    alone would hide the rows of the others.
    """
    found = await connection.rows(_ATOMIC_SQL, {"database": database, "table": table})
    return not any(row["partition_key"] or row["views"] for row in found)


async def read_memories(
    connection: ClickHouseConnection, database: str, table: str
) -> list[InsertMemory]:
    """Read what a table remembers, and, if repeated INSERTs reach them, the targets of its views.

    Returns:
        The table first; nothing if there is no such table.
    """
    found = await _read(connection, database, table, "")
    reaches = await connection.rows(_SETTING_SQL, {"name": _REACHES_VIEWS})
    if not reaches or reaches[0]["value"] != "1":
        return found
    seen = {(database, table)}
    for memory in found:  # grows: a target may have views itself
        where = {"database": memory.database, "table": memory.name}
        for view in await connection.rows(_VIEWS_SQL, where):
            found += await _read_target(connection, view["database"], view["name"], seen)
    return found


async def _read_target(
    connection: ClickHouseConnection, database: str, view: str, seen: set[tuple[str, str]]
) -> list[InsertMemory]:
    """Read what the target of a view remembers, unless it was seen before."""
    name = f"{database}.{view}"
    rows = await connection.rows(_VIEW_SQL, {"database": database, "table": view})
    if not rows:
        return [InsertMemory(database, view, _HIDDEN, None, None, name)]
    if rows[0]["engine"] != "MaterializedView":
        return []
    target = target_of(database, view, rows[0]["uuid"], rows[0]["definition"])
    if target in seen:
        return []
    seen.add(target)
    hidden = InsertMemory(*target, _HIDDEN, None, None, name)
    return await _read(connection, *target, name) or [hidden]


def target_of(database: str, view: str, uuid: str, definition: str) -> tuple[str, str]:
    """Return database and name of the table that a materialized view writes to."""
    head = definition.partition(" AS SELECT ")[0]
    if named := _TO.search(head):
        return named[1] or named[2], named[3] or named[4]
    inner = f".inner.{view}" if set(uuid) <= {"0", "-"} else f".inner_id.{uuid}"
    return database, inner


async def _read(
    connection: ClickHouseConnection, database: str, name: str, view: str
) -> list[InsertMemory]:
    found = await connection.rows(_TABLE_SQL, {"database": database, "table": name})
    if not found:
        return []
    engine, definition = found[0]["engine"], found[0]["engine_full"]
    if not engine.endswith("MergeTree"):
        return [InsertMemory(database, name, engine, None, None, view)]
    replicated = engine.startswith(REPLICATED)
    inserts = _INSERTS if replicated else f"non_{_INSERTS}"
    defaults = await connection.rows(
        _DEFAULTS_SQL % f"{'replicated_' if replicated else ''}merge_tree_settings",
        {"inserts": inserts, "seconds": _SECONDS},
    )
    values = {row["name"]: int(row["value"]) for row in defaults}
    for setting in (inserts, _SECONDS):
        if stated := re.search(rf"\b{setting}\s*=\s*'?(\d+)", definition):
            values[setting] = int(stated[1])
    seconds = values.get(_SECONDS) if replicated else None
    return [InsertMemory(database, name, engine, values.get(inserts, 0), seconds, view)]
