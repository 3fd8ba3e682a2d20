"""The rows of a strategy's own sinks are found again, by the columns that name their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr.broker.client import BatchProducer
from kmr.chaos.delivered import delivered_by
from kmr.errors import SinkError
from kmr.record import TopicPartition
from kmr.sinks import (
    ClickHouseWriter,
    DeadLetterWriter,
    KafkaWriter,
    ParquetWriter,
    PostgresWriter,
    StreamWriter,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.chaos.delivered import Counts
    from kmr.testing import StartBroker
    from kmr.types import Reducer

AT = TopicPartition("t", 0)


async def counted(reducer: Reducer, servers: str = "", topics: tuple[str, ...] = ("t",)) -> Counts:
    delivered = delivered_by(reducer, [TopicPartition(topic, 0) for topic in topics])
    assert delivered is not None
    return await delivered.count(servers)


async def test_rows_of_finished_files_are_counted(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path)
    assert await counted(writer) == {}
    for name, offsets in {"one": [1, 1], "day=1/two": [2], "day=1/_three": [3]}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        rows = pa.table({"partition": [0] * len(offsets), "offset": offsets, "x": offsets})
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    assert await counted(writer) == {(AT, 1): 2, (AT, 2): 1}
    with pytest.raises(
        SinkError, match=r"no columns partition and offset \(and topic, for several"
    ):
        await counted(writer, topics=("t", "u"))


async def test_rows_and_letters_in_topics_are_counted(start_broker: StartBroker) -> None:
    broker = await start_broker(default_partitions=2)
    servers = broker.bootstrap_servers
    row = msgspec.json.encode({"topic": "t", "partition": 0, "offset": 7})
    other = msgspec.json.encode({"topic": "u", "partition": 0, "offset": 7})
    async with BatchProducer(servers, "rows", acks=1) as producer:
        await producer.send([row, row, other])
    headers = [("kmr.topic", b"t"), ("kmr.partition", b"0"), ("kmr.offset", b"5")]
    async with BatchProducer(servers, "dead", acks=1) as producer:
        await producer.send([b"?"], headers=headers)
    assert await counted(KafkaWriter("rows", value="json"), servers) == {(AT, 7): 2}
    assert await counted(DeadLetterWriter("dead"), servers) == {(AT, 5): 1}


async def test_rows_of_a_table_are_counted(clickhouse_url: str) -> None:
    writer = ClickHouseWriter(
        "delivered", url=clickhouse_url, create=pa.schema([("n", pa.int64())])
    )
    assert await counted(writer) == {}
    target, name = writer.target()
    from kmr.sinks.clickhouse.client import connect

    with connect(target) as client:
        client.command(
            f"CREATE TABLE {name} (topic String, partition Int32, offset Int64) ENGINE = Memory"
        )
        try:
            client.command(f"INSERT INTO {name} VALUES ('t', 0, 3), ('t', 0, 3), ('u', 0, 4)")
            assert await counted(writer) == {(AT, 3): 2}
        finally:
            client.command(f"DROP TABLE {name}")


async def test_rows_in_postgresql_are_counted(postgres_url: str) -> None:
    writer = PostgresWriter("delivered", url=postgres_url)
    assert await counted(writer) == {}
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await connection.execute(
            'CREATE TABLE delivered (partition int, "offset" bigint, note text)'
        )
        await connection.execute("INSERT INTO delivered VALUES (0, 3, 'x'), (0, 3, 'x')")
    assert await counted(writer) == {(AT, 3): 2}


def test_nothing_can_be_read_from_a_stream() -> None:
    assert delivered_by(StreamWriter("stdout"), [AT]) is None
    assert delivered_by(None, [AT]) is None
