"""Tables that follow a source through workers that are killed around their writes, one after the other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import msgspec
import psycopg
import pytest

from kmr import Debezium, Json, Strategy
from kmr.kafka.connection import connection_config
from kmr.kafka.reading import read_topic
from kmr.record import TopicPartition
from tests.framework.sinks.histories import Customer, History

from .dying import (
    Dying,
    DyingClickHouseWriter,
    DyingKafkaWriter,
    DyingPostgresWriter,
    run_until_all_died,
    run_until_settled,
)
from .working import quick_settings

if TYPE_CHECKING:
    from kmr.broker import Broker
    from tests.framework.conftest import CreateTopic, Produce


def _history(partitions: int) -> History:
    return History.random(random.Random(7), 600, partitions, truncates=0.01)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("sink", ["clickhouse", "postgres"])
async def test_a_table_equals_the_source_after_workers_that_died(
    broker: Broker,
    create_topic: CreateTopic,
    produce: Produce,
    request: pytest.FixtureRequest,
    sink: str,
    partitions: int,
) -> None:
    url = request.getfixturevalue(f"{sink}_url")
    made: Any = DyingPostgresWriter if sink == "postgres" else DyingClickHouseWriter
    table = f"followed_{partitions}"
    history = _history(partitions)
    await create_topic("t", partitions)
    for partition, values in enumerate(history.topic):
        await produce("t", values, partition)
    writer = made(table, url=url, key=["id"], changes=True, create=True, max_rows=20, max_age=0.05)
    strategy = Strategy(value=Debezium(Json(Customer), truncates="apply"), reduce=writer)
    settings = quick_settings(broker)
    Dying.plan = [(2, "after"), (0, "before"), (3, "after"), (1, "after")]
    with anyio.fail_after(90):
        await run_until_all_died(strategy, settings)
        await run_until_settled(strategy, settings, _lengths(history))
    select = f"SELECT id, name FROM {table}{' FINAL' if sink == 'clickhouse' else ''} ORDER BY id"
    if sink == "postgres":
        with psycopg.connect(url) as connection:
            found = connection.execute(select.encode()).fetchall()
    else:
        with clickhouse_connect.get_client(dsn=url) as client:
            found = [tuple(row) for row in client.query(select).result_rows]
            client.command(f"DROP TABLE {table}")
    assert history.table
    assert found == sorted(history.table.items())


def _lengths(history: History) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): len(each) for number, each in enumerate(history.topic)}


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
async def test_a_compacted_topic_equals_the_source_after_workers_that_died(
    broker: Broker, create_topic: CreateTopic, produce: Produce, delivery: Any
) -> None:
    history = _history(3)
    await create_topic("t", 3)
    await create_topic("followed", 2)
    for partition, values in enumerate(history.topic):
        await produce("t", values, partition)
    writer = DyingKafkaWriter(
        "followed", key=["id"], changes=True, delivery=delivery, max_rows=20, max_age=0.05
    )
    strategy = Strategy(value=Debezium(Json(Customer)), reduce=writer)
    settings = quick_settings(broker)
    Dying.plan = [(2, "after"), (0, "before"), (3, "after"), (1, "after")]
    with anyio.fail_after(90):
        await run_until_all_died(strategy, settings)
        await run_until_settled(strategy, settings, _lengths(history))
    found: dict[int, str] = {}
    async for batch in read_topic(connection_config(settings), "followed"):
        for row in batch.records.to_pylist():
            key = msgspec.json.decode(row["key"])
            if row["value"] is None:
                found.pop(key, None)
            else:
                found[key] = msgspec.json.decode(row["value"])["name"]
    assert history.table
    assert found == history.table
