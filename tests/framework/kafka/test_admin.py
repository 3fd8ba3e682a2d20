"""Inspecting groups and resetting their offsets, against a running broker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError

from kmr.broker import Fault
from kmr.errors import BrokerUnavailable, ConsumerError, OffsetOutOfRange
from kmr.kafka.admin import Admin, connect_admin
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.record import TopicPartition

from .members import consumer_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.broker import Broker

    from .members import CreateTopic, Produce


T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


@pytest.fixture
async def admin(
    broker: Broker, create_topic: CreateTopic, produce: Produce
) -> AsyncIterator[Admin]:
    await create_topic("t", 2)
    for second in range(3):
        await produce("t", [b"x", b"y"], 1, timestamp=1000 * second)
    async with connect_admin(ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)) as admin:
        yield admin


class Listener:
    """Notes that it was assigned partitions."""

    def __init__(self) -> None:
        self.was_assigned = anyio.Event()

    async def revoked(self, partitions: Any) -> None: ...

    async def assigned(self, partitions: Any) -> None:
        self.was_assigned.set()


async def test_the_partitions_and_ends_of_topics_are_found(admin: Admin) -> None:
    assert await admin.topic_partitions(["t"]) == [T0, T1]
    assert await admin.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
    assert await admin.end_offsets([T1, T0]) == {T0: 0, T1: 6}


async def test_offsets_are_found_by_time(admin: Admin) -> None:
    assert await admin.offsets_for_times({T0: 0, T1: 500}) == {T0: None, T1: 2}
    assert await admin.offsets_for_times({T1: 2001}) == {T1: None}


async def test_topics_and_partitions_that_do_not_exist_are_named(admin: Admin) -> None:
    with pytest.raises(ConsumerError, match=r"t-7 does not exist at 127\.0\.0\.1"):
        await admin.end_offsets([TopicPartition("t", 7)])
    for _ in range(2):  # asking does not create it
        with pytest.raises(ConsumerError, match=r"topic tt does not exist at 127\.0\.0\.1"):
            await admin.topic_partitions(["t", "tt"])


async def test_offsets_of_a_group_without_members_can_be_moved(admin: Admin) -> None:
    found = await admin.group("g")
    assert (found.name, found.state, found.members) == ("g", "Dead", ())
    assert await admin.list_group_offsets("g") == {}
    await admin.reset_offsets("g", {T0: CommitOffset(0), T1: CommitOffset(4)})
    assert await admin.list_group_offsets("g") == {T0: CommitOffset(0), T1: CommitOffset(4)}
    await admin.reset_offsets("g", {T1: CommitOffset(2)})
    assert await admin.list_group_offsets("g") == {T0: CommitOffset(0), T1: CommitOffset(2)}
    assert (await admin.group("g")).state == "Empty"


async def test_offsets_that_the_log_does_not_have_are_refused(admin: Admin) -> None:
    with pytest.raises(OffsetOutOfRange, match="t-1: offset 7 is not in the log, which has 0 to 6"):
        await admin.reset_offsets("g", {T0: CommitOffset(0), T1: CommitOffset(7)})
    assert await admin.list_group_offsets("g") == {}


async def test_a_group_with_members_shows_them_and_keeps_its_offsets(
    admin: Admin, broker: Broker
) -> None:
    consumer = KafkaConsumer(
        consumer_config(bootstrap_servers=broker.bootstrap_servers, client_id="me")
    )
    listener = Listener()
    await consumer.start(listener)
    await listener.was_assigned.wait()
    group = await admin.group("g")
    assert group.state == "Stable"
    (member,) = group.members
    assert (member.client_id, member.partitions) == ("me", (T0, T1))
    assert member.member_id == consumer.member_id
    with pytest.raises(ConsumerError, match=r"group g has 1 member \(me at .*\): stop them"):
        await admin.reset_offsets("g", {T0: CommitOffset(0)})
    await consumer.stop()
    await admin.reset_offsets("g", {T0: CommitOffset(0)})


async def test_a_broker_that_goes_away_while_connecting_is_an_error_of_ours(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two connections fails."""

    async def fail(_client: AIOKafkaAdminClient) -> None:
        await anyio.lowlevel.checkpoint()
        raise KafkaConnectionError

    monkeypatch.setattr(AIOKafkaAdminClient, "start", fail)
    with pytest.raises(ConsumerError, match=r"connecting: the broker at .* refused"):
        async with connect_admin(ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)):
            pass


async def test_without_a_broker_the_error_says_so() -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1: Connection refused"):
        async with connect_admin(ConnectionConfig(bootstrap_servers="127.0.0.1:1")):
            pass


async def test_a_missing_coordinator_is_retried(admin: Admin, broker: Broker) -> None:
    await admin.reset_offsets("g", {T1: CommitOffset(2)})
    missing = Fault(api="FindCoordinator", times=2, error="COORDINATOR_NOT_AVAILABLE")
    first = broker.faults.add(missing)
    assert await admin.list_group_offsets("g") == {T1: CommitOffset(2, "")}
    second = broker.faults.add(Fault(api="FindCoordinator", times=2, error="NOT_COORDINATOR"))
    found = await admin.group("g")
    assert (found.name, found.state, found.members) == ("g", "Empty", ())
    assert (first.applied, second.applied) == (2, 2)


async def test_a_coordinator_that_stays_missing_is_the_reason(admin: Admin, broker: Broker) -> None:
    admin._config = replace(admin._config, request_timeout=1.0)
    broker.faults.add(Fault(api="FindCoordinator", error="COORDINATOR_NOT_AVAILABLE"))
    with pytest.raises(ConsumerError, match=r"group g: the broker at .* refused: .*NotAvailable"):
        await admin.group("g")
