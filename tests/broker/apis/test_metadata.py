import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker
from broker.log.partition import PartitionLog

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


async def test_an_unknown_topic_is_created_for_who_asks(start: Start, connect: Connect) -> None:
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
async def test_an_unknown_topic_is_not_created_against_anybodys_will(
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
async def test_an_id_goes_before_a_name(broker: Broker, connect: Connect, name: str) -> None:
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
