"""OffsetCommit, OffsetFetch in every version, and OffsetDelete."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from struct import pack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker

from .group_requests import (
    JOIN,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    Wire,
    commit,
    fetch,
    synced_member,
    versions,
)


@pytest.mark.parametrize(("key", "version"), versions(OFFSET_COMMIT))
async def test_offset_commit(wire: Wire, key: int, version: int) -> None:
    joined = await synced_member(wire)
    outcome = await commit(
        wire,
        version,
        {"t": {0: (5, "note"), 1: (6, None), 2: (7, "x" * 4097), 9: (1, "")}, "none": {0: (1, "")}},
        joined,
    )
    assert outcome == {
        ("t", 0): ErrorCode.none,
        ("t", 1): ErrorCode.none,
        ("t", 2): ErrorCode.offset_metadata_too_large,
        ("t", 9): ErrorCode.unknown_topic_or_partition,
        ("none", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert await fetch(wire, 8, None) == {("t", 0): (5, "note"), ("t", 1): (6, "")}
    outsider = await commit(wire, version, {"t": {0: (9, "")}})
    assert outsider == {("t", 0): ErrorCode.unknown_member_id}


@pytest.mark.parametrize(("key", "version"), versions(OFFSET_FETCH))
async def test_offset_fetch(wire: Wire, key: int, version: int) -> None:
    await commit(wire, 8, {"t": {0: (5, "note"), 1: (6, "")}})
    asked = {"t": (0, 3), "none": (0,)}
    assert await fetch(wire, version, asked) == {
        ("t", 0): (5, "note"),
        ("t", 3): (-1, ""),
        ("none", 0): (-1, ""),
    }
    if version >= 2:
        assert await fetch(wire, version, None) == {("t", 0): (5, "note"), ("t", 1): (6, "")}


async def test_deleting_a_topic_deletes_its_committed_offsets(wire: Wire, broker: Broker) -> None:
    await commit(wire, 8, {"t": {0: (5, "")}})
    await wire.call(20, 5, topic_names=("t",))
    await broker.topics.create("t")
    assert await fetch(wire, 8, None) == {}


# -- OffsetDelete ------------------------------------------------------------------------------------

Connect = Callable[[Broker], Awaitable[Any]]
SECONDS = timedelta(seconds=10)


def subscription(*topics: str) -> bytes:
    """The subscription of a consumer of these topics."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


async def join_reading(client: Any, metadata: bytes, protocol_type: str = "consumer") -> None:
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


async def commit_topics(client: Any, *topics: str) -> None:
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


async def test_offsets_of_a_group_without_members_are_deleted(client: Any) -> None:
    await commit_topics(client, "read", "other")
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


async def test_offsets_of_a_subscribed_topic_are_kept(client: Any) -> None:
    await commit_topics(client, "read", "other")
    await join_reading(client, subscription("read"))
    response = await delete(client, "read", "other")
    assert response.error_code is ErrorCode.none
    assert codes(response) == {
        "read": ErrorCode.group_subscribed_to_topic,
        "other": ErrorCode.none,
    }
    assert await committed(client) == {"read"}


@pytest.mark.parametrize("metadata", [b"?", pack(">hi", 0, 2**30)])
async def test_offsets_are_kept_when_subscriptions_are_unknown(
    client: Any, metadata: bytes
) -> None:
    await commit_topics(client, "other")
    await join_reading(client, metadata, "consumer")
    assert codes(await delete(client, "other")) == {"other": ErrorCode.group_subscribed_to_topic}
    assert await committed(client) == {"other"}


async def test_offsets_are_kept_of_a_group_that_assigns_no_partitions(client: Any) -> None:
    await commit_topics(client, "other")
    await join_reading(client, subscription("read"), "connect")
    assert (await delete(client, "other")).error_code is ErrorCode.non_empty_group
    assert await committed(client) == {"other"}


async def test_a_missing_group_is_an_error(client: Any) -> None:
    response = await delete(client, "read", group="missing")
    assert response.error_code is ErrorCode.group_id_not_found
    response = await delete(client, "read", group="")
    assert response.error_code is ErrorCode.invalid_group_id
