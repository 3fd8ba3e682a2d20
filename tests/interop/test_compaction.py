"""Compacted topics: clients read around what is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.compactor import compact

from .clients.base import At, Client, Message
from .clients.via_aiokafka import Aiokafka

if TYPE_CHECKING:
    from broker.topics import Topic
    from framework.testing import StartBroker

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "1", "min.cleanable.dirty.ratio": "0"}
FAR_FUTURE_MS = 2**50


async def compacted(start_broker: StartBroker, *messages: Message) -> tuple[str, Topic]:
    """A topic with these messages, each sent on its own, compacted but for the last one."""
    broker = await start_broker()
    topic = await broker.topics.create("t", 1, COMPACT)
    async with Aiokafka().producer(broker.bootstrap_servers) as producer:
        for message in messages:
            await producer.send("t", [message])
    await compact(topic.partitions[0], broker.topics, now_ms=FAR_FUTURE_MS)
    return broker.bootstrap_servers, topic


async def test_a_client_reads_the_latest_record_of_each_key(
    start_broker: StartBroker, client: Client
) -> None:
    messages = [Message(b"%d" % n, b"k%d" % (n % 3)) for n in range(12)]
    servers, _ = await compacted(start_broker, *messages)
    async with client.reader(servers, "t") as reader:
        records = await reader.read(4)
    # 8 has the same key as 11, which is in the active segment and was not looked at.
    assert [record.offset for record in records] == [8, 9, 10, 11]
    assert [record.message.value for record in records] == [b"8", b"9", b"10", b"11"]


@pytest.mark.parametrize("offset", [0, 3, 8])
async def test_a_client_goes_on_from_an_offset_whose_record_is_gone(
    start_broker: StartBroker, client: Client, offset: int
) -> None:
    messages = [Message(b"%d" % n, b"k") for n in range(10)]
    servers, topic = await compacted(start_broker, *messages)
    async with client.reader(servers, "t", offset) as reader:
        (first, *_) = await reader.read(1)
        assert first.offset == max(offset, 8)
    assert topic.partitions[0].log.log_start_offset == 0


async def test_a_client_that_waits_behind_a_gap_gets_what_comes_next(
    start_broker: StartBroker, client: Client
) -> None:
    messages = [Message(b"%d" % n, b"k") for n in range(5)]
    servers, topic = await compacted(start_broker, *messages)
    log = topic.partitions[0].log
    log.roll()
    async with Aiokafka().producer(servers) as producer, client.reader(servers, "t") as reader:
        (first, second) = await reader.read(2)
        assert (first.offset, second.offset) == (3, 4)
        await producer.send("t", [Message(b"new", b"k")])
        (last, *_) = await reader.read(1)
        assert last.offset == 5


async def test_a_time_in_a_gap_is_that_of_the_next_record(
    start_broker: StartBroker, client: Client
) -> None:
    messages = [Message(b"%d" % n, b"k") for n in range(4)]
    servers, _ = await compacted(start_broker, *messages)
    async with client.reader(servers, "t", At(1)) as reader:
        (first, *_) = await reader.read(1)
    assert first.offset == 2
