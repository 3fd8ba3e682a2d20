"""Counts the rows of each record in a strategy's own sinks, by the columns partition, offset and topic."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from anyio import to_thread
from clickhouse_connect.driver.binding import quote_identifier

from ..delivery.row_letters import ROW
from ..errors import SinkError
from ..kafka.connection import ConnectionConfig
from ..kafka.reading import read_topic
from ..record import OFFSET_COLUMNS, TopicPartition
from ..sinks.clickhouse.client import URL_VARIABLE, connect
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..sinks.kafka.letter_writer import DeadLetterWriter
from ..sinks.kafka.writer import KafkaWriter
from ..sinks.offset_tables import NotCounted, TableNotMade, offset_table
from ..sinks.parquet.writer import ParquetWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    import pyarrow as pa

    from ..record import Batch
    from ..reducers.reducer import Reducer

Counts: TypeAlias = "Counter[tuple[TopicPartition, int]]"
"""By partition and offset of a record: how many rows it has."""

LETTER: Final = "kmr letter"
"""In a row that a letter is of: the name of the letter, which its copies have too."""

_ANY: Final = 2**62  # above all offsets


async def read_batches(bootstrap_servers: str, topics: Iterable[str]) -> list[Batch]:
    """Read all records of topics; those of open and aborted transactions are left out."""
    config = ConnectionConfig(bootstrap_servers=bootstrap_servers, client_id="chaos-count")
    return [batch for topic in topics async for batch in read_topic(config, topic)]


class Delivered:
    """What a sink has: a table, or files.

    Args:
        writer: the sink.
        partitions: of the storm.

    Attributes:
        rows: of windows, as `count` has found them; of a sink of errors, those of letters.
    """

    def __init__(self, writer: Any, partitions: Sequence[TopicPartition]) -> None:
        self._writer = writer
        self._partitions = partitions
        self._topics = sorted({at.topic for at in partitions})
        self.rows: list[dict[str, Any]] = []

    @property
    def place(self) -> str:
        """Where the rows are."""
        return str(self._writer)

    @property
    def topic(self) -> str | None:
        """A topic of the bundled broker, which the storm makes; None if rows go elsewhere."""
        return None

    def prepare(self, declared: pa.Schema | None) -> None:
        """Make what the sink does not make itself. `declared`: the columns of the rows."""

    async def count(self, bootstrap_servers: str) -> Counts:
        """Count the rows of each record of the storm.

        Raises:
            SinkError: the rows do not name their records.
        """
        return await to_thread.run_sync(self._count)

    def _count(self) -> Counts:
        counts: Counts = Counter()
        try:
            table = offset_table(self._writer, self._topics)
        except TableNotMade:
            return counts
        except NotCounted as error:
            raise self._unnamed() from error
        for at in self._partitions:
            found = table.find(at, 0, _ANY)
            pairs = zip(found.offsets.tolist(), found.rows.tolist(), strict=True)
            counts.update({(at, offset): rows for offset, rows in pairs})
        return counts

    def _letter(
        self, place: dict[str, Any], headers: Mapping[str, Any], value: bytes | str | None
    ) -> dict[str, Any]:
        """Return the place of the record of a letter; if it is of a row, the row with the letter's name."""
        if ROW not in headers:
            return place
        return self._object(value) | {LETTER: (*place.values(), headers[ROW])}

    def _object(self, value: bytes | str | None) -> dict[str, Any]:
        try:
            return msgspec.json.decode(value or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise SinkError(f"{self.place}: a value is no JSON object ({error})") from error

    def _unnamed(self) -> SinkError:
        return SinkError(
            f"{self.place}: its rows have no columns partition and offset (and topic, for several "
            "topics): kmr chaos finds by them which record a row is of; let the map return them"
        )


class _InClickHouse(Delivered):
    @property
    def place(self) -> str:
        return f"ClickHouse, table {self._writer.table}"

    def prepare(self, declared: pa.Schema | None) -> None:
        target, name = self._writer.target()
        table = f"{quote_identifier(target.database)}.{quote_identifier(name)}"
        if not self._writer.create:
            with connect(target, create=True) as client:
                if not int(str(client.command(f"EXISTS TABLE {table}"))):
                    client.command(self._writer.create_statement(declared))


class _InTopic(Delivered):
    @property
    def place(self) -> str:
        return f"topic {self._writer.topic}"

    @property
    def topic(self) -> str | None:
        return None if self._writer.bootstrap_servers else str(self._writer.topic)

    async def count(self, bootstrap_servers: str) -> Counts:
        servers = self._writer.bootstrap_servers or bootstrap_servers
        counts: Counts = Counter()
        for batch in await read_batches(servers, [self._writer.topic]):
            for row in self._rows(batch):
                if LETTER in row:
                    self.rows.append(row)
                    continue
                if not {"partition", "offset"} <= row.keys() or (
                    "topic" not in row and len(self._topics) > 1
                ):
                    raise self._unnamed()
                at = TopicPartition(row.get("topic", self._topics[0]), int(row["partition"]))
                if at.topic in self._topics:
                    counts[at, int(row["offset"])] += 1
        return counts

    def _rows(self, batch: Batch) -> Iterable[dict[str, Any]]:
        if isinstance(self._writer, DeadLetterWriter):
            columns = (batch.records.column(name).to_pylist() for name in ("headers", "value"))
            for pairs, value in zip(*columns, strict=True):
                headers = {each["key"]: each["value"] for each in pairs or ()}
                letter = {name: headers[f"kmr.{name}"].decode() for name in OFFSET_COLUMNS}
                yield self._letter(letter, headers, value)
            return
        for value in batch.records.column("value").to_pylist():
            yield self._object(value)


def delivered_by(reducer: Reducer | None, partitions: Sequence[TopicPartition]) -> Delivered | None:
    """Return how to count what a sink has; None if nothing can be read there."""
    for kind, delivered in (
        (ClickHouseWriter, _InClickHouse),
        (ParquetWriter, Delivered),
        (KafkaWriter, _InTopic),
    ):
        if isinstance(reducer, kind):
            return delivered(reducer, partitions)
    if type(reducer).__name__ == "PostgresWriter":  # its library is an extra
        return Delivered(reducer, partitions)
    return None


def needs_clickhouse(reducers: Iterable[Reducer | None]) -> bool:
    """Return whether a sink writes to the ClickHouse of the environment, and there is none."""
    return URL_VARIABLE not in os.environ and any(
        isinstance(reducer, ClickHouseWriter) and reducer.url is None for reducer in reducers
    )
