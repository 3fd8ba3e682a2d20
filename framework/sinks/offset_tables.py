"""Count the rows of records in the tables and files of sinks, by topic, partition and offset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from ..errors import SinkError, reason_of
from ..record import OFFSET_COLUMNS
from ..service.storage import HIDDEN
from .clickhouse.client import connect
from .clickhouse.counting import Counting
from .clickhouse.fences import refuses
from .clickhouse.writer import ClickHouseWriter
from .parquet.files import SUFFIX, open_directory
from .parquet.writer import ParquetWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ..record import TopicPartition
    from ..reducers.reducer import Reducer

_TIMEOUT: Final = 600.0  # seconds; a count reads three columns of a whole table
_DESCRIBED: Final = """
SELECT engine, engine_full, sorting_key, create_table_query FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""
_COLUMNS: Final = """
SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}"""
_TYPES: Final[Mapping[str, Any]] = {
    "topic": pa.string(),
    "partition": pa.int64(),
    "offset": pa.int64(),
}
_SCHEMA: Final = pa.schema(_TYPES)


class OffsetCounts(NamedTuple):
    """Offsets in a table, ascending, and how many rows each has."""

    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]


class NotCounted(SinkError):
    """The rows of a sink cannot be counted by offset; the text says why."""


class TableNotMade(SinkError):
    """The table does not exist."""


class OffsetTable(ABC):
    """The rows of a sink by the topic, partition and offset of their record. It blocks.

    Its methods raise SinkError if the sink does not answer.

    Attributes:
        has_topic: rows have the topic; else all of them are of one.
        doubt: why a row that was written may not be found; empty if each is.
    """

    has_topic: bool
    doubt: str = ""

    @abstractmethod
    def find(self, at: TopicPartition, first: int, until: int) -> OffsetCounts:
        """Return the offsets from `first` to the one before `until` that have a row."""

    def perfect(self, at: TopicPartition, first: int, until: int, size: int) -> set[int]:
        """Return the pieces of `size` offsets that have one row for each, by number; 0 begins at `first`."""
        perfect = set()
        for piece, begin in enumerate(range(first, until, size)):
            found = self.find(at, begin, end := min(begin + size, until))
            if len(found.offsets) == found.rows.sum() == end - begin:
                perfect.add(piece)
        return perfect


class NoTable(OffsetTable):
    """A table that is not made yet: it has no rows."""

    has_topic = True

    def find(self, at: TopicPartition, first: int, until: int) -> OffsetCounts:
        return OffsetCounts(np.empty(0, np.int64), np.empty(0, np.int64))


class _SqlTable(OffsetTable):
    """A table that is counted by its server, with statements that ClickHouse and PostgreSQL understand.

    Attributes:
        source: what follows FROM.
    """

    source: str

    def perfect(self, at: TopicPartition, first: int, until: int, size: int) -> set[int]:
        rows = self._counted(
            '"offset" - mod("offset" - %(first)s, %(size)s) AS piece, count(*), count(DISTINCT "offset")',
            "GROUP BY piece",
            at,
            {"first": first, "until": until, "size": size},
        )
        return {
            (begin - first) // size
            for begin, found, offsets in rows
            if found == offsets == min(size, until - begin)
        }

    def find(self, at: TopicPartition, first: int, until: int) -> OffsetCounts:
        select, after = '"offset", count(*)', 'GROUP BY "offset" ORDER BY "offset"'
        rows = self._counted(select, after, at, {"first": first, "until": until})
        pairs = np.array(rows, np.int64).reshape(-1, 2)
        return OffsetCounts(pairs[:, 0], pairs[:, 1])

    def _counted(
        self, select: str, after: str, at: TopicPartition, numbers: Mapping[str, int]
    ) -> list[Any]:
        topic = "AND topic = %(topic)s" if self.has_topic else ""
        source = self.source.replace("%", "%%")
        statement = (
            f'SELECT {select} FROM {source} WHERE "partition" = %(partition)s '  # noqa: S608
            f'AND "offset" >= %(first)s AND "offset" < %(until)s {topic} {after}'
        )
        return self._query(statement, {"topic": at.topic, "partition": at.partition, **numbers})

    @abstractmethod
    def _query(self, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
        """Return the rows of a statement with parameters as `%(name)s`."""


class _ClickHouseOffsets(_SqlTable):
    def __init__(self, writer: ClickHouseWriter, group: str) -> None:
        self._address, name = writer.target()
        where = {"database": self._address.database, "table": name}
        with connect(self._address) as client:
            described = list(client.query(_DESCRIBED, parameters=where).named_results())
            columns = {row[0] for row in client.query(_COLUMNS, parameters=where).result_rows}
        if not described:
            raise TableNotMade(f"{self._address} has no table {self._address.database}.{name}")
        self.has_topic = _checked(name, columns)
        facts = described[0]
        if refuses(facts["create_table_query"], group):
            raise _exchanged(name)
        counting = Counting.of(facts["engine"], facts["engine_full"], facts["sorting_key"])
        plain = facts["engine"] in ("MergeTree", "ReplicatedMergeTree", "SharedMergeTree")
        if not counting.found or (plain and not counting.missing):
            self.doubt = f"{name} ({facts['engine']}) deletes or merges rows"
        final = " FINAL" if facts["engine"].endswith("MergeTree") and not plain else ""
        self.source = (
            ".".join(f"`{each.replace('`', '``')}`" for each in (self._address.database, name))
            + final
        )

    def _query(self, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
        with connect(self._address, timeout=_TIMEOUT) as client:
            return list(client.query(statement, parameters=dict(parameters)).result_rows)


class _PostgresOffsets(_SqlTable):
    def __init__(self, writer: Any, group: str) -> None:
        from .postgres.connection import Pool
        from .postgres.ranges import MOVED
        from .postgres.table import TableName

        self._pool = Pool.of(writer.url, writer.timeout)
        self.source = str(TableName.of(writer.table))
        if not self._query(
            "SELECT 1 WHERE to_regclass(%(name)s) IS NOT NULL", {"name": self.source}
        ):
            raise TableNotMade(f"{self._pool} has no table {writer.table}")
        ranges = TableName.of(writer.table).beside("kmr_ranges")
        if self._query("SELECT 1 WHERE to_regclass(%(name)s) IS NOT NULL", {"name": str(ranges)}):
            statement = f"SELECT 1 FROM {ranges} WHERE sink = %(sink)s AND token = %(token)s"  # noqa: S608
            if self._query(statement, {"sink": self.source, "token": f"{MOVED}{group}"}):
                raise _exchanged(writer.table)
        columns = self._query(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%(name)s) AND attnum > 0",
            {"name": self.source},
        )
        self.has_topic = _checked(writer.table, {name for (name,) in columns})
        if writer.capabilities.in_order:
            self.doubt = f"{writer.table} has the last change of each key, and not each row"

    def _query(self, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
        import psycopg

        try:
            with closing(psycopg.connect(self._pool.conninfo, connect_timeout=10)) as connection:
                return connection.execute(statement.encode(), parameters).fetchall()
        except psycopg.Error as error:
            raise SinkError(f"{self._pool}: {reason_of(error)}") from error


class _ParquetOffsets(OffsetTable):
    def __init__(self, writer: ParquetWriter) -> None:
        self._name = str(writer)
        directory = open_directory(writer.url, filesystem=writer.filesystem)
        selector = fs.FileSelector(directory.root, recursive=True, allow_not_found=True)
        in_names = pa.schema([each for each in _SCHEMA if each.name in writer.partition_by])
        try:
            self._files = ds.dataset(
                [
                    info.path
                    for info in directory.filesystem.get_file_info(selector)
                    if info.base_name.endswith(SUFFIX)
                    and not info.base_name.startswith((HIDDEN, "."))
                ],
                schema=_SCHEMA,
                format="parquet",
                filesystem=directory.filesystem,
                partitioning=ds.partitioning(in_names, flavor="hive"),
            )
            found = [
                _checked(str(writer), {*file.physical_schema.names, *in_names.names})
                for file in self._files.get_fragments()
            ]
        except (OSError, pa.ArrowInvalid) as error:
            raise SinkError(f"{writer} cannot be read: {reason_of(error)}") from error
        self.has_topic = all(found)

    def find(self, at: TopicPartition, first: int, until: int) -> OffsetCounts:
        offset, topic = ds.field("offset"), ds.field("topic")
        wanted = (ds.field("partition") == at.partition) & (offset >= first) & (offset < until)
        try:
            rows = self._files.to_table(
                ["offset"], filter=wanted & ((topic == at.topic) | topic.is_null())
            )
        except (OSError, pa.ArrowInvalid) as error:
            raise SinkError(f"{self._name} cannot be read: {reason_of(error)}") from error
        return OffsetCounts(*np.unique(rows.column("offset").to_numpy(), return_counts=True))


def _checked(name: str, columns: Iterable[str]) -> bool:
    """Return whether there is a column for the topic. Raises NotCounted without partition and offset."""
    if not {*OFFSET_COLUMNS[1:]} <= {*columns}:
        raise NotCounted(f"{name} has no columns partition and offset")
    return OFFSET_COLUMNS[0] in columns


def _exchanged(name: str) -> NotCounted:
    return NotCounted(
        f"kmr cutover has exchanged {name}, so it has the rows of another group; write the new name of its "
        "table in the strategy"
    )


def offset_table(reducer: Reducer, topics: Sequence[str], group: str = "") -> OffsetTable:
    """Return the table of a sink, in which the rows of these topics are counted.

    Args:
        group: that writes to it; empty: any.

    Raises:
        NotCounted: the sink is no table, or its rows do not name their records, or are another group's.
        TableNotMade: the table does not exist.
        SinkError: the sink does not answer.
    """
    table: OffsetTable
    if isinstance(reducer, ClickHouseWriter):
        table = _ClickHouseOffsets(reducer, group)
    elif isinstance(reducer, ParquetWriter):
        table = _ParquetOffsets(reducer)
    elif type(reducer).__name__ == "PostgresWriter":  # its library is an extra
        table = _PostgresOffsets(reducer, group)
    else:
        raise NotCounted(f"{type(reducer).__name__} is no table that can be counted by offset")
    if len(topics) > 1 and not table.has_topic:
        raise NotCounted(f"{reducer} has no column topic, and there are several topics")
    return table
