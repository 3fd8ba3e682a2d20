from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
DESCRIBE_TOPIC_PARTITIONS = 75


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> Any:
    """Of a broker with the topics a, b and c of 2, 1 and 3 partitions."""
    for name, partitions in {"c": 3, "a": 2, "b": 1}.items():
        await broker.topics.create(name, partitions)
    return await connect(broker)


async def describe(client: Any, *names: str, limit: int = 2000, cursor: Any = None) -> Any:
    return await client.call(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )


def found(response: Any) -> list[tuple[str, list[int]]]:
    return [
        (topic.name, [each.partition_index for each in topic.partitions])
        for topic in response.topics
    ]


async def test_topics_are_described_in_the_order_of_their_names(
    client: Any, broker: Broker
) -> None:
    response = await describe(client)
    assert found(response) == [("a", [0, 1]), ("b", [0]), ("c", [0, 1, 2])]
    assert response.next_cursor is None
    topic = response.topics[0]
    a = broker.topics.get("a")
    assert a is not None
    assert (topic.error_code, topic.topic_id, topic.is_internal) == (
        ErrorCode.none,
        a.topic_id,
        False,
    )
    partition = topic.partitions[1]
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, (0,), (0,))
    assert found(await describe(client, "c", "a")) == [("a", [0, 1]), ("c", [0, 1, 2])]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
async def test_every_partition_is_on_one_page(client: Any, limit: int) -> None:
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        response = await describe(client, limit=limit, cursor=cursor)
        page = [(name, index) for name, indexes in found(response) for index in indexes]
        assert 0 < len(page) <= limit
        seen += page
        after = response.next_cursor
        if after is None:
            break
        cursor = {"topic_name": after.topic_name, "partition_index": after.partition_index}
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]


async def test_topics_that_are_not_there_are_named(client: Any) -> None:
    response = await describe(client, "a", "missing", "not ok")
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "a": ErrorCode.none,
        "missing": ErrorCode.unknown_topic_or_partition,
        "not ok": ErrorCode.invalid_topic_exception,
    }


@pytest.mark.parametrize(
    ("limit", "cursor"), [(0, None), (10, {"topic_name": "a", "partition_index": -1})]
)
async def test_a_page_that_cannot_be_is_refused(client: Any, limit: int, cursor: Any) -> None:
    response = await describe(client, "a", limit=limit, cursor=cursor)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.invalid_request]
