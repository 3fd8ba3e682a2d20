"""The table `kmr_ranges`: which ranges of offsets are in the tables beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.types.json import Jsonb

from ...errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..planning import RangeRows
    from .connection import Connection
    from .table import TableName

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
SELECT CASE WHEN token = %(token)s THEN refused END, generation FROM {{ranges}}
WHERE sink = %(sink)s AND token = %(token)s OR {_COVERED}
ORDER BY token = %(token)s DESC LIMIT 1"""  # noqa: S608
_CLAIM: Final = f"""
INSERT INTO {{ranges}}
    (sink, token, consumer_group, topic, partition, first_offset, last_offset, generation)
SELECT %(sink)s, %(token)s, %(group)s, %(topic)s, %(partition)s, %(first)s, %(last)s, %(generation)s
WHERE NOT EXISTS (SELECT FROM {{ranges}} WHERE {_COVERED})
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


@dataclass(frozen=True, slots=True)
class Entry:
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

    async def find(self, connection: Connection, entry: Entry) -> dict[int, str] | None:
        """Return the rows that a range refused, with the reasons; None if the range is not there.

        Raises SinkError if a later generation of the offsets was written.
        """
        found = await (await self._run(connection, _FIND, entry)).fetchone()
        if found is None:
            return None
        span = entry.rows.span
        if span is not None and 0 < span.generation < found[1]:
            raise SinkError(
                f"{entry.sink}: {span.topic_partition}[{span.first}..{span.last}] is of generation "
                f"{span.generation} of the offsets, and generation {found[1]} was written. Either this "
                "process was suspended while the offsets were reset, and may end; or the clock where they "
                f"were reset was behind: set it, and run kmr offsets reset --to-offset {span.first}"
            )
        return {int(row): reason for row, reason in (found[0] or {}).items()}

    async def claim(self, connection: Connection, entry: Entry) -> bool:
        """Enter a range; return False if it is there. Waits for another transaction that enters it."""
        if entry.ordered:
            # Else a writer that was suspended might not see a later range that prunes its own right now.
            await self._run(connection, _LOCK, entry)
        return bool((await self._run(connection, _CLAIM, entry)).rowcount)

    async def refuse(
        self, connection: Connection, entry: Entry, refused: Mapping[int, str]
    ) -> None:
        """Enter the rows that the range refused."""
        await self._run(connection, _REFUSE, entry, refused=Jsonb(refused))

    async def prune(self, connection: Connection, entry: Entry) -> None:
        """Remove ranges of the partition that are not looked for any more."""
        await self._run(connection, _PRUNE, entry)

    async def _run(
        self, connection: Connection, statement: str, entry: Entry, **more: object
    ) -> Any:
        query = statement.format(ranges=self.name).encode()
        return await connection.execute(query, {**entry.parameters(), **more})
