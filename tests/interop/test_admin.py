"""What the admin APIs of the clients can ask of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from .clients.base import Group, Journal, Message, Refused
from .clients.via_aiokafka import Aiokafka

if TYPE_CHECKING:
    from broker import Broker
    from framework.testing import StartBroker

    from .clients.base import AdminClient


async def test_topics_are_created_listed_described_and_deleted(
    start_broker: StartBroker, admin_client: AdminClient
) -> None:
    broker = await start_broker(auto_create_topics=False, retention_bytes=12_345)
    async with admin_client.admin(broker.bootstrap_servers) as admin:
        await admin.create_topic("first", 3, {"max.message.bytes": "2000"})
        await admin.create_topic("second", 1, {})
        assert await admin.topics() == {"first": 3, "second": 1}
        first, second = await admin.topic_config("first"), await admin.topic_config("second")
        assert (first["max.message.bytes"], second["max.message.bytes"]) == ("2000", "1048588")
        assert first["retention.bytes"] == second["retention.bytes"] == "12345"
        await admin.delete_topic("first")
        assert await admin.topics() == {"second": 1}
    assert broker.topics.get("first") is None


async def test_the_settings_of_the_broker_are_described(
    start_broker: StartBroker, admin_client: AdminClient
) -> None:
    broker = await start_broker(message_max_bytes=123_456, default_partitions=7)
    async with admin_client.admin(broker.bootstrap_servers) as admin:
        config = await admin.broker_config()
    assert config["message.max.bytes"] == "123456"
    assert config["num.partitions"] == "7"


async def test_what_makes_no_sense_is_refused_with_a_code(
    broker: Broker, admin_client: AdminClient
) -> None:
    await broker.topics.create("t")
    async with admin_client.admin(broker.bootstrap_servers) as admin:
        for name, partitions, config, code in (
            ("t", 1, {}, ErrorCode.topic_already_exists),
            ("no spaces", 1, {}, ErrorCode.invalid_topic_exception),
            ("new", 0, {}, ErrorCode.invalid_partitions),
            ("new", 1, {"no.such.setting": "1"}, ErrorCode.invalid_config),
            ("new", 1, {"retention.ms": "soon"}, ErrorCode.invalid_config),
        ):
            with pytest.raises(Refused) as refused:
                await admin.create_topic(name, partitions, config)
            assert refused.value.code == code
        with pytest.raises(Refused) as refused:
            await admin.delete_topic("unknown")
        assert refused.value.code == ErrorCode.unknown_topic_or_partition
        assert await admin.topics() == {"t": 1}


async def test_groups_are_listed_described_and_deleted(
    broker: Broker, admin_client: AdminClient
) -> None:
    await broker.topics.create("t", 2)
    servers, member, journal = broker.bootstrap_servers, Aiokafka(), Journal()
    async with admin_client.admin(servers) as admin:
        async with (
            member.member(servers, "g", "t", journal),
            member.member(servers, "g", "t", journal),
            member.producer(servers) as producer,
        ):
            await journal.until_assigned(2)
            await producer.send("t", [Message(b"a"), Message(b"b")], partition=1)
            await journal.until_read([b"a", b"b"])
            assert await admin.groups() == {"g"}
            assert await admin.group("g") == Group("Stable", 2)
            if admin_client.deletes_groups:
                with pytest.raises(Refused) as refused:
                    await admin.delete_group("g")
                assert refused.value.code == ErrorCode.non_empty_group
        assert await admin.group("g") == Group("Empty", 0)
        assert (await admin.committed("g", "t"))[1] == 2
        if admin_client.deletes_groups:
            await admin.delete_group("g")
            assert await admin.groups() == set()
            with pytest.raises(Refused) as refused:
                await admin.delete_group("g")
            assert refused.value.code == ErrorCode.group_id_not_found
