"""What only librdkafka's API has."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from .clients.base import Message
from .clients.via_librdkafka import Librdkafka

if TYPE_CHECKING:
    from kmr.broker import Broker


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


async def result(future: Any) -> Any:
    return await asyncio.to_thread(future.result, 30)


async def test_the_cluster_and_its_topics_are_described(broker: Broker, admin: AdminClient) -> None:
    topic = await broker.topics.create("t", 2)
    cluster = await result(admin.describe_cluster())
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == broker.bootstrap_servers
    assert cluster.controller.id == node.id == 0
    described = await result(admin.describe_topics(TopicCollection(["t"]))["t"])
    assert [partition.leader.id for partition in described.partitions] == [0, 0]
    shown = b64encode(topic.topic_id.bytes).decode().rstrip("=")
    assert str(described.topic_id) == shown


async def test_offsets_are_listed_by_what_they_are_for(broker: Broker, admin: AdminClient) -> None:
    await broker.topics.create("t")
    async with Librdkafka().producer(broker.bootstrap_servers) as producer:
        await producer.send("t", [Message(b"%d" % number) for number in range(10)])
    where, offset_spec = TopicPartition("t", 0), cast("Any", OffsetSpec)
    for spec, offsets in (
        (offset_spec.earliest(), {0}),
        (offset_spec.latest(), {10}),
        (offset_spec.for_timestamp(0), {0}),
        (offset_spec.max_timestamp(), set(range(10))),
    ):
        listed = admin.list_offsets({where: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        assert (await result(listed[where])).offset in offsets
