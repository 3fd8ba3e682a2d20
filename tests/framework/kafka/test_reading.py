"""Reading a whole topic without a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.broker.client import BatchProducer
from kmr.errors import BrokerUnavailable, ConsumerError
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.reading import read_topic

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


async def test_an_empty_topic_has_nothing(broker: Broker) -> None:
    await broker.topics.create("t", 2)
    assert await read(broker, "t") == []


async def test_a_missing_topic_and_a_missing_broker_are_errors(broker: Broker) -> None:
    with pytest.raises(ConsumerError, match="topic t does not exist"):
        await read(broker, "t")
    config = ConnectionConfig(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(BrokerUnavailable):
        _ = [batch async for batch in read_topic(config, "t")]
