"""Two sinks as they are often written by hand. Both double rows, which the suite must find."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import clickhouse_connect
import pyarrow as pa
from anyio import to_thread
from clickhouse_connect.driver.exceptions import ClickHouseError

from kmr.types import Reducer, Retry

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.record import TopicPartition
    from kmr.types import Context, Rows


class CommitAfterInsert(Reducer):
    """Inserts the collected rows without a token; offsets are committed afterwards.

    A crash between the two doubles rows.
    """

    def __init__(self, table: str, **limits: Any) -> None:
        super().__init__(**limits)
        self.table = table
        self.rows: list[Rows] = []
        self._client: Client | None = None

    async def open(self, context: Context) -> None:
        """Connect to KMR_CLICKHOUSE_URL."""
        self._client = await to_thread.run_sync(
            lambda: clickhouse_connect.get_client(
                dsn=os.environ["KMR_CLICKHOUSE_URL"], autogenerate_session_id=False
            )
        )

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()

    def add(self, rows: Rows) -> None:
        """Keep them."""
        self.rows.append(rows)

    def reset(self) -> None:
        """Forget them."""
        self.rows = []

    def flush(self) -> None:
        """One INSERT with everything."""
        tables = [rows.table for rows in self.rows if len(rows)]
        try:
            if tables:
                self.write(pa.concat_tables(tables))
        except (ClickHouseError, OSError) as error:
            raise Retry(f"{self.table}: {error}") from error

    def write(self, table: pa.Table) -> None:
        """Insert rows."""
        self.connected().insert_arrow(self.table, table, settings={"insert_deduplicate": 0})

    def connected(self) -> Client:
        """The client, once opened."""
        assert self._client is not None, "used before open"  # noqa: S101
        return self._client


class ResumeFromMax(CommitAfterInsert):
    """Asks the table how far it has come, when it is given a partition, and leaves out what it has.

    The answer is out of date when an INSERT of the partition's last owner is still on its way.
    """

    def __init__(self, table: str, **limits: Any) -> None:
        super().__init__(table, **limits)
        self._next: dict[TopicPartition, int] = {}

    def __deepcopy__(self, memo: object) -> Self:
        """The copies know together how far each partition has come."""
        other = copy.copy(self)
        other.reset()
        return other

    def flush(self) -> None:
        """Insert the rows that the table does not have."""
        try:
            self.rows = [self._without_known(rows) for rows in self.rows]
        except (ClickHouseError, OSError) as error:
            raise Retry(f"{self.table}: {error}") from error
        super().flush()

    def _without_known(self, rows: Rows) -> Rows:
        """Rows of a partition that does not continue at our last offset: read the table's maximum."""
        if not rows.ranges or rows.offsets is None:
            return rows
        partition = rows.ranges[0].topic_partition
        known = self._next.get(partition)
        if known is None or rows.ranges[0].first != known:
            (line,) = (
                self.connected()
                .query(
                    f"SELECT count(), max(offset) FROM {self.table} "  # noqa: S608  our own table
                    "WHERE topic = {topic:String} AND partition = {partition:UInt32}",
                    parameters={"topic": partition.topic, "partition": partition.partition},
                )
                .result_rows
            )
            highest = int(line[1]) if line[0] else -1
            rest = int((rows.offsets <= highest).sum())
            rows = replace(rows, table=rows.table.slice(rest), offsets=rows.offsets[rest:])
        self._next[partition] = rows.ranges[-1].last + 1
        return rows
