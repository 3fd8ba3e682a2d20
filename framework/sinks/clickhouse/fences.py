"""Constraints by which two tables that `kmr cutover` exchanged refuse each other's writers.

A worker writes by name, and EXCHANGE TABLES gives the name to another table. So each of the two tables gets a
constraint before: it refuses INSERTs whose deduplication token begins with the other group. A constraint
belongs to the table, not to its name, so no INSERT gets into the wrong table, however late it comes. The name
of the constraint says whose table it is, and what it was called: a worker that is refused finds its table by
that, under its new name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from clickhouse_connect.driver.binding import quote_identifier

from ...errors import StrategyError
from .ddl import quote_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .client import ClickHouseConnection

_IN_NAME: Final = re.compile(r"`kmr (\{[^`]*?\})` CHECK")
_REFUSED: Final = re.compile(r"Constraint `kmr \{")
_LONGEST: Final = 64  # characters of a group in a token of several partitions, or with a digest
_DEFINITION: Final = """
SELECT create_table_query FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""
_DEFINITIONS: Final = """
SELECT name, create_table_query FROM system.tables
WHERE database = {database:String} AND position(create_table_query, '`kmr {"was":') > 0"""


class Fence(msgspec.Struct, frozen=True):
    """A constraint of a table.

    Attributes:
        was: the name of the table before the exchange.
        groups: whose table it is.
        refuses: the groups that must not write into it.
    """

    was: str
    groups: tuple[str, ...]
    refuses: tuple[str, ...]

    def statement(self, table: str) -> str:
        """Return the ALTER TABLE that adds the constraint; `table`: quoted."""
        groups = "|".join(re.escape(part) for each in self.refuses for part in _beginnings(each))
        pattern = quote_text(f"^(?:{groups}):")
        return (
            f"ALTER TABLE {table} ADD CONSTRAINT IF NOT EXISTS {quote_identifier(self._name)} "
            f"CHECK NOT match(getSetting('insert_deduplication_token'), {pattern})"
        )

    @property
    def _name(self) -> str:
        return f"kmr {msgspec.json.encode(self).decode()}"


def _beginnings(group: str) -> tuple[str, ...]:
    return (group,) if len(group) <= _LONGEST else (group, group[:_LONGEST])


def fences_in(create_statement: str) -> list[Fence]:
    """Return the fences in the CREATE TABLE statement of a table."""
    return [msgspec.json.decode(each, type=Fence) for each in _IN_NAME.findall(create_statement)]


def is_refused(message: str) -> bool:
    """Return whether a fence refused an INSERT, by the server's answer."""
    return _REFUSED.search(message) is not None


async def is_exchanged(
    connection: ClickHouseConnection, database: str, name: str, group: str
) -> bool:
    """Return whether the table of this name must not be written by a group. Raises the client's errors."""
    rows = await connection.rows(_DEFINITION, {"database": database, "table": name})
    return any(refuses(row["create_table_query"], group) for row in rows)


def refuses(create_statement: str, group: str) -> bool:
    """Return whether a table must not be written by a group."""
    return any(group in fence.refuses for fence in fences_in(create_statement))


async def new_name(
    connection: ClickHouseConnection, database: str, name: str, group: str
) -> str | None:
    """Return what the table of a group is called now, if it was exchanged; None if there is none.

    Args:
        name: of the group's table before, which is now another group's, or is missing.

    Raises:
        Exception: the client's own.
    """
    rows = await connection.rows(_DEFINITIONS, {"database": database})
    return place_of({row["name"]: row["create_table_query"] for row in rows}, name, group)


def place_of(definitions: Mapping[str, str], name: str, group: str) -> str | None:
    """Return the new name of a table that was exchanged; None if it has its own, or is gone.

    Args:
        definitions: the CREATE TABLE statement of each table that may be it, by name.
    """
    if name in definitions and not refuses(definitions[name], group):
        return None
    for each, definition in definitions.items():
        ours = any(fence.was == name and group in fence.groups for fence in fences_in(definition))
        if ours and not refuses(definition, group):
            return each
    return None


def refusal(table: str, group: str) -> StrategyError:
    """Return the error for a group whose table is gone."""
    return StrategyError(
        f"{table} refuses rows of group {group}: kmr cutover put it in the place of that group's table, "
        "which has been dropped. Write into another table, or stop this worker"
    )
