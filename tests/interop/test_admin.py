"""The clients' admin APIs against the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from .clients.base import Group, Journal, Message, Refused, TooLarge
from .clients.via_aiokafka import Aiokafka

if TYPE_CHECKING:
    from kmr.broker import Broker
    from kmr.testing import StartBroker

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


async def test_a_topics_settings_are_changed_and_hold_at_once(
    broker: Broker, admin_client: AdminClient
) -> None:
    await broker.topics.create("t", 1, {"retention.ms": "1000"})
    client = Aiokafka()
    async with admin_client.admin(broker.bootstrap_servers) as admin:
        await admin.set_config("t", {"max.message.bytes": "150", "cleanup.policy": "delete"})
        config = await admin.topic_config("t")
        assert (config["max.message.bytes"], config["cleanup.policy"]) == ("150", "delete")
        for setting, value in (("retention.ms", "soon"), ("cleanup.policy", "shred")):
            with pytest.raises(Refused) as refused:
                await admin.set_config("t", {setting: value})
            assert refused.value.code == ErrorCode.invalid_config
        with pytest.raises(Refused) as refused:
            await admin.set_config("unknown", {"retention.ms": "1"})
        assert refused.value.code == ErrorCode.unknown_topic_or_partition
    async with client.producer(broker.bootstrap_servers) as producer:
        await producer.send("t", [Message(b"x" * 10)])
        with pytest.raises(TooLarge):
            await producer.send("t", [Message(b"x" * 200)])


async def test_partitions_are_added_and_written_to(
    broker: Broker, admin_client: AdminClient
) -> None:
    await broker.topics.create("t", 2)
    async with admin_client.admin(broker.bootstrap_servers) as admin:
        await admin.add_partitions("t", 4)
        assert await admin.topics() == {"t": 4}
        with pytest.raises(Refused) as refused:
            await admin.add_partitions("t", 3)
        assert refused.value.code == ErrorCode.invalid_partitions
    async with Aiokafka().producer(broker.bootstrap_servers) as producer:
        await producer.send("t", [Message(b"a")], partition=3)


async def test_records_are_deleted_up_to_an_offset(
    broker: Broker, admin_client: AdminClient
) -> None:
    await broker.topics.create("t")
    servers = broker.bootstrap_servers
    async with Aiokafka().producer(servers) as producer:
        await producer.send("t", [Message(b"%d" % n) for n in range(5)])
    async with admin_client.admin(servers) as admin:
        assert await admin.delete_records("t", 0, 3) == 3
        async with Aiokafka().reader(servers, "t") as reader:
            (first, *_) = await reader.read(2)
        assert (first.offset, first.message.value) == (3, b"3")
        with pytest.raises(Refused) as refused:
            await admin.delete_records("t", 0, 6)
        assert refused.value.code == ErrorCode.offset_out_of_range
        assert await admin.delete_records("t", 0, -1) == 5
