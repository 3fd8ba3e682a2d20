"""The producer that sends whole batches."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker import Broker, client
from kmr.broker.client import BatchProducer, Compression, ProduceError, partitions_of

Start = Callable[..., Awaitable[Broker]]


async def read(broker: Broker, topic: str, count: int) -> list[ConsumerRecord[bytes, bytes]]:
    """All records of a topic, in the order of each partition; there must be exactly `count`."""
    records: list[Any] = []
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(60):
            while len(records) < count:
                for some in (await consumer.getmany(timeout_ms=1000)).values():
                    records += some
        ends = await consumer.end_offsets(list(consumer.assignment()))
    assert sum(ends.values()) == count
    return records


@pytest.mark.parametrize("compression", get_args(Compression))
async def test_records_arrive_once_and_in_order_with_every_codec(
    start: Start, compression: Compression
) -> None:
    broker = await start(default_partitions=3)
    values = [b"value %d" % index for index in range(5_000)]
    keys = [b"key %d" % (index % 10) for index in range(5_000)]
    servers = broker.bootstrap_servers
    async with BatchProducer(servers, "t", compression=compression, batch_bytes=8_000) as producer:
        for at in range(0, 5_000, 700):
            await producer.send(values[at : at + 700], keys[at : at + 700])
    assert producer.acknowledged == 5_000

    records = await read(broker, "t", 5_000)

    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(record.value)
    assert by_key == {b"key %d" % key: values[key::10] for key in range(10)}


async def test_keys_go_to_the_partitions_of_aiokafkas_producer(start: Start) -> None:
    broker = await start(default_partitions=5)
    keys = [b"k" * (index % 13) + b"%d" % index for index in range(200)]
    async with BatchProducer(broker.bootstrap_servers, "ours") as producer:
        await producer.send(keys, keys)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as ordinary:
        for key in keys:
            await ordinary.send("theirs", key, key=key)
    ours, theirs = await read(broker, "ours", 200), await read(broker, "theirs", 200)
    assert {r.key: r.partition for r in ours} == {r.key: r.partition for r in theirs}


async def test_records_without_a_key_fill_one_batch_after_another(start: Start) -> None:
    broker = await start(default_partitions=4)
    async with BatchProducer(broker.bootstrap_servers, "t", batch_bytes=1_000) as producer:
        assert producer.partitions == 4
        await producer.send([b"x" * 50] * 1_000)
        await producer.send([b"x" * 50] * 1_000, [None] * 1_000)
    records = await read(broker, "t", 2_000)
    counts = [sum(record.partition == index for record in records) for index in range(4)]
    assert min(counts) > 300


async def test_a_record_keeps_its_headers_timestamp_and_partition(start: Start) -> None:
    broker = await start(default_partitions=4)
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        await producer.send(
            [b"value", None],
            [b"key", b"key"],
            headers=[("trace", b"1"), ("empty", b"")],
            partition=3,
            timestamp_ms=1_234,
        )
    first, tombstone = await read(broker, "t", 2)
    assert (first.partition, first.timestamp, first.value) == (3, 1_234, b"value")
    assert first.headers == (("trace", b"1"), ("empty", b""))
    assert (tombstone.key, tombstone.value) == (b"key", None)


async def test_an_incomplete_batch_is_sent_after_the_linger_time(start: Start) -> None:
    broker = await start()
    async with BatchProducer(broker.bootstrap_servers, "t", linger=0.001) as producer:
        await producer.send([b"value"])
        assert [record.value for record in await read(broker, "t", 1)] == [b"value"]


async def test_a_partition_that_does_not_exist_is_refused(broker: Broker) -> None:
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        with pytest.raises(ValueError, match="no partition 7"):
            await producer.send([b""], partition=7)


async def test_a_record_that_is_too_large_is_an_error_with_the_number_acknowledged(
    start: Start,
) -> None:
    broker = await start(message_max_bytes=10_000)
    producer = BatchProducer(broker.bootstrap_servers, "t", batch_bytes=1_000)

    async def produce() -> None:
        async with producer:
            await producer.send([b"small"] * 3)
            await producer.flush()
            await producer.send([b"x" * 20_000])

    with pytest.raises(ProduceError, match=r"topic t: .* 3 before them were"):
        await produce()
    assert producer.acknowledged == 3


async def test_a_broker_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KafkaError):
        async with BatchProducer("127.0.0.1:1", "t"):
            raise AssertionError("not reached")


@given(st.lists(st.binary(max_size=70), max_size=50), st.integers(1, 100))
def test_keys_go_to_the_partitions_of_kafkas_clients(keys: list[bytes], partitions: int) -> None:
    expected = [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_of(keys, partitions).tolist() == expected


@pytest.mark.parametrize(
    ("key", "murmur"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-longer-string", -1486304829)],
)
def test_hashes_are_those_of_the_java_client(key: bytes, murmur: int) -> None:
    assert partitions_of([key], 2**31 - 1).tolist() == [(murmur & 0x7FFFFFFF) % (2**31 - 1)]


def test_a_long_key_among_many_short_ones_needs_no_huge_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [b"k%d" % index for index in range(100)] + [b"x" * 100_000]
    expected = partitions_of(keys, 7).tolist()
    monkeypatch.setattr(client, "_MAX_MATRIX_BYTES", 10_000)
    assert partitions_of(keys, 7).tolist() == expected
