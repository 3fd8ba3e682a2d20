"""Which topics a subscription has, and how a consumer follows a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.kafka.subscription import Subscription
from kmr.record import TopicPartition

from .members import Member, consumer_config

if TYPE_CHECKING:
    from kmr.broker import Broker

    from .members import Produce


@pytest.mark.parametrize(
    ("subscription", "matching", "shown"),
    [
        (Subscription(("a", "b")), ["a", "b"], "a, b"),
        (Subscription(pattern="a|b.*"), ["a", "b", "bc"], "topics that match a|b.*"),
        (Subscription(pattern="(?i)A"), ["a"], "topics that match (?i)A"),
    ],
)
def test_a_subscription_has_the_topics_whose_whole_names_match(
    subscription: Subscription, matching: list[str], shown: str
) -> None:
    assert [topic for topic in ("a", "ab", "b", "bc", "cb") if topic in subscription] == matching
    assert str(subscription) == shown


async def test_a_topic_that_is_created_later_joins_and_one_that_does_not_match_does_not(
    broker: Broker, produce: Produce
) -> None:
    await broker.topics.create("orders-1", 1)
    await broker.topics.create("other", 1)
    config = consumer_config(
        bootstrap_servers=broker.bootstrap_servers,
        topics=(),
        topic_pattern="orders-.",
        auto_offset_reset="latest",
        metadata_max_age=0.1,
    )
    member = Member(KafkaConsumer(config))
    await member.consumer.start(member)
    try:
        with anyio.fail_after(60):
            await member.until_assigned({TopicPartition("orders-1", 0)}.__eq__)
            await produce("other", [b"no"])
            await produce("orders-10", [b"no"])
            await produce("orders-2", [b"first"])
            await member.until_assigned(
                {TopicPartition("orders-1", 0), TopicPartition("orders-2", 0)}.__eq__
            )
            [batch] = await member.read(1)
            assert (batch.topic, batch.first) == ("orders-2", 0)
            await broker.topics.delete("orders-1")
            await member.until_assigned({TopicPartition("orders-2", 0)}.__eq__)
    finally:
        await member.consumer.stop()
