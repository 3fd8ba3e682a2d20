"""Groups of a real client."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from kmr.broker import Broker, BrokerSettings
from kmr.broker.coordinators.offset_store import OffsetStore
from kmr.broker.coordinators.state_log import StateLog
from kmr.broker.log.log_config import LogConfig
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def broker(start: Start) -> Broker:
    """A broker with a topic "t" of four partitions."""
    broker = await start(group_min_session_timeout=0.1)
    await broker.topics.create("t", 4)
    return broker


def consumer(broker: Broker, group: str = "g", **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
        session_timeout_ms=20_000,
        **settings,
    )


async def assigned(*consumers: AIOKafkaConsumer) -> None:
    """Wait until the consumers share all partitions, each exactly once."""
    everything = sorted(TopicPartition("t", index) for index in range(4))
    async with asyncio.timeout(60):
        while sorted(tp for each in consumers for tp in each.assignment()) != everything:
            for each in consumers:
                await each.getmany(timeout_ms=20)


async def test_consumers_share_the_partitions_as_they_come_and_go(broker: Broker) -> None:
    async with consumer(broker) as first:
        await assigned(first)
        async with consumer(broker) as second, consumer(broker) as third:
            await assigned(first, second, third)
        await assigned(first)


async def test_a_group_reads_each_record_once_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    read: list[bytes] = []
    for round_ in range(2):
        settings = BrokerSettings(
            data_dir=tmp_path, port=0, default_partitions=4, group_min_session_timeout=0.1
        )
        async with Broker(settings) as broker:
            async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
                for index in range(50):
                    await producer.send("t", b"%d-%d" % (round_, index))
            async with consumer(broker) as reader, asyncio.timeout(60):
                while len(read) < 50 * (round_ + 1):
                    for records in (await reader.getmany(timeout_ms=1_000)).values():
                        read += [record.value for record in records]
                await reader.commit()
    assert len(set(read)) == len(read) == 100


async def test_members_survive_a_restart_of_the_broker_without_a_rebalance(
    tmp_path: Path,
) -> None:
    settings = BrokerSettings(data_dir=tmp_path, port=free_port(), group_min_session_timeout=0.1)
    async with Broker(settings) as broker:
        await broker.topics.create("t", 4)
        member = consumer(broker, retry_backoff_ms=20)
        await member.start()
        await assigned(member)
    try:
        async with Broker(settings) as broker, asyncio.timeout(60):
            offsets = {TopicPartition("t", index): 5 for index in range(4)}
            while True:
                try:
                    await member.commit(offsets)
                    break
                except KafkaError:
                    continue
            async with AIOKafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers, group_id="g"
            ) as observer:
                assert await observer.committed(TopicPartition("t", 3)) == 5
            await member.stop()
    finally:
        await member.stop()
    store = OffsetStore(StateLog(tmp_path / "offsets", LogConfig(), clean=True))
    stored = store.stored_group("g")
    store.close()
    assert stored is not None
    assert stored.snapshot.generation == 2  # one when it joined, one when it left


async def test_metadata_is_committed_with_an_offset(broker: Broker) -> None:
    async with consumer(broker) as first:
        await assigned(first)
        partition = TopicPartition("t", 1)
        await first.commit({partition: OffsetAndMetadata(7, '{"last": 9}')})
        assert await first.committed(partition) == 7


async def test_no_record_is_missed_while_members_come_and_go(broker: Broker) -> None:
    total, changes = 2_000, 20
    read: set[bytes] = set()
    async with AsyncExitStack() as stack:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        await stack.enter_async_context(producer)
        members: list[AIOKafkaConsumer[bytes, bytes]] = []

        async def read_some() -> None:
            for each in members:
                for records in (await each.getmany(timeout_ms=10)).values():
                    read.update(record.value for record in records)
                with suppress(CommitFailedError, IllegalStateError):  # it lost its partitions
                    await each.commit()

        for change in range(changes):
            if change % 5 in (3, 4) and len(members) > 1:
                await members.pop(0).stop()
            else:
                members.append(await stack.enter_async_context(consumer(broker)))
            for index in range(total // changes):
                await producer.send("t", b"%d-%d" % (change, index))
            await read_some()
        async with asyncio.timeout(60):
            while len(read) < total:
                await read_some()
        await assigned(*members)
