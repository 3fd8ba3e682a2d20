"""What a cluster says of topics, groups and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer

from kmr.errors import ConsumerError
from kmr.kafka.admin import connect_admin

if TYPE_CHECKING:
    from kmr.broker import Broker

    from ..conftest import CreateTopic


async def test_topics_groups_and_settings_are_what_the_broker_has(
    broker: Broker, create_topic: CreateTopic
) -> None:
    await create_topic("t", 3)
    servers = {"bootstrap_servers": broker.bootstrap_servers}
    member = AIOKafkaConsumer("t", group_id="g", client_id="me", group_instance_id="one", **servers)
    await member.start()
    try:
        async with connect_admin(servers) as cluster:
            assert await cluster.brokers() == [broker.bootstrap_servers]
            topics = await cluster.topics(["t", "none"])
            assert topics["none"].is_missing
            assert topics["none"].problem("READ", "me") == (
                "topic none does not exist", "create it, or correct its name",
            )  # fmt: skip
            assert (topics["t"].partitions, topics["t"].leaderless, topics["t"].lagging) == (
                3,
                (),
                (),
            )
            assert topics["t"].problem("WRITE", "me") is None
            group = await cluster.group("g")
            (found,) = group.members
            assert (group.state, group.protocol_type) == ("Stable", "consumer")
            assert (found.client_id, found.host, found.instance_id) == ("me", "127.0.0.1", "one")
            assert [partition.partition for partition in found.partitions] == [0, 1, 2]
            assert await cluster.may_use_transactional_id("any")
            settings = await cluster.topic_settings("t")
            assert settings is not None
            assert settings["cleanup.policy"] == "delete"
            assert await cluster.broker_settings()
    finally:
        await member.stop()


async def test_without_a_broker_one_message_says_so() -> None:
    with pytest.raises(ConsumerError, match=r"no Kafka broker answers .*127.0.0.1:1: "):
        async with connect_admin({"bootstrap_servers": "127.0.0.1:1"}):
            pass
