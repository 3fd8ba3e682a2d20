"""APIs by topic id (KIP-516, KIP-848) answer as by name; ids that no topic has, or no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker

Batch = Callable[..., bytes]
Connect = Callable[[Broker], Awaitable[Any]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

PRODUCE, FETCH = 0, 1
FIRST_WITH_IDS = 13


def topic_id(broker: Broker, name: str = "t") -> UUID:
    topic = broker.topics.get(name)
    assert topic is not None
    return topic.topic_id


async def produce(client: Any, version: int, key: UUID | str, *batches: tuple[int, bytes]) -> Any:
    named = {"name": key} if isinstance(key, str) else {"topic_id": key}
    parts = [{"index": index, "records": data} for index, data in batches]
    response = await client.call(
        PRODUCE, version, acks=-1, topic_data=[{**named, "partition_data": parts}]
    )
    (topic,) = response.responses
    assert (topic.name if isinstance(key, str) else topic.topic_id) == key
    return topic.partition_responses


def fetch_request(
    client: Any, version: int, key: UUID | str, *offsets: int, wait: float = 0
) -> Any:
    named = {"topic": key} if isinstance(key, str) else {"topic_id": key}
    parts = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": 2**20}
        for index, offset in enumerate(offsets)
    ]
    return client.message(
        FETCH,
        version,
        max_wait=timedelta(seconds=wait),
        min_bytes=1,
        max_bytes=2**20,
        topics=[{**named, "partitions": parts}],
    )


async def fetch(client: Any, version: int, key: UUID | str, *offsets: int) -> Any:
    response = await client.ask(fetch_request(client, version, key, *offsets))
    assert response.error_code is ErrorCode.none
    (topic,) = response.responses
    assert (topic.topic if isinstance(key, str) else topic.topic_id) == key
    return topic.partitions


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> Any:
    await broker.topics.create("t", 2)
    return await connect(broker)


async def test_a_produce_by_id_is_answered_as_one_by_name(
    client: Any, broker: Broker, batch: Batch
) -> None:
    good, bad = (0, batch(b"a")), (0, batch(b"b")[:-1])
    answers = {}
    for version in (11, 12, 13):
        key = topic_id(broker) if version >= FIRST_WITH_IDS else "t"
        (answer,) = await produce(client, version, key, good)
        (refused,) = await produce(client, version, key, bad)
        (missing,) = await produce(client, version, key, (7, batch(b"c")))
        fields = ("error_code", "log_append_time", "log_start_offset")
        answers[version] = [
            *(getattr(answer, each) for each in fields),
            refused.error_code,
            missing.error_code,
        ]
    assert answers[11] == answers[12] == answers[13]
    assert answers[11][-1] is ErrorCode.unknown_topic_or_partition
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    assert partition.high_watermark == 3


async def test_a_fetch_by_id_is_answered_as_one_by_name(
    client: Any, broker: Broker, batch: Batch
) -> None:
    await produce(client, 13, topic_id(broker), (0, batch(b"a", b"b")), (1, batch(b"c")))
    answers = []
    for version in range(12, 19):
        key = topic_id(broker) if version >= FIRST_WITH_IDS else "t"
        answers.append(
            [
                (each.error_code, each.high_watermark, each.log_start_offset, each.records)
                for each in await fetch(client, version, key, 0, 5, 0)
            ]
        )
    assert all(each == answers[0] for each in answers)
    assert [code for code, *_ in answers[0]] == [
        ErrorCode.none,
        ErrorCode.offset_out_of_range,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert answers[0][0][3]


async def test_an_id_that_no_topic_has_is_an_unknown_topic_id(client: Any, batch: Batch) -> None:
    unknown = uuid4()
    (produced,) = await produce(client, 13, unknown, (0, batch(b"a")))
    (fetched,) = await fetch(client, 18, unknown, 0)
    assert produced.error_code is fetched.error_code is ErrorCode.unknown_topic_id


async def test_the_id_of_a_topic_that_was_created_again_is_unknown(
    client: Any, broker: Broker, batch: Batch
) -> None:
    old = topic_id(broker)
    await broker.topics.delete("t")
    await broker.topics.create("t", 2)
    (produced,) = await produce(client, 13, old, (0, batch(b"a")))
    (fetched,) = await fetch(client, 13, old, 0)
    assert produced.error_code is fetched.error_code is ErrorCode.unknown_topic_id
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    assert partition.high_watermark == 0


async def test_a_long_poll_ends_when_its_topic_is_created_again(
    client: Any, broker: Broker, until: Until
) -> None:
    poll = fetch_request(client, 17, topic_id(broker), 0, wait=600)
    correlation_id = await client.send(poll)
    watched = broker.topics.partitions[0]
    await until(lambda: bool(watched.watches))
    await broker.topics.delete("t")
    await broker.topics.create("t", 2)
    response = await asyncio.wait_for(client.receive(poll, correlation_id), 60)
    assert response.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
