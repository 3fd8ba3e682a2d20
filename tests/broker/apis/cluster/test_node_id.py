"""The id of the one node: the same wherever it is answered, and nowhere on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kio.schema.errors import ErrorCode

from kmr.broker import Broker, BrokerSettings

if TYPE_CHECKING:
    from pathlib import Path

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

METADATA, FIND_COORDINATOR, CREATE_TOPICS, DESCRIBE_CONFIGS, CREATE_PARTITIONS = 3, 10, 19, 32, 37
ALTER_CONFIGS, DESCRIBE_QUORUM, DESCRIBE_CLUSTER = 44, 55, 60
LIST_CONFIG_RESOURCES, DESCRIBE_TOPICS = 74, 75
BROKER_RESOURCE = 4
NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
WRONG_REPLICA = ErrorCode.invalid_replica_assignment
TIMEOUT = 60.0
IDS = [0, 1, 2**31 - 1]
NODES = {
    *("node_id", "broker_id", "controller_id", "leader_id", "replica_id"),
    *("replica_nodes", "isr_nodes"),
}
"""Names of the fields that hold a node id."""


@pytest.fixture(params=IDS)
def node(request: pytest.FixtureRequest) -> int:
    """Ids of the node to try."""
    number: int = request.param
    return number


@pytest.fixture
async def client(start: Start, connect: Connect, node: int) -> Any:
    """A client of a broker with this id, and a topic."""
    broker = await start(node_id=node)
    await broker.topics.create("t", 2)
    return await connect(broker)


def nodes(message: Any) -> set[int]:
    """Every node id in a message."""
    found: set[int] = set()
    for field in fields(message):
        value = getattr(message, field.name)
        many = value if isinstance(value, tuple) else (value,)
        if field.name in NODES:
            found.update(many)
        for each in many:
            if is_dataclass(each):
                found |= nodes(each)
    return found


ASKED: list[tuple[int, int, dict[str, Any]]] = [
    (METADATA, 1, {"topics": None}),
    (METADATA, 12, {"topics": None}),
    (FIND_COORDINATOR, 1, {"key": "g"}),
    (FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["x"]}),
    (DESCRIBE_CLUSTER, 1, {}),
    (
        *(DESCRIBE_QUORUM, 2),
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    (DESCRIBE_TOPICS, 0, {"topics": [], "response_partition_limit": 9, "cursor": None}),
]


@pytest.mark.parametrize(("key", "version", "asked"), ASKED)
async def test_every_answer_names_the_same_node(
    client: Any, node: int, key: int, version: int, asked: dict[str, Any]
) -> None:
    assert nodes(await client.call(key, version, **asked)) == {node}


async def test_the_settings_of_the_broker_go_by_its_id(client: Any, node: int) -> None:
    other = str(node + 1 if node == 0 else node - 1)

    def resources(name: str) -> list[dict[str, Any]]:
        return [{"resource_type": BROKER_RESOURCE, "resource_name": name}]

    for name, code in ((str(node), NONE), ("", NONE), (other, INVALID)):
        (found,) = (await client.call(DESCRIBE_CONFIGS, 4, resources=resources(name))).results
        assert found.error_code is code
        values = {each.name: each.value for each in found.configs}
        shown = None if code else str(node)
        assert (values.get("node.id"), values.get("broker.id")) == (shown, shown)
        (altered,) = (await client.call(ALTER_CONFIGS, 1, resources=resources(name))).responses
        assert altered.error_code is code
    listed = (await client.call(LIST_CONFIG_RESOURCES, 1)).config_resources
    assert [each.resource_name for each in listed if each.resource_type == BROKER_RESOURCE] == [
        str(node)
    ]


async def test_replicas_are_assigned_to_that_node_alone(client: Any, node: int) -> None:
    other = node + 1 if node == 0 else node - 1
    for replicas, code in (
        ([node], NONE),
        ([other], WRONG_REPLICA),
        ([node, other], WRONG_REPLICA),
    ):
        assigned = [{"partition_index": 0, "broker_ids": replicas}]
        wanted = {"name": "new", "num_partitions": -1, "replication_factor": -1}
        (made,) = (
            await client.call(
                *(CREATE_TOPICS, 7),
                topics=[{**wanted, "assignments": assigned}],
                validate_only=True,
            )
        ).topics
        assert made.error_code is code
        more = [{"name": "t", "count": 3, "assignments": [{"broker_ids": replicas}]}]
        (grown,) = (
            await client.call(CREATE_PARTITIONS, 3, topics=more, validate_only=True)
        ).results
        assert grown.error_code is code


async def test_data_written_under_one_id_is_there_under_another(tmp_path: Path) -> None:
    """Records, committed offsets, transactions: clients of the same names go on."""
    partition = TopicPartition("t", 0)
    for turn, node in enumerate([*IDS, 0]):
        settings = BrokerSettings(data_dir=tmp_path, port=0, node_id=node)
        async with asyncio.timeout(TIMEOUT), Broker(settings) as broker:
            servers = broker.bootstrap_servers
            producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="x")
            async with producer, producer.transaction():
                await producer.send("t", b"%d" % turn, partition=0)
            async with AIOKafkaConsumer(
                "t",
                bootstrap_servers=servers,
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                assert await consumer.committed(partition) == (2 * turn or None)
                record = await consumer.getone()
                assert (record.offset, record.value) == (2 * turn, b"%d" % turn)
                await consumer.commit({partition: 2 * turn + 2})  # a marker follows
