"""Counts the rows of each record in a strategy's own sinks, by the columns partition, offset and topic."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from anyio import to_thread
from clickhouse_connect.driver.binding import quote_identifier
from pyarrow import fs

from ..errors import SinkError
from ..kafka.connection import ConnectionConfig
from ..kafka.reading import read_topic
from ..record import TopicPartition
from ..service.storage import HIDDEN
from ..sinks.clickhouse.client import ClickHouseAddress, connect
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..sinks.kafka.writer import DeadLetterWriter, KafkaWriter
from ..sinks.parquet.files import SUFFIX, open_directory
from ..sinks.parquet.writer import ParquetWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from ..record import Batch
    from ..reducers.reducer import Reducer

Counts: TypeAlias = "Counter[tuple[TopicPartition, int]]"
"""By partition and offset of a record: how many rows it has."""

CLICKHOUSE_VARIABLE: Final = "KMR_CLICKHOUSE_URL"
_COLUMNS: Final = ("partition", "offset", "topic")


async def read_batches(bootstrap_servers: str, topics: Iterable[str]) -> list[Batch]:
    """Read all records of topics; those of open and aborted transactions are left out."""
    config = ConnectionConfig(bootstrap_servers=bootstrap_servers, client_id="chaos-count")
    return [batch for topic in topics async for batch in read_topic(config, topic)]


class Delivered(ABC):
    """What a sink has.

    Args:
        writer: the sink.
        topics: of the storm; rows without a topic are of the only one.
    """

    needs_clickhouse: ClassVar[bool] = False

    def __init__(self, writer: Any, topics: Sequence[str]) -> None:
        self._writer = writer
        self._topics = topics

    @property
    def place(self) -> str:
        """Where the rows are."""
        return str(self._writer)

    @property
    def topic(self) -> str | None:
        """A topic of the bundled broker, which the storm makes; None if rows go elsewhere."""
        return None

    def prepare(self, declared: pa.Schema | None) -> None:  # noqa: B027  most have nothing to make
        """Make what the sink does not make itself. `declared`: the columns of the rows."""

    @abstractmethod
    async def read(self, bootstrap_servers: str) -> list[pa.Table]:
        """Return the columns partition, offset and topic of all rows, as far as there are any."""

    async def count(self, bootstrap_servers: str) -> Counts:
        """Count the rows of each record of the storm.

        Raises:
            SinkError: the rows do not name their records.
        """
        counts: Counts = Counter()
        for table in await self.read(bootstrap_servers):
            names = table.column_names
            only = self._topics[0] if len(self._topics) == 1 else None
            if not {"partition", "offset"} <= set(names) or ("topic" not in names and only is None):
                raise SinkError(
                    f"{self.place}: its rows have no columns partition and offset (and topic, for several "
                    "topics): kmr chaos finds by them which record a row is of; let the map return them"
                )
            columns = [table.column(name).to_pylist() for name in ("partition", "offset")]
            of = table.column("topic").to_pylist() if "topic" in names else [only] * len(table)
            for topic, partition, offset in zip(of, *columns, strict=True):
                if topic in self._topics:
                    counts[TopicPartition(topic, int(partition)), int(offset)] += 1
        return counts


class _InClickHouse(Delivered):
    needs_clickhouse = True

    @property
    def place(self) -> str:
        return f"ClickHouse, table {self._writer.table}"

    def prepare(self, declared: pa.Schema | None) -> None:
        target, name = self._writer.target()
        if not self._writer.create:
            with connect(target, create=True) as client:
                if not int(str(client.command(f"EXISTS TABLE {_quoted(target, name)}"))):
                    client.command(self._writer.create_statement(declared))

    async def read(self, bootstrap_servers: str) -> list[pa.Table]:
        return await to_thread.run_sync(self._read)

    def _read(self) -> list[pa.Table]:
        target, name = self._writer.target()
        with connect(target) as client:
            if not int(str(client.command(f"EXISTS TABLE {_quoted(target, name)}"))):
                return []
            described = client.query(f"DESCRIBE TABLE {_quoted(target, name)}").result_rows
            there = [column for column in _COLUMNS if column in {row[0] for row in described}]
            chosen = ", ".join(map(quote_identifier, there)) or "1"
            return [client.query_arrow(f"SELECT {chosen} FROM {_quoted(target, name)}")]  # noqa: S608


class _InPostgres(Delivered):
    async def read(self, bootstrap_servers: str) -> list[pa.Table]:
        import psycopg

        from ..sinks.postgres.connection import Pool
        from ..sinks.postgres.table import TableName

        connection = await Pool.of(self._writer.url, self._writer.timeout).connect()
        async with connection:
            try:
                found = await connection.execute(
                    f"SELECT * FROM {TableName.of(self._writer.table)}".encode()  # noqa: S608
                )
            except psycopg.errors.UndefinedTable:
                return []
            names = [column.name for column in found.description or ()]
            rows = await found.fetchall()
        columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
        return [pa.table({name: columns[name] for name in _COLUMNS if name in columns})]


class _InFiles(Delivered):
    async def read(self, bootstrap_servers: str) -> list[pa.Table]:
        return await to_thread.run_sync(self._read)

    def _read(self) -> list[pa.Table]:
        directory = open_directory(self._writer.url, filesystem=self._writer.filesystem)
        found = []
        selector = fs.FileSelector(directory.root, recursive=True, allow_not_found=True)
        for info in directory.filesystem.get_file_info(selector):
            if info.base_name.endswith(SUFFIX) and not info.base_name.startswith((HIDDEN, ".")):
                with directory.filesystem.open_input_file(info.path) as stream:
                    file = pq.ParquetFile(stream)
                    there = [name for name in _COLUMNS if name in file.schema_arrow.names]
                    found.append(file.read(there))
        return found


class _InTopic(Delivered):
    @property
    def place(self) -> str:
        return f"topic {self._writer.topic}"

    @property
    def topic(self) -> str | None:
        return None if self._writer.bootstrap_servers else str(self._writer.topic)

    async def read(self, bootstrap_servers: str) -> list[pa.Table]:
        servers = self._writer.bootstrap_servers or bootstrap_servers
        batches = await read_batches(servers, [self._writer.topic])
        rows = [row for batch in batches for row in self._rows(batch)]
        names = [name for name in _COLUMNS if rows and name in rows[0]]
        return [pa.table({name: [row.get(name) for row in rows] for name in names})] if rows else []

    def _rows(self, batch: Batch) -> Iterable[Mapping[str, Any]]:
        if isinstance(self._writer, DeadLetterWriter):
            for headers in batch.records.column("headers").to_pylist():
                texts = {each["key"]: each["value"].decode() for each in headers or ()}
                yield {name: texts[f"kmr.{name}"] for name in _COLUMNS}
            return
        for value in batch.records.column("value").to_pylist():
            try:
                yield msgspec.json.decode(value or b"{}", type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise SinkError(f"{self.place}: a message is no JSON object ({error})") from error


def delivered_by(reducer: Reducer | None, topics: Sequence[str]) -> Delivered | None:
    """Return how to count what a sink has; None if nothing can be read there."""
    for kind, delivered in (
        (ClickHouseWriter, _InClickHouse),
        (ParquetWriter, _InFiles),
        (KafkaWriter, _InTopic),
    ):
        if isinstance(reducer, kind):
            return delivered(reducer, topics)
    if type(reducer).__name__ == "PostgresWriter":  # its library is an extra
        return _InPostgres(reducer, topics)
    return None


def needs_clickhouse(reducers: Iterable[Reducer | None]) -> bool:
    """Return whether a sink writes to the ClickHouse of the environment, and there is none."""
    return CLICKHOUSE_VARIABLE not in os.environ and any(
        isinstance(reducer, ClickHouseWriter) and reducer.url is None for reducer in reducers
    )


def _quoted(target: ClickHouseAddress, table: str) -> str:
    return f"{quote_identifier(target.database)}.{quote_identifier(table)}"
