"""Where a client begins to read: both ends, an offset, a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer

from .clients.base import At, Message

if TYPE_CHECKING:
    from kmr.broker import Broker

    from .clients.base import Client, Start

EPOCH = 1_700_000_000_000
COUNT = 1_000


@pytest.fixture
async def filled(broker: Broker) -> Broker:
    """A broker with a topic whose record n has the time EPOCH + 10 n, in batches of many."""
    await broker.topics.create("t")
    for codec, numbers in ((None, range(COUNT // 2)), ("zstd", range(COUNT // 2, COUNT))):
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            compression_type=codec,
            max_batch_size=2_000,
            linger_ms=20,
        ) as producer:
            for number in numbers:
                timestamp = EPOCH + 10 * number
                await producer.send("t", b"%d" % number, partition=0, timestamp_ms=timestamp)
            await producer.flush()
    return broker


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("beginning", 0),
        (737, 737),
        (At(0), 0),
        (At(EPOCH + 10 * 237), 237),
        (At(EPOCH + 10 * 237 + 1), 238),
        (At(EPOCH + 10 * 737), 737),
        (At(EPOCH + 10 * 737 - 9), 737),
    ],
    ids=str,
)
async def test_reading_begins_at_the_requested_position(
    filled: Broker, client: Client, start: Start, first: int
) -> None:
    async with client.reader(filled.bootstrap_servers, "t", start) as reader:
        records = await reader.read(COUNT - first)
    numbers = range(first, COUNT)
    assert [record.offset for record in records] == list(numbers)
    assert [record.message.value for record in records] == [b"%d" % number for number in numbers]
    assert [record.timestamp for record in records] == [EPOCH + 10 * number for number in numbers]


@pytest.mark.parametrize("start", ["end", COUNT, At(EPOCH + 10 * COUNT)], ids=str)
async def test_from_the_end_only_new_records_are_read(
    filled: Broker, client: Client, start: Start
) -> None:
    servers = filled.bootstrap_servers
    async with (
        client.reader(servers, "t", start) as reader,
        client.producer(servers) as producer,
    ):
        await producer.send("t", [Message(b"new")])
        (record,) = await reader.read(1)
    assert (record.offset, record.message.value) == (COUNT, b"new")


async def test_each_partition_has_offsets_of_its_own(broker: Broker, client: Client) -> None:
    await broker.topics.create("t", 3)
    servers = broker.bootstrap_servers
    async with client.producer(servers) as producer:
        for partition in range(3):
            values = [b"%d-%d" % (partition, number) for number in range(10 * partition + 1)]
            await producer.send("t", [Message(value) for value in values], partition=partition)
    for partition in range(3):
        async with client.reader(servers, "t", partition=partition) as reader:
            records = await reader.read(10 * partition + 1)
        assert {record.partition for record in records} == {partition}
        assert records[-1].message.value == b"%d-%d" % (partition, 10 * partition)


async def test_after_an_offset_out_of_range_reading_continues_with_new_records(
    broker: Broker, client: Client
) -> None:
    """Clients reset by themselves when the broker says OFFSET_OUT_OF_RANGE: by default to the end."""
    await broker.topics.create("t")
    servers = broker.bootstrap_servers
    async with (
        client.reader(servers, "t", 1_000_000) as reader,
        client.producer(servers) as producer,
    ):
        reading = asyncio.create_task(reader.read(1))
        while not reading.done():
            await producer.send("t", [Message(b"new")])
        (record,) = await reading
    assert record.message.value == b"new"
