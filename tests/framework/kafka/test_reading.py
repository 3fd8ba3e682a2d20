"""Reading a whole topic, or some records of a partition, without a group."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from kmr.broker.client import BatchProducer
from kmr.errors import BrokerUnavailable, ConsumerError
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.reading import RecordSelection, read_range, read_topic
from kmr.record import TopicPartition
from tests.framework.kafka.members import consumer_config

if TYPE_CHECKING:
    from kmr.broker import Broker


async def read(broker: Broker, topic: str) -> list[tuple[int, int]]:
    config = ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)
    return [
        (batch.partition, offset)
        async for batch in read_topic(config, topic)
        for offset in batch.offsets().tolist()
    ]


async def test_every_record_of_every_partition_is_read_once_in_order(broker: Broker) -> None:
    await broker.topics.create("t", 3)
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        for partition, count in ((0, 5000), (2, 3)):
            await producer.send([b"v" * 1000] * count, partition=partition)
    found = await read(broker, "t")
    assert [offset for partition, offset in found if partition == 0] == list(range(5000))
    assert [offset for partition, offset in found if partition == 2] == [0, 1, 2]
    assert len(found) == 5003


async def test_only_the_spans_of_a_selection_are_read(broker: Broker) -> None:
    await broker.topics.create("t", 3)
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        for partition in range(3):
            await producer.send([b"v"] * 10, partition=partition)
    config = ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)
    spans = RecordSelection(spans={0: (2, 5), 2: (9, 10)})
    found = [
        (batch.partition, offset)
        async for batch in read_topic(config, "t", spans)
        for offset in batch.offsets().tolist()
    ]
    assert sorted(found) == [(0, 2), (0, 3), (0, 4), (2, 9)]


async def test_an_empty_topic_has_nothing(broker: Broker) -> None:
    await broker.topics.create("t", 2)
    assert await read(broker, "t") == []


async def test_a_missing_topic_and_a_missing_broker_are_errors(broker: Broker) -> None:
    with pytest.raises(ConsumerError, match="topic t does not exist"):
        await read(broker, "t")
    config = ConnectionConfig(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(BrokerUnavailable):
        _ = [batch async for batch in read_topic(config, "t")]


async def read_some(broker: Broker, first: int, end: int) -> list[int]:
    """Return the offsets of the records of a range, whose batches have to follow each other."""
    config = consumer_config(bootstrap_servers=broker.bootstrap_servers)
    found: list[int] = []
    at: int | None = None
    async for batch in read_range(config, TopicPartition("t", 0), first, end):
        assert at is None or batch.first == at
        at = batch.last + 1
        found += batch.offsets().tolist()
    return found


async def test_the_records_of_a_range_are_read_and_no_others(broker: Broker) -> None:
    await broker.topics.create("t", 1)
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        for _ in range(5):
            await producer.send([b"v" * 1000] * 1000, partition=0)
    assert await read_some(broker, 1234, 3456) == list(range(1234, 3456))
    assert await read_some(broker, 4990, 9999) == list(range(4990, 5000))
    assert await read_some(broker, 7, 7) == []


async def test_a_range_begins_later_where_records_are_gone(broker: Broker) -> None:
    await broker.topics.create("t", 1)
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        await producer.send([b"v"] * 100, partition=0)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.delete_records({TopicPartition("t", 0): RecordsToDelete(40)})
    await admin.close()
    assert await read_some(broker, 10, 50) == list(range(40, 50))
    assert await read_some(broker, 10, 30) == []


async def test_a_deleted_topic_is_looked_for_less_and_less_often(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look is a message of the client, which is left out otherwise.
    monkeypatch.setattr(logging.getLogger("aiokafka.cluster"), "filters", [])
    await broker.topics.create("gone", 1)
    async with BatchProducer(broker.bootstrap_servers, "gone") as producer:
        await producer.send([b"0"])
    config = ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    async with aclosing(read_topic(config, "gone", RecordSelection(follow=True))) as batches:
        await anext(batches)
        await admin.delete_topics(["gone"])
        await admin.close()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, batches)
            while not looks_of(caplog):  # noqa: ASYNC110  of the client
                await anyio.sleep(0.01)
            await anyio.sleep(1.0)
            looks = looks_of(caplog)
            tasks.cancel_scope.cancel()
    assert looks < 20


def looks_of(caplog: pytest.LogCaptureFixture) -> int:
    return sum(each.name == "aiokafka.cluster" for each in caplog.records)
