"""The id of a topic tells that it was deleted and created again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kmr.errors import ConsumerError
from kmr.kafka import topic_identity
from kmr.kafka.receiving import receive_in_place
from kmr.kafka.topic_identity import TopicIdentity

if TYPE_CHECKING:
    from kmr.broker import Broker


async def test_a_topic_that_is_deleted_or_made_anew_is_noticed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_identity, "_INTERVAL", 0.0)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic("t", 1, 1)])
    identity = TopicIdentity(admin._client, "t")
    await identity.check()
    await identity.check()
    await admin.delete_topics(["t"])
    with pytest.raises(ConsumerError, match=r"^topic t was deleted; what was read of it is kept"):
        await identity.check()
    await admin.create_topics([NewTopic("t", 1, 1)])
    with pytest.raises(ConsumerError, match=r"^topic t was deleted and made anew$"):
        await identity.check()
    await admin.close()


async def test_the_topic_may_have_thousands_of_partitions(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_identity, "_INTERVAL", 0.0)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    receive_in_place(admin._client)
    await admin.start()
    await admin.create_topics([NewTopic("wide", 3_500, 1)])
    identity = TopicIdentity(admin._client, "wide")
    await identity.check()
    await admin.delete_topics(["wide"])
    with pytest.raises(ConsumerError, match="topic wide was deleted"):
        await identity.check()
    await admin.close()


async def test_a_broker_is_asked_now_and_then_and_may_have_no_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_identity, "_INTERVAL", 3600.0)
    asked: list[int] = []

    class Old:
        def get_random_node(self) -> int:
            return 7

        async def send(self, node: int, _request: Any) -> Any:
            asked.append(node)
            raise NotImplementedError("MetadataRequest: the broker has versions 0 to 7, not 11")

    identity = TopicIdentity(Old(), "t")
    for _ in range(3):
        await identity.check()
    assert asked == [7]
