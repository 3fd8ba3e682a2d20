"""Quotas over the wire: what was produced is kept, the client is told to wait, and has to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kio.index import load_response_schema
from kio.serial import entity_reader

from broker import Broker
from broker.wire.fetch import empty_fetch_response
from broker.wire.produce import PartitionResult, set_produce_throttle, write_produce_response

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Batch = Callable[..., bytes]

PRODUCE, FETCH, VERSIONS = 0, 1, 18
KIB = 1024


def produce(client: Any, records: bytes, version: int = 11, acks: int = -1) -> Any:
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    wait = timedelta(seconds=30)
    return client.message(PRODUCE, version, acks=acks, timeout=wait, topic_data=topics)


def fetch(client: Any, version: int = 12, offset: int = 0) -> Any:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    topics = [{"topic": "t", "partitions": [partition]}]
    return client.message(
        FETCH, version, max_wait=timedelta(0), min_bytes=0, max_bytes=2**20, topics=topics
    )


@pytest.fixture
async def slow(start: Start) -> Broker:
    """A broker that lets each client produce and fetch 100 KiB per second."""
    broker = await start(produce_quota_bytes=100 * KIB, fetch_quota_bytes=100 * KIB)
    await broker.topics.create("t")
    return broker


@pytest.mark.parametrize("version", [3, 8, 9, 11])
async def test_who_produced_too_much_waits_before_it_is_heard_again(
    slow: Broker, connect: Connect, batch: Batch, version: int
) -> None:
    client, loop = await connect(slow), asyncio.get_running_loop()
    answer = await client.ask(produce(client, batch(b"x" * 50 * KIB), version))
    assert answer.throttle_time == timedelta(0)
    begin = loop.time()
    answer = await client.ask(produce(client, batch(b"x" * 100 * KIB), version))
    assert answer.responses[0].partition_responses[0].base_offset == 1  # kept
    assert timedelta(seconds=0.3) < answer.throttle_time < timedelta(seconds=0.6)
    other = await connect(slow)  # of the same client id: it may still ask, but not on credit
    await other.call(VERSIONS, 0)
    await client.call(VERSIONS, 0)
    assert loop.time() - begin > answer.throttle_time.total_seconds() * 0.9


async def test_who_wants_no_acknowledgement_waits_too(
    slow: Broker, connect: Connect, batch: Batch
) -> None:
    client, loop = await connect(slow), asyncio.get_running_loop()
    begin = loop.time()
    await client.send(produce(client, batch(b"x" * 200 * KIB), acks=0))
    await client.call(VERSIONS, 0)
    assert loop.time() - begin > 0.9


@pytest.mark.parametrize("version", [4, 11, 12])
async def test_who_fetched_too_much_gets_nothing_until_it_has_waited(
    slow: Broker, connect: Connect, batch: Batch, version: int
) -> None:
    partition = slow.topics.partition("t", 0)
    assert partition is not None
    client, loop = await connect(slow), asyncio.get_running_loop()
    producer = await connect(slow)
    await producer.ask(produce(producer, batch(b"x" * 200 * KIB)))
    begin = loop.time()
    answer = await client.ask(fetch(client, version))
    assert len(answer.responses[0].partitions[0].records) > 200 * KIB
    assert answer.throttle_time > timedelta(seconds=0.9)
    other = await connect(slow)
    empty = await other.ask(fetch(other, version))  # by the same client id
    assert empty.responses == ()
    assert empty.throttle_time > timedelta(0)
    again = await client.ask(fetch(client, version))
    assert loop.time() - begin > 0.9
    assert len(again.responses[0].partitions[0].records) > 200 * KIB


async def test_a_client_that_waits_is_not_taken_for_idle(
    start: Start, connect: Connect, batch: Batch
) -> None:
    broker = await start(
        produce_quota_bytes=100 * KIB, connection_idle_seconds=0.1, request_timeout=0.1
    )
    await broker.topics.create("t")
    client = await connect(broker)
    answer = await client.ask(produce(client, batch(b"x" * 300 * KIB)))
    assert answer.throttle_time > timedelta(seconds=1.5)  # more than one look at connections
    assert (await client.call(VERSIONS, 0)).api_keys


async def test_a_broker_stops_without_waiting_for_who_has_to_wait(
    slow: Broker, connect: Connect, batch: Batch
) -> None:
    client = await connect(slow)
    answer = await client.ask(produce(client, batch(b"x" * 1000 * KIB)))
    assert answer.throttle_time > timedelta(seconds=8)
    begin = asyncio.get_running_loop().time()
    await slow.__aexit__(None, None, None)
    assert await client.is_closed_by_broker()
    assert asyncio.get_running_loop().time() - begin < answer.throttle_time.total_seconds()


async def test_clients_that_keep_to_nothing_are_kept_to_their_quotas(slow: Broker) -> None:
    """aiokafka does not look at what it is told: what it sends too early is read late."""
    loop = asyncio.get_running_loop()
    values = [bytes([number]) * 40 * KIB for number in range(8)]
    begin = loop.time()
    async with AIOKafkaProducer(
        bootstrap_servers=slow.bootstrap_servers, client_id="a"
    ) as producer:
        for value in values:
            await producer.send_and_wait("t", value, partition=0)
    assert loop.time() - begin > (8 * 40 - 100 - 40) / 100 * 0.9
    begin = loop.time()
    async with AIOKafkaConsumer(
        "t",
        bootstrap_servers=slow.bootstrap_servers,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=50 * KIB,
    ) as consumer:
        assert [(await consumer.getone()).value for _ in values] == values
    assert loop.time() - begin > (8 * 40 - 100 - 80) / 100 * 0.9


@pytest.mark.parametrize("version", range(12))
def test_the_throttle_time_of_produce_responses_is_where_it_belongs(version: int) -> None:
    plain = write_produce_response([("t", [PartitionResult(0)])], version)
    changed = set_produce_throttle(bytes(plain), version, 0x01020304)
    assert len(changed) == len(plain)
    differing = [at for at in range(len(plain)) if plain[at] != changed[at]]
    assert len(differing) == (4 if version else 0)


@pytest.mark.parametrize("version", range(4, 13))
def test_an_empty_fetch_response_says_only_how_long_to_wait(version: int) -> None:
    body = empty_fetch_response(version, 1234)
    schema: Any = load_response_schema(FETCH, version)
    response, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    assert (response.responses, response.throttle_time) == ((), timedelta(milliseconds=1234))
