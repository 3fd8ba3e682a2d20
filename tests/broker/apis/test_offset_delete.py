from collections.abc import Awaitable, Callable
from datetime import timedelta
from struct import pack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
OFFSET_COMMIT, OFFSET_FETCH, JOIN, OFFSET_DELETE = 8, 9, 11, 47
SECONDS = timedelta(seconds=10)


def subscription(*topics: str) -> bytes:
    """What a consumer of these topics tells the leader of its group."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 3, len(topics)) + names + pack(">i", -1)


async def join(client: Any, metadata: bytes, protocol_type: str = "consumer") -> None:
    joined = await client.call(
        JOIN,
        3,
        group_id="g",
        session_timeout=SECONDS,
        rebalance_timeout=SECONDS,
        protocol_type=protocol_type,
        protocols=[{"name": "range", "metadata": metadata}],
    )
    assert joined.error_code is ErrorCode.none


async def commit(client: Any, *topics: str) -> None:
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    response = await client.call(
        OFFSET_COMMIT,
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[{"name": topic, "partitions": [partition]} for topic in topics],
    )
    assert response.topics[0].partitions[0].error_code is ErrorCode.none


async def committed(client: Any) -> set[str]:
    response = await client.call(OFFSET_FETCH, 7, group_id="g", topics=None)
    return {topic.name for topic in response.topics}


async def delete(client: Any, *topics: str, group: str = "g", partition: int = 0) -> Any:
    wanted = [{"name": each, "partitions": [{"partition_index": partition}]} for each in topics]
    return await client.call(OFFSET_DELETE, 0, group_id=group, topics=wanted)


def codes(response: Any) -> dict[str, ErrorCode]:
    return {topic.name: topic.partitions[0].error_code for topic in response.topics}


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> Any:
    for topic in ("read", "other"):
        await broker.topics.create(topic)
    return await connect(broker)


async def test_offsets_of_a_group_without_members_are_forgotten(client: Any) -> None:
    await commit(client, "read", "other")
    response = await delete(client, "read", "unknown")
    assert response.error_code is ErrorCode.none
    assert codes(response) == {
        "read": ErrorCode.none,
        "unknown": ErrorCode.unknown_topic_or_partition,
    }
    assert await committed(client) == {"other"}
    assert codes(await delete(client, "read")) == {"read": ErrorCode.none}  # never committed
    response = await delete(client, "read", partition=7)
    assert codes(response) == {"read": ErrorCode.unknown_topic_or_partition}


async def test_offsets_of_a_topic_that_is_being_read_stay(client: Any) -> None:
    await commit(client, "read", "other")
    await join(client, subscription("read"))
    response = await delete(client, "read", "other")
    assert response.error_code is ErrorCode.none
    assert codes(response) == {
        "read": ErrorCode.group_subscribed_to_topic,
        "other": ErrorCode.none,
    }
    assert await committed(client) == {"read"}


@pytest.mark.parametrize(
    ("metadata", "protocol_type"),
    [(subscription("read"), "connect"), (b"?", "consumer"), (pack(">hi", 0, 2**30), "consumer")],
)
async def test_offsets_stay_when_nobody_knows_what_the_members_read(
    client: Any, metadata: bytes, protocol_type: str
) -> None:
    await commit(client, "other")
    await join(client, metadata, protocol_type)
    assert (await delete(client, "other")).error_code is ErrorCode.non_empty_group
    assert await committed(client) == {"other"}


async def test_a_group_that_is_not_there_is_named(client: Any) -> None:
    response = await delete(client, "read", group="missing")
    assert response.error_code is ErrorCode.group_id_not_found
    response = await delete(client, "read", group="")
    assert response.error_code is ErrorCode.invalid_group_id
