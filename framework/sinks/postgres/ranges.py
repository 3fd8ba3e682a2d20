"""The table `kmr_ranges`: which ranges of offsets are in the tables beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.types.json import Jsonb

from ...errors import SinkError
from .table import TableName, literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..exchanging import VersionGroups
    from ..planning import RangeRows
    from .connection import Connection

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS {ranges} (
    sink text NOT NULL,
    token text NOT NULL,
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition int NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    generation bigint NOT NULL,
    refused jsonb,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, token)
);
CREATE INDEX IF NOT EXISTS kmr_ranges_of_partitions
    ON {ranges} (sink, consumer_group, topic, partition)"""

_OF_PARTITION: Final = """sink = %(sink)s AND consumer_group = %(group)s AND topic = %(topic)s
    AND partition = %(partition)s"""
_COVERED: Final = f"""%(ordered)s AND {_OF_PARTITION}
    AND (generation, last_offset) >= (%(generation)s, %(first)s)"""
# Values are parameters; the name of the table is quoted.
_FIND: Final = f"""
SELECT CASE WHEN token IN (%(token)s, %(moved)s) THEN refused END, generation, token = %(moved)s
FROM {{ranges}}
WHERE sink = %(sink)s AND token IN (%(token)s, %(moved)s) OR {_COVERED}
ORDER BY token = %(moved)s DESC, token = %(token)s DESC LIMIT 1"""  # noqa: S608
_CLAIM: Final = f"""
INSERT INTO {{ranges}}
    (sink, token, consumer_group, topic, partition, first_offset, last_offset, generation)
SELECT %(sink)s, %(token)s, %(group)s, %(topic)s, %(partition)s, %(first)s, %(last)s, %(generation)s
WHERE NOT EXISTS (SELECT FROM {{ranges}}
                  WHERE sink = %(sink)s AND token = %(moved)s OR {_COVERED})
ON CONFLICT DO NOTHING"""  # noqa: S608
_LOCK: Final = """
SELECT pg_advisory_xact_lock(hashtextextended(
    concat_ws(' ', 'kmr', %(sink)s::text, %(group)s::text, %(topic)s::text, %(partition)s::text), 0))"""
_REFUSE: Final = """
UPDATE {ranges} SET refused = %(refused)s WHERE sink = %(sink)s AND token = %(token)s"""
_PRUNE: Final = f"""
DELETE FROM {{ranges}} WHERE {_OF_PARTITION} AND token <> %(token)s AND CASE WHEN %(ordered)s
    THEN (generation, last_offset) < (%(generation)s, %(first)s)
    ELSE written_at < (SELECT max(written_at) - interval '1 day' FROM {{ranges}}
                       WHERE {_OF_PARTITION} AND token <> %(token)s) END"""  # noqa: S608


# `kmr cutover` has exchanged the table: where a group's rows go instead.
MOVED: Final = "moved:"
_OF_MOVES: Final = -2  # their partition
_PLACE: Final = "SELECT refused->>'to' FROM {ranges} WHERE sink = %s AND token = %s"


class TableMoved(Exception):
    """The table of the group has another name since `kmr cutover`.

    Attributes:
        to: the name, without its schema.
    """

    def __init__(self, to: str) -> None:
        super().__init__(to)
        self.to = to


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """A range of a sink.

    Attributes:
        ordered: the ranges of the partition are written one after the other, as they are announced. So one
            of them is there also if another one ends at its first offset or later, and only the last is
            kept. Others are kept for a day.
    """

    sink: str
    group: str
    rows: RangeRows
    ordered: bool

    def parameters(self) -> dict[str, Any]:
        """Return the values for the statements."""
        span = self.rows.span
        return {
            "sink": self.sink,
            "token": self.rows.token,
            "moved": f"{MOVED}{self.group}",
            "group": self.group,
            "topic": "" if span is None else span.topic,
            "partition": -1 if span is None else span.partition,
            "first": 0 if span is None else span.first,
            # Others may be written before and after those between them: such a range covers nothing.
            "last": -1 if span is None or not self.ordered else span.last,
            "generation": 0 if span is None else span.generation,
            "ordered": self.ordered,
        }


@dataclass(frozen=True, slots=True)
class Ranges:
    """The statements on the table of ranges. `claim`, `refuse` and `prune` belong into one transaction."""

    name: TableName

    def create_statement(self) -> str:
        """Return the statements that make the table."""
        return _TABLE.format(ranges=self.name)

    async def find(self, connection: Connection, entry: RangeEntry) -> dict[int, str] | None:
        """Return the rows that a range refused, with the reasons; None if the range is not there.

        Raises SinkError if a later generation of the offsets was written, and TableMoved.
        """
        found = await (await self._run(connection, _FIND, entry)).fetchone()
        if found is None:
            return None
        if found[2]:
            raise TableMoved(found[0]["to"])
        span = entry.rows.span
        if span is not None and 0 < span.generation < found[1]:
            raise SinkError(
                f"{entry.sink}: {span.topic_partition}[{span.first}..{span.last}] is of generation "
                f"{span.generation} of the offsets, and generation {found[1]} was written. Either this "
                "process was suspended while the offsets were reset, and may end; or the clock where they "
                "were reset was behind: set it, and run kmr offsets reset "
                f"{span.topic_partition.flags} --to-offset {span.first}"
            )
        return {int(row): reason for row, reason in (found[0] or {}).items()}

    async def place_of(self, connection: Connection, table: TableName, group: str) -> TableName:
        """Return the name that a group's table has now."""
        while True:
            question = _PLACE.format(ranges=self.name).encode()
            answer = await connection.execute(question, (str(table), f"{MOVED}{group}"))
            found = await answer.fetchone()
            if found is None:
                return table
            table = table.beside(found[0])

    async def are_moved(
        self, connection: Connection, table: TableName, groups: Sequence[str]
    ) -> bool:
        """Return whether groups that wrote to a table write to another one now."""
        places = [await self.place_of(connection, table, group) for group in groups]
        return all(place != table for place in places)

    async def claim(self, connection: Connection, entry: RangeEntry) -> bool:
        """Enter a range; return False if it is there, or the table was exchanged.

        Waits for another transaction that enters it.
        """
        if entry.ordered:
            # Else a writer that was suspended might not see a later range that prunes its own right now.
            await self._run(connection, _LOCK, entry)
        return bool((await self._run(connection, _CLAIM, entry)).rowcount)

    async def refuse(
        self, connection: Connection, entry: RangeEntry, refused: Mapping[int, str]
    ) -> None:
        """Enter the rows that the range refused."""
        await self._run(connection, _REFUSE, entry, refused=Jsonb(refused))

    async def prune(self, connection: Connection, entry: RangeEntry) -> None:
        """Remove ranges of the partition that are not looked for any more."""
        await self._run(connection, _PRUNE, entry)

    async def _run(
        self, connection: Connection, statement: str, entry: RangeEntry, **more: object
    ) -> Any:
        query = statement.format(ranges=self.name).encode()
        return await connection.execute(query, {**entry.parameters(), **more})


def move_statements(
    ranges: TableName, new: TableName, old: TableName, groups: VersionGroups
) -> tuple[str, ...]:
    """Return the statements that let `kmr_ranges` follow two tables that exchange their names.

    Args:
        new, old: the names before, with their schema. A writer may name its table without it.
    """
    short = [TableName("", each.name) for each in (new, old)]
    sinks = [(literal(str(a)), literal(str(b))) for a, b in ((new, old), short)]
    cases = " ".join(f"WHEN {a} THEN {b} WHEN {b} THEN {a}" for a, b in sinks)
    names = ", ".join(name for pair in sinks for name in pair)
    every = ", ".join(literal(group) for group in (*groups.new, *groups.old))
    moves = ", ".join(
        f"({sink}, {literal(MOVED + group)}, {literal(group)}, '', {_OF_MOVES}, 0, -1, 0, "
        f"jsonb_build_object('to', {literal(to.name)}))"
        for before, after in sinks
        for sink, to, some in ((before, old, groups.new), (after, new, groups.old))
        for group in some
    )
    # Names and groups are quoted.
    follow = (
        f"UPDATE {ranges} SET sink = CASE sink {cases} END "  # noqa: S608
        f"WHERE sink IN ({names}) AND partition <> {_OF_MOVES}"
    )
    forget = (
        f"DELETE FROM {ranges} WHERE sink IN ({names}) "  # noqa: S608
        f"AND partition = {_OF_MOVES} AND consumer_group IN ({every})"
    )
    enter = (
        f"INSERT INTO {ranges} (sink, token, consumer_group, topic, partition, first_offset, "  # noqa: S608
        f"last_offset, generation, refused) VALUES {moves}"
    )
    return follow, forget, enter
