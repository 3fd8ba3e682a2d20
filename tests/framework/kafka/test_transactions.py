"""Transactions on a running broker: who may commit, and what becomes of the others' records."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiokafka
import anyio
import anyio.lowlevel
import pytest

from kmr.broker import Fault
from kmr.errors import BrokerUnavailable, CommitFenced, CommitRefused, ConsumerError
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.group_offsets import Membership
from kmr.kafka.transactions import Transactions
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.broker import Broker
    from kmr.kafka.kafka_consumer import KafkaConsumer

    from .members import Consume, CreateTopic

T0 = TopicPartition("t", 0)


@asynccontextmanager
async def opened(broker: Broker, name: str = "id", timeout: float = 10.0) -> AsyncIterator[Any]:
    client = {"bootstrap_servers": broker.bootstrap_servers, "client_id": "test"}
    transactions = Transactions(client, "g", name, timeout)
    await transactions.open()
    try:
        yield transactions
    finally:
        await transactions.close()


async def send(transactions: Transactions, value: bytes) -> None:
    producer = await transactions.begin()
    await producer.send_and_wait("out", value)


async def readable(broker: Broker) -> list[bytes | None]:
    """Return what a reader with `read_committed` finds in the topic now."""
    consumer: Any = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, isolation_level="read_committed"
    )
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition("out", 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        found: list[bytes | None] = []
        while await consumer.position(partition) < end:
            records = await consumer.getmany(partition, timeout_ms=100)
            found += [record.value for record in records.get(partition, [])]
        return found
    finally:
        await consumer.stop()


async def committed(consumer: KafkaConsumer) -> int | None:
    entry = (await consumer.committed([T0]))[T0]
    return None if entry is None else entry.offset


@pytest.fixture
async def member(consume: Consume, create_topic: CreateTopic) -> AsyncIterator[KafkaConsumer]:
    """A member of the group that owns the partition."""
    await create_topic("t")
    await create_topic("out")
    async with consume() as member:
        with anyio.fail_after(60):
            await member.until_assigned(lambda partitions: T0 in partitions)
        yield member.consumer


async def test_records_and_offsets_are_committed_together(
    broker: Broker, member: KafkaConsumer
) -> None:
    async with opened(broker) as transactions:
        async with transactions:
            await send(transactions, b"one")
            await transactions.commit({T0: CommitOffset(7, "note")}, member.membership([T0]))
        assert await readable(broker) == [b"one"]
        assert (await member.committed([T0]))[T0] == CommitOffset(7, "note")


async def test_what_is_not_committed_is_aborted_and_the_next_transaction_works(
    broker: Broker, member: KafkaConsumer
) -> None:
    aborted: list[None] = []
    async with opened(broker) as transactions:
        transactions.on_abort = lambda: aborted.append(None)
        async with transactions:
            await send(transactions, b"aborted")
        async with transactions:
            await send(transactions, b"two")
            await transactions.commit({T0: CommitOffset(2)}, member.membership([T0]))
        assert await readable(broker) == [b"two"]
    assert aborted == [None]


async def test_an_older_generation_commits_nothing(broker: Broker, member: KafkaConsumer) -> None:
    zombie = member.membership([T0])._replace(generation=member.generation - 1)
    async with opened(broker) as transactions:
        async with transactions:
            await send(transactions, b"late")
            with pytest.raises(CommitFenced, match="IllegalGeneration"):
                await transactions.commit({T0: CommitOffset(9)}, zombie)
        async with transactions:
            with pytest.raises(CommitFenced, match="not a member now"):
                await transactions.commit({T0: CommitOffset(9)}, Membership())
        assert await readable(broker) == []
        assert await committed(member) is None


async def test_a_stranger_to_the_group_commits_nothing(
    broker: Broker, member: KafkaConsumer
) -> None:
    stranger = member.membership([T0])._replace(member_id="stranger")
    async with opened(broker) as transactions, transactions:
        with pytest.raises(CommitFenced, match="UnknownMember"):
            await transactions.commit({T0: CommitOffset(9)}, stranger)


async def test_a_new_process_with_the_same_id_ends_the_transaction_of_the_one_before(
    broker: Broker, member: KafkaConsumer
) -> None:
    async with opened(broker) as old:
        async with old:
            await send(old, b"old")
            async with opened(broker) as new, new:
                await send(new, b"new")
                await new.commit({T0: CommitOffset(1)}, member.membership([T0]))
                with pytest.raises(ConsumerError, match="ProducerFenced"):
                    await old.commit({T0: CommitOffset(5)}, member.membership([T0]))
        assert await readable(broker) == [b"new"]
        assert await committed(member) == 1


async def test_a_broker_that_is_gone_is_named(broker: Broker, member: KafkaConsumer) -> None:
    transactions = Transactions({"bootstrap_servers": "127.0.0.1:9"}, "g", "id", 1.0)
    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        await transactions.open()
    assert not transactions.in_use


async def test_a_broker_that_refuses_the_transactional_id_is_named_and_cancels_nothing(
    broker: Broker, member: KafkaConsumer
) -> None:
    broker.faults.add(Fault(api="InitProducerId", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"))
    client = {"bootstrap_servers": broker.bootstrap_servers}
    with pytest.raises(CommitRefused, match="allow our user Write on the transactional id"):
        await Transactions(client, "g", "id", 5.0).open()


async def test_a_producer_in_the_middle_of_a_request_is_dropped_at_once(
    broker: Broker, member: KafkaConsumer
) -> None:
    async with opened(broker) as transactions:
        async with transactions:
            producer = await transactions.begin()
            broker_is_slow = anyio.Event()

            async def wait(*_: Any, **__: Any) -> Any:
                broker_is_slow.set()
                await anyio.sleep_forever()

            producer.client.send = wait
            await producer.send("out", b"never")
            await broker_is_slow.wait()
        async with transactions:
            await send(transactions, b"next")
            await transactions.commit({}, member.membership([T0]))
        assert await readable(broker) == [b"next"]
