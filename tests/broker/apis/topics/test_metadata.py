"""Metadata and DescribeTopicPartitions: topics, and the one node that leads them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.partition import PartitionLog

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
METADATA = 3


@pytest.mark.parametrize("version", range(14))
async def test_one_node_leads_every_partition(
    broker: Broker, connect: Connect, version: int
) -> None:
    topic = await broker.topics.create("t", 3)
    client = await connect(broker)
    response = await client.call(METADATA, version, topics=[{"name": "t"}])
    (node,) = response.brokers
    assert f"{node.host}:{node.port}" == broker.bootstrap_servers
    (found,) = response.topics
    assert (found.name, found.error_code) == ("t", ErrorCode.none)
    assert [each.partition_index for each in found.partitions] == [0, 1, 2]
    for each in found.partitions:
        assert each.leader_id == node.node_id
        assert each.replica_nodes == each.isr_nodes == (node.node_id,)
    if version >= 1:
        assert response.controller_id == node.node_id
    if version >= 2:
        assert len(response.cluster_id) == 22
    if version >= 10:
        assert found.topic_id == topic.topic_id
    if version >= 13:
        assert response.error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("version", "topics", "names"),
    [(0, [], ["a", "b"]), (1, [], []), (1, None, ["a", "b"]), (12, None, ["a", "b"])],
)
async def test_all_topics_are_listed_on_request(
    broker: Broker, connect: Connect, version: int, topics: Any, names: list[str]
) -> None:
    await broker.topics.create("a")
    await broker.topics.create("b")
    client = await connect(broker)
    response = await client.call(METADATA, version, topics=topics)
    assert [each.name for each in response.topics] == names


async def test_an_unknown_topic_is_created_on_demand(start: Start, connect: Connect) -> None:
    broker = await start(default_partitions=4)
    client = await connect(broker)
    response = await client.call(METADATA, 12, topics=[{"name": "new"}])
    assert [len(each.partitions) for each in response.topics] == [4]
    assert broker.topics.get("new") is not None


async def test_two_clients_that_ask_at_once_get_the_same_topic(
    broker: Broker, connect: Connect
) -> None:
    clients = [await connect(broker) for _ in range(10)]
    responses = await asyncio.gather(
        *(each.call(METADATA, 12, topics=[{"name": "new"}]) for each in clients)
    )
    assert {each.topics[0].error_code for each in responses} == {ErrorCode.none}
    assert len({each.topics[0].topic_id for each in responses}) == 1


@pytest.mark.parametrize(("switched_on", "allowed"), [(False, True), (True, False)])
async def test_an_unknown_topic_is_created_only_if_client_and_broker_allow_it(
    start: Start, connect: Connect, switched_on: bool, allowed: bool
) -> None:
    broker = await start(auto_create_topics=switched_on)
    client = await connect(broker)
    response = await client.call(
        METADATA, 12, topics=[{"name": "new"}], allow_auto_topic_creation=allowed
    )
    assert response.topics[0].error_code is ErrorCode.unknown_topic_or_partition
    assert broker.topics.get("new") is None


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", ["", "no/topic", "x" * 250])
async def test_a_bad_name_is_an_invalid_topic(
    broker: Broker, connect: Connect, name: str, create: bool
) -> None:
    client = await connect(broker)
    response = await client.call(
        METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=create
    )
    assert response.topics[0].error_code is ErrorCode.invalid_topic_exception


async def test_topics_are_found_by_id(broker: Broker, connect: Connect) -> None:
    topic = await broker.topics.create("t")
    client = await connect(broker)
    unknown = uuid4()
    wanted = [{"topic_id": each, "name": None} for each in (topic.topic_id, unknown, UUID(int=0))]
    response = await client.call(METADATA, 12, topics=wanted)
    known, missing, empty = response.topics
    assert (known.name, known.topic_id) == ("t", topic.topic_id)
    assert (missing.error_code, missing.topic_id) == (ErrorCode.unknown_topic_id, unknown)
    assert empty.error_code is ErrorCode.unknown_topic_id


@pytest.mark.parametrize("name", ["", "other"])
async def test_an_id_takes_precedence_over_a_name(
    broker: Broker, connect: Connect, name: str
) -> None:
    """The Java client sends an empty name with an id."""
    topic, unknown = await broker.topics.create("t"), uuid4()
    client = await connect(broker)
    wanted = [{"topic_id": each, "name": name} for each in (topic.topic_id, unknown)]
    response = await client.call(METADATA, 12, topics=wanted)
    known, missing = response.topics
    assert (known.error_code, known.name) == (ErrorCode.none, "t")
    assert (missing.error_code, missing.name) == (ErrorCode.unknown_topic_id, None)
    assert broker.topics.get("other") is None


async def test_a_disk_that_fails_is_a_storage_error(
    broker: Broker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(PartitionLog, "open", fail)
    client = await connect(broker)
    response = await client.call(METADATA, 12, topics=[{"name": "new"}])
    assert response.topics[0].error_code is ErrorCode.kafka_storage_error
    assert "no space left" in capsys.readouterr().out


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
async def test_an_impossible_page_is_refused(client: Any, limit: int, cursor: Any) -> None:
    response = await describe(client, "a", limit=limit, cursor=cursor)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.invalid_request]
