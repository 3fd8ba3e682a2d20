"""Consumer groups whose members come and go, also over a restart of the broker."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.broker import Broker, BrokerSettings
from kmr.chaos.services import free_port

from .clients.base import TIMEOUT, Journal, Message
from .clients.via_aiokafka import Aiokafka
from .clients.via_librdkafka import Librdkafka
from .conftest import LEAKS

if TYPE_CHECKING:
    from pathlib import Path

    from .clients.base import Client

PARTITIONS = 6


class Feed:
    """Writes values that never come again, to all partitions."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.values: list[bytes] = []

    async def write(self, count: int) -> None:
        """`count` more in each partition."""
        async with Aiokafka().producer(self._servers) as producer:
            for partition in range(PARTITIONS):
                first = len(self.values)
                new = [b"%d" % number for number in range(first, first + count)]
                await producer.send("t", [Message(value) for value in new], partition=partition)
                self.values += new

    async def until_committed(self, group: str) -> None:
        """Wait until the group has committed everything.

        A member that leaves while others join or leave may give up its last commit.
        """
        everything = dict.fromkeys(range(PARTITIONS), len(self.values) // PARTITIONS)
        async with Librdkafka().admin(self._servers) as admin:
            with anyio.fail_after(TIMEOUT):
                while await admin.committed(group, "t") != everything:  # noqa: ASYNC110  another process
                    await anyio.sleep(0.05)


@pytest.fixture
async def feed(broker: Broker) -> Feed:
    await broker.topics.create("t", PARTITIONS)
    return Feed(broker.bootstrap_servers)


@pytest.mark.slow
async def test_members_that_come_and_go_share_the_partitions_and_miss_nothing(
    broker: Broker, group_client: Client, feed: Feed
) -> None:
    servers, journal = broker.bootstrap_servers, Journal()
    async with AsyncExitStack() as first, AsyncExitStack() as others:
        await feed.write(50)
        await first.enter_async_context(group_client.member(servers, "g", "t", journal))
        await journal.until_assigned(PARTITIONS)
        for _ in range(2):
            await others.enter_async_context(group_client.member(servers, "g", "t", journal))
        await journal.until_assigned(PARTITIONS)
        await feed.write(50)
        await journal.until_read(feed.values)
        await first.aclose()
        await feed.write(50)
        await journal.until_assigned(PARTITIONS)
        assert len(journal.members) == 2
        await others.enter_async_context(group_client.member(servers, "g", "t", journal))
        await feed.write(50)
        await journal.until_assigned(PARTITIONS)
        await journal.until_read(feed.values)
        await feed.until_committed("g")
    later = Journal()
    async with group_client.member(servers, "g", "t", later):
        await later.until_assigned(PARTITIONS)
        before = len(feed.values)
        await feed.write(1)
        await later.until_read(feed.values[before:])
    assert sorted(record.message.value or b"" for record in later.records) == sorted(
        feed.values[before:]
    ), "everything before was committed"


@LEAKS
@pytest.mark.slow
async def test_different_clients_share_a_group(
    broker: Broker, clients: list[Client], feed: Feed
) -> None:
    servers, journal = broker.bootstrap_servers, Journal()
    async with AsyncExitStack() as members:
        for client in clients:
            await members.enter_async_context(client.member(servers, "g", "t", journal))
        await journal.until_assigned(PARTITIONS)
        await feed.write(50)
        await journal.until_read(feed.values)


@pytest.fixture
async def settings(tmp_path: Path) -> BrokerSettings:
    """Of a broker that is started again on the same data and port."""
    settings = BrokerSettings(data_dir=tmp_path / "data", port=free_port())
    async with Broker(settings) as broker:
        await broker.topics.create("t", PARTITIONS)
    return settings


async def test_a_group_goes_on_where_it_was_after_a_restart(
    group_client: Client, settings: BrokerSettings
) -> None:
    for _ in range(2):
        journal = Journal()
        async with Broker(settings) as broker:
            feed = Feed(broker.bootstrap_servers)
            async with group_client.member(broker.bootstrap_servers, "g", "t", journal):
                await feed.write(20)
                await journal.until_read(feed.values)
        offsets = [record.offset for record in journal.records]
        assert len(offsets) == len(feed.values)
    assert min(offsets) == 20


@pytest.mark.slow
async def test_members_go_on_by_themselves_over_a_restart(
    group_client: Client, settings: BrokerSettings
) -> None:
    journal = Journal()
    feed = Feed(f"127.0.0.1:{settings.port}")
    async with AsyncExitStack() as members:
        for run in range(3):
            async with Broker(settings) as broker:
                if run == 0:
                    for _ in range(2):
                        member = group_client.member(broker.bootstrap_servers, "g", "t", journal)
                        await members.enter_async_context(member)
                await journal.until_assigned(PARTITIONS)
                await feed.write(20)
                await journal.until_read(feed.values)
                if run == 2:
                    await members.aclose()
