"""A ClickHouse table that is dropped or altered under a worker: it continues, or ends with one message."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import pyarrow as pa
import pytest

from kmr.broker.client import BatchProducer
from kmr.errors import StrategyError
from kmr.mapping.functions import map_record
from kmr.record import Record, TopicPartition
from kmr.sinks import ClickHouseWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker

from ..workers import until_settled
from .working import quick_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from clickhouse_connect.driver.client import Client

    from kmr.broker import Broker
    from kmr.reducers.reducer import Reducer
    from tests.framework.conftest import CreateTopic

T0 = TopicPartition("t", 0)
AFTER_ALL = 120  # seconds; nothing here takes so long


@map_record
def locate(record: Record) -> dict[str, Any]:
    text = (record.value or b"").decode()
    name, _, value = text.rpartition("=")
    row = {"partition": record.partition, "offset": record.offset, "text": text}
    return row | {name: value} if name else row


TYPES: dict[str, pa.DataType] = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "text": pa.string(),
}


@map_record(schema=pa.schema(TYPES))
def locate_declared(record: Record) -> dict[str, Any]:
    row = locate(record)
    if "bad" in row:
        raise ValueError("bad")
    return row


class Sink:
    """A table of its own."""

    def __init__(self, client: Client, url: str, table: str) -> None:
        self._client = client
        self.url = url
        self.table = table

    def run(self, statement: str) -> None:
        self._client.command(statement.format(table=self.table))

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM {self.table} ORDER BY `offset`"
        return [tuple(row) for row in self._client.query(query).result_rows]


@pytest.fixture
def sink(clickhouse_url: str, request: pytest.FixtureRequest) -> Iterator[Sink]:
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        sink = Sink(client, clickhouse_url, f"altered{abs(hash(request.node.nodeid))}")
        sink.run(
            "CREATE TABLE {table} (`partition` UInt32, `offset` UInt64, text String) "
            "ENGINE = MergeTree ORDER BY `offset` SETTINGS non_replicated_deduplication_window = 10000"
        )
        yield sink
        sink.run("DROP TABLE IF EXISTS {table}")


@pytest.fixture(autouse=True)
async def _topic(create_topic: CreateTopic) -> None:
    """A worker never creates its input topic."""
    await create_topic("t")


class Flow:
    """A worker that writes into the table, and the topic that it reads."""

    def __init__(self, broker: Broker, worker: Worker, errors: Journal) -> None:
        self._broker = broker
        self._worker = worker
        self._produced = 0
        self.errors = errors

    async def produce(self, *values: bytes) -> None:
        """Produce, and return when everything is settled."""
        async with BatchProducer(self._broker.bootstrap_servers, "t") as producer:
            await producer.send(list(values))
        self._produced += len(values)
        await until_settled(self._worker, T0, self._produced)


@asynccontextmanager
async def flowing(
    broker: Broker,
    sink: Sink,
    mapped: Callable[[Record], dict[str, Any]] = locate,
    reduce_err: Reducer | None = None,
    **options: Any,
) -> AsyncIterator[Flow]:
    """A flow that has written two rows."""
    errors = Journal()
    strategy = Strategy(
        mapped,
        [ClickHouseWriter(sink.table, url=sink.url, max_age=0.01, **options)],
        reduce_err=reduce_err or MemoryWriter(errors, max_age=0.01),
    )
    worker = Worker(strategy, quick_settings(broker))
    with anyio.fail_after(AFTER_ALL):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await worker.ready()
            flow = Flow(broker, worker, errors)
            await flow.produce(b"1", b"2")
            yield flow
            worker.shutdown("done")


@asynccontextmanager
async def ending(broker: Broker, sink: Sink, message: str) -> AsyncIterator[Flow]:
    """A flow that must end with this message."""
    with pytest.RaisesGroup(pytest.RaisesExc(StrategyError, match=message)):
        async with flowing(broker, sink) as flow:
            yield flow
            await flow.produce(b"3", b"4")
            await anyio.sleep_forever()


async def test_a_table_that_is_dropped_ends_the_worker_with_a_message_that_names_it(
    broker: Broker, sink: Sink
) -> None:
    async with ending(broker, sink, f"no table default.{sink.table}"):
        sink.run("DROP TABLE {table}")


async def test_a_field_that_is_new_becomes_a_column_of_an_evolving_table(
    broker: Broker, sink: Sink
) -> None:
    async with flowing(broker, sink, evolve="add") as flow:
        await flow.produce(b"colour=red")
        sink.run("ALTER TABLE {table} ADD COLUMN size UInt8 DEFAULT 1")
        await flow.produce(b"size=5", b"size=big", b"6")
        assert [row["reason"] for row in flow.errors.rows()] == [
            "column size (UInt8) cannot hold 'big'"
        ]
    rows = [(0, None, 1), (1, None, 1), (2, "red", 1), (3, None, 5), (5, None, 1)]
    assert sink.rows("`offset`, colour, size") == rows


async def test_a_worker_creates_its_tables(broker: Broker, sink: Sink) -> None:
    sink.run("DROP TABLE {table}")
    dead = Sink(sink._client, sink.url, f"{sink.table}_dead")
    errors = ClickHouseWriter(dead.table, url=sink.url, max_age=0.01, create=True)
    try:
        async with flowing(broker, sink, locate_declared, errors, create=True) as flow:
            await flow.produce(b"bad=1")
        assert sink.rows("`offset`, text") == [(0, "1"), (1, "2")]
        assert dead.rows("`offset`, stage, value") == [(2, "map", "bad=1")]
    finally:
        dead.run("DROP TABLE IF EXISTS {table}")


async def test_a_column_with_a_default_may_be_added(broker: Broker, sink: Sink) -> None:
    async with flowing(broker, sink) as flow:
        sink.run("ALTER TABLE {table} ADD COLUMN more UInt8 DEFAULT 7")
        await flow.produce(b"3")
    assert sink.rows("`offset`, text, more") == [(0, "1", 7), (1, "2", 7), (2, "3", 7)]


async def test_a_column_that_is_removed_ends_the_worker_and_says_what_to_do(
    broker: Broker, sink: Sink
) -> None:
    async with ending(broker, sink, r"has no column text to write to; .*extra_columns='ignore'"):
        sink.run("ALTER TABLE {table} DROP COLUMN text")
    assert sink.rows("`offset`") == [(0,), (1,)]


async def test_a_column_that_is_removed_may_be_ignored(broker: Broker, sink: Sink) -> None:
    async with flowing(broker, sink, extra_columns="ignore") as flow:
        sink.run("ALTER TABLE {table} DROP COLUMN text")
        await flow.produce(b"3")
    assert sink.rows("`offset`") == [(0,), (1,), (2,)]


async def test_a_column_that_is_renamed_ends_the_worker(broker: Broker, sink: Sink) -> None:
    async with ending(broker, sink, "has no column text to write to"):
        sink.run("ALTER TABLE {table} RENAME COLUMN text TO note")


async def test_a_column_whose_type_changed_takes_the_values_that_fit_and_diverts_the_others(
    broker: Broker, sink: Sink
) -> None:
    async with flowing(broker, sink) as flow:
        sink.run("ALTER TABLE {table} MODIFY COLUMN text UInt8")
        await flow.produce(b"3", b"many", b"5")
        assert [(row["offset"], row["value"]) for row in flow.errors.rows()] == [(3, b"many")]
        assert "many" in flow.errors.rows()[0]["reason"]
    assert sink.rows("`offset`, text") == [(0, 1), (1, 2), (2, 3), (4, 5)]


async def test_a_table_that_is_replaced_by_another_of_its_name_is_written_on(
    broker: Broker, sink: Sink
) -> None:
    async with flowing(broker, sink) as flow:
        sink.run(
            "CREATE OR REPLACE TABLE {table} (`partition` UInt32, `offset` UInt64, text String) "
            "ENGINE = MergeTree ORDER BY `offset` "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        await flow.produce(b"3")
    assert sink.rows("`offset`, text") == [(2, "3")]
