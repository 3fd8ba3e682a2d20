"""What one client writes, every client reads, byte for byte."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.broker.log.records import CODECS as CODEC_NUMBERS
from kmr.broker.log.records import parse_header

from .clients.base import CODECS, Message, TooLarge

if TYPE_CHECKING:
    from kmr.broker import Broker
    from kmr.broker.log.records import BatchHeader
    from kmr.testing import StartBroker

    from .clients.base import Acks, Client, Codec, Record

# Long values: short ones are sent as they are if compression does not make them smaller.
MESSAGES = [
    *(Message(b"%d " % number * 200, b"key %d" % number) for number in range(100)),
    Message(None, b"a null value"),
    Message(b"", b"an empty value"),
    Message(b"a null key", None),
    Message(b"an empty key", b""),
    Message(b"", b""),
    Message(None, None),
    Message(None, b""),
    Message(bytes(range(256)), bytes(reversed(range(256)))),
    Message(b"headers", b"key", (("one", b"1"), ("two", b"\xfe\xff"), ("one", b"again"))),
    Message(b"null and empty headers", None, (("null", None), ("empty", b""))),
    Message(b"a header without a name", None, (("", b"value"),)),
    Message("Zürich 東京".encode(), "ключ".encode(), (("naïve", "café".encode()),)),
]

BATCH_OVERHEAD = 61
RECORD_OVERHEAD = 11
"""Of one record of a megabyte without key and headers."""


def stored(broker: Broker, topic: str = "t") -> list[BatchHeader]:
    """The batches of partition 0."""
    partition = broker.topics.partition(topic, 0)
    assert partition is not None
    data = bytearray(32 * 2**20)
    size = partition.log.read_into(0, memoryview(data)).size
    found, position = [], 0
    while position < size:
        found.append(parse_header(data, position))
        position = found[-1].end
    return found


async def read_all(client: Client, broker: Broker, count: int) -> list[Record]:
    async with client.reader(broker.bootstrap_servers, "t") as reader:
        records = await reader.read(count)
    assert [record.offset for record in records] == list(range(count))
    return records


@pytest.mark.parametrize("codec", CODECS)
async def test_every_client_reads_what_a_client_wrote(
    broker: Broker, client: Client, clients: list[Client], codec: Codec
) -> None:
    if not client.has(codec):
        pytest.skip(f"{client.name} is installed without {codec}")
    await broker.topics.create("t")
    written = [message for message in MESSAGES if client.can_send(message)]
    async with client.producer(broker.bootstrap_servers, codec=codec) as producer:
        await producer.send("t", written)
    assert CODEC_NUMBERS[codec] in {batch.compression for batch in stored(broker)}

    async def read(reader: Client) -> None:
        records = await read_all(reader, broker, len(written))
        assert [record.message for record in records] == written, f"read by {reader.name}"

    async with anyio.create_task_group() as tasks:
        for reader in clients:
            if reader.has(codec):
                tasks.start_soon(read, reader)


@pytest.mark.slow
async def test_a_large_number_of_records_is_read_as_it_was_written(
    start_broker: StartBroker, client: Client
) -> None:
    broker = await start_broker(segment_bytes=1_100_000, message_max_bytes=1_000_000)
    await broker.topics.create("t")
    noise = random.Random(1)
    written = [
        Message(noise.randbytes(noise.randrange(1, 300)), noise.randbytes(noise.randrange(1, 20)))
        for _ in range(50_000)
    ]
    async with client.producer(broker.bootstrap_servers) as producer:
        await producer.send("t", written)
    records = await read_all(client, broker, len(written))
    assert [record.message for record in records] == written


@pytest.mark.parametrize("acks", ["0", "1", "all"])
async def test_records_arrive_with_any_acknowledgement(
    broker: Broker, client: Client, acks: Acks
) -> None:
    await broker.topics.create("t")
    written = [Message(b"%d" % number) for number in range(500)]
    async with client.producer(broker.bootstrap_servers, acks=acks) as producer:
        await producer.send("t", written)
    records = await read_all(client, broker, len(written))
    assert [record.message for record in records] == written


async def test_an_idempotent_producer_is_known_to_the_broker(
    broker: Broker, client: Client
) -> None:
    await broker.topics.create("t")
    written = [Message(b"%d" % number) for number in range(500)]
    async with client.producer(broker.bootstrap_servers, idempotent=True) as producer:
        await producer.send("t", written[:250])
        await producer.send("t", written[250:])
    assert all(batch.producer_id >= 0 for batch in stored(broker))
    records = await read_all(client, broker, len(written))
    assert [record.message for record in records] == written


async def test_a_topic_that_does_not_exist_is_created_by_the_first_record(
    start_broker: StartBroker, client: Client
) -> None:
    broker = await start_broker(default_partitions=3)
    async with client.producer(broker.bootstrap_servers) as producer:
        await producer.send("t", [Message(b"first")], partition=2)
    topic = broker.topics.get("t")
    assert topic is not None
    assert [partition.high_watermark for partition in topic.partitions] == [0, 0, 1]


async def test_message_max_bytes_is_the_exact_limit_and_the_producer_goes_on_beyond_it(
    broker: Broker, client: Client
) -> None:
    await broker.topics.create("t")
    largest = broker.settings.message_max_bytes - BATCH_OVERHEAD - RECORD_OVERHEAD
    value = random.Random(1).randbytes(largest)
    async with client.producer(broker.bootstrap_servers) as producer:
        with pytest.raises(TooLarge):
            await producer.send("t", [Message(value + b"!")])
        await producer.send("t", [Message(value)])
        await producer.send("t", [Message(b"small")])
    assert stored(broker)[0].size == broker.settings.message_max_bytes
    records = await read_all(client, broker, 2)
    assert [record.message.value for record in records] == [value, b"small"]
