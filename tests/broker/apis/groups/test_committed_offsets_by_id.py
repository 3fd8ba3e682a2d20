"""OffsetCommit and OffsetFetch by topic id answer as by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
FIRST_OFFSETS_WITH_IDS = 10


def topic_id(broker: Broker) -> UUID:
    topic = broker.topics.get("t")
    assert topic is not None
    return topic.topic_id


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> Any:
    return await connect(broker)


async def commit(client: Any, version: int, key: UUID | str, offset: int, *indexes: int) -> Any:
    named = {"name": key} if isinstance(key, str) else {"topic_id": key}
    parts = [{"partition_index": index, "committed_offset": offset} for index in indexes]
    response = await client.call(
        OFFSET_COMMIT, version, group_id="g", topics=[{**named, "partitions": parts}]
    )
    (topic,) = response.topics
    assert (topic.name if isinstance(key, str) else topic.topic_id) == key
    return [(each.partition_index, each.error_code) for each in topic.partitions]


async def committed(client: Any, version: int, topics: Any) -> dict[Any, list[tuple[int, ...]]]:
    groups = [{"group_id": "g", "topics": topics}]
    (group,) = (await client.call(OFFSET_FETCH, version, groups=groups)).groups
    assert group.error_code is ErrorCode.none
    field = "topic_id" if version >= FIRST_OFFSETS_WITH_IDS else "name"
    return {
        getattr(topic, field): [
            (each.partition_index, each.committed_offset, each.error_code)
            for each in topic.partitions
        ]
        for topic in group.topics
    }


async def test_offsets_are_committed_and_fetched_by_id_as_by_name(
    client: Any, broker: Broker
) -> None:
    the_id, unknown = topic_id(broker), uuid4()
    for offset, version in enumerate((8, 9, 10), start=1):
        key = the_id if version >= FIRST_OFFSETS_WITH_IDS else "t"
        results = await commit(client, version, key, offset, 0, 9)
        assert results == [(0, ErrorCode.none), (9, ErrorCode.unknown_topic_or_partition)]
        named = [{"name": "t", "partition_indexes": [0, 1]}]
        by_id = [
            {"topic_id": the_id, "partition_indexes": [0, 1]},
            {"topic_id": unknown, "partition_indexes": [0]},
        ]
        expected = [(0, offset, ErrorCode.none), (1, -1, ErrorCode.none)]
        assert await committed(client, 8, named) == {"t": expected}
        assert await committed(client, 9, named) == {"t": expected}
        assert await committed(client, 10, by_id) == {
            the_id: expected,
            unknown: [(0, -1, ErrorCode.unknown_topic_id)],
        }
        assert await committed(client, 9, None) == {"t": expected[:1]}
        assert await committed(client, 10, None) == {the_id: expected[:1]}


async def test_offsets_of_an_id_that_no_topic_has_any_more_are_refused(
    client: Any, broker: Broker
) -> None:
    old = topic_id(broker)
    await broker.topics.delete("t")
    await broker.topics.create("t", 2)
    assert await commit(client, 10, old, 5, 0) == [(0, ErrorCode.unknown_topic_id)]
    assert await committed(client, 10, None) == {}
