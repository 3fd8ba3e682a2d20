"""Count the offsets in the tables of sinks, to prove that a history is complete."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from ..errors import SinkError
from ..sinks.clickhouse.client import connect
from ..sinks.clickhouse.counting import PLACE, Counting
from ..sinks.clickhouse.writer import ClickHouseWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clickhouse_connect.driver.client import Client
    from numpy.typing import NDArray

    from ..record import TopicPartition
    from ..reducers.reducer import Reducer
    from ..sinks.clickhouse.client import ClickHouseAddress

_TIMEOUT: Final = 600.0  # seconds; a count reads three columns of the whole history
_DESCRIBED: Final = """
SELECT engine, engine_full, sorting_key FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""
_COLUMNS: Final = """
SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}"""
_WITHIN: Final = (
    """partition = {partition:Int64} AND offset >= {first:Int64} AND offset < {until:Int64}"""
)


class OffsetCounts(NamedTuple):
    """Offsets in a table, ascending, and how many rows each has."""

    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]


class NotCounted(Exception):
    """The rows of a sink cannot be counted by offset; the text says why."""


class OffsetTable(Protocol):
    """A table whose rows have the topic, the partition and the offset of their record. It blocks."""

    def perfect(self, at: TopicPartition, first: int, until: int, size: int) -> set[int]:
        """Return which pieces of so many offsets have each of theirs once, by number from `first` on."""

    def find(self, at: TopicPartition, first: int, until: int) -> OffsetCounts:
        """Return the offsets from `first` to the one before `until` that have a row."""


@dataclass(frozen=True, slots=True)
class CountedTable:
    """A table of ClickHouse.

    Attributes:
        source: what follows FROM.
        has_topic: it has a column for the topic.
    """

    target: ClickHouseAddress
    source: str
    has_topic: bool

    @classmethod
    def of(cls, writer: ClickHouseWriter) -> CountedTable:
        """Look at the table of a writer.

        Raises:
            NotCounted: rows may expire or be merged, or have no offset.
            SinkError: the server does not answer.
        """
        target, name = writer.target()
        where = {"database": target.database, "table": name}
        with connect(target) as client:
            described = list(client.query(_DESCRIBED, parameters=where).named_results())
            columns = {row[0] for row in client.query(_COLUMNS, parameters=where).result_rows}
        if not described:
            raise SinkError(f"{target} has no table {target.database}.{name}")
        if not columns.issuperset(PLACE[1:]):
            raise NotCounted(f"{name} has no columns partition and offset")
        facts = described[0]
        counting = Counting.of(facts["engine"], facts["engine_full"], facts["sorting_key"])
        plain = facts["engine"] in ("MergeTree", "ReplicatedMergeTree", "SharedMergeTree")
        if not counting.found or (plain and not counting.missing):
            raise NotCounted(f"{name} ({facts['engine']}) deletes or merges rows")
        final = "" if plain else " FINAL"
        quoted = ".".join(f"`{each.replace('`', '``')}`" for each in (target.database, name))
        return cls(target, quoted + final, PLACE[0] in columns)

    def perfect(self, at: TopicPartition, first: int, until: int, size: int) -> set[int]:
        with self._query(
            "SELECT intDiv(offset - {first:Int64}, {size:Int64}) AS piece, count() AS found, "
            "uniqExact(offset) AS offsets",
            "GROUP BY piece",
            at,
            first,
            until,
            size=size,
        ) as rows:
            return {
                piece
                for piece, found, offsets in rows
                if found == offsets == min(size, until - first - piece * size)
            }

    def find(self, at: TopicPartition, first: int, until: int) -> OffsetCounts:
        with self._query(
            "SELECT offset, count()", "GROUP BY offset ORDER BY offset", at, first, until
        ) as rows:
            pairs = np.array(rows, np.int64).reshape(-1, 2)
        return OffsetCounts(pairs[:, 0], pairs[:, 1])

    @contextmanager
    def _query(
        self, select: str, after: str, at: TopicPartition, first: int, until: int, **more: int
    ) -> Iterator[list[Any]]:
        topic = " AND topic = {topic:String}" if self.has_topic else ""
        statement = f"{select} FROM {self.source} WHERE {_WITHIN}{topic} {after}"
        parameters = {"topic": at.topic, "partition": at.partition, "first": first, "until": until}
        client: Client
        with connect(self.target, timeout=_TIMEOUT) as client:
            yield list(client.query(statement, parameters=parameters | more).result_rows)


def table_of(reducer: Reducer) -> OffsetTable:
    """Return the table of a sink. Raises NotCounted, and SinkError if it does not answer."""
    if isinstance(reducer, ClickHouseWriter):
        return CountedTable.of(reducer)
    raise NotCounted(f"{type(reducer).__name__} is no table that can be counted by offset")
