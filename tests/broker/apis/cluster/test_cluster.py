"""The one node: DescribeCluster, DescribeQuorum, log directories, elections, reassignments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
DESCRIBE_CLUSTER, METADATA = 60, 3
ALTER_LOG_DIRS, DESCRIBE_LOG_DIRS, ELECT_LEADERS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = (
    34,
    35,
    43,
    45,
    46,
)


async def test_the_cluster_is_one_node(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    metadata = await client.call(METADATA, 12)
    for version in (0, 1, 2):
        response = await client.call(DESCRIBE_CLUSTER, version)
        (node,) = response.brokers
        assert f"{node.host}:{node.port}" == broker.bootstrap_servers
        assert response.controller_id == node.broker_id
        assert response.cluster_id == metadata.cluster_id


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)],
)
async def test_there_is_no_separate_controller(
    broker: Broker, connect: Connect, endpoint_type: int, code: ErrorCode
) -> None:
    client = await connect(broker)
    response = await client.call(DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert (response.error_code, response.brokers) == (code, ())


DESCRIBE_CLUSTER, DESCRIBE_QUORUM = 60, 55


async def test_the_one_node_leads_the_cluster(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    node = (await client.call(DESCRIBE_CLUSTER, 1)).controller_id
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    for version in (0, 1, 2):
        response = await client.call(DESCRIBE_QUORUM, version, topics=asked)
        assert response.error_code is ErrorCode.none
        ((partition,),) = [topic.partitions for topic in response.topics]
        assert partition.error_code is ErrorCode.none
        assert partition.leader_id == node
        assert [each.replica_id for each in partition.current_voters] == [node]
        assert partition.current_voters[0].log_end_offset == partition.high_watermark
    ((listener,),) = [each.listeners for each in response.nodes]
    assert f"{listener.host}:{listener.port}" == broker.bootstrap_servers


@pytest.mark.parametrize(("topic", "partition"), [("t", 0), ("__cluster_metadata", 1)])
async def test_no_other_partition_has_a_quorum(
    broker: Broker, connect: Connect, topic: str, partition: int
) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    asked = [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]
    response = await client.call(DESCRIBE_QUORUM, 2, topics=asked)
    assert response.error_code is ErrorCode.none
    assert [
        (each.partition_index, each.error_code, each.leader_id)
        for each in response.topics[0].partitions
    ] == [(partition, ErrorCode.unknown_topic_or_partition, -1)]


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_one_directory_has_the_size_of_every_log(
    broker: Broker, connect: Connect, batch: Callable[..., bytes], version: int
) -> None:
    await broker.topics.create("t", 2)
    await broker.topics.create("other")
    client = await connect(broker)
    data = batch(b"x" * 100)
    partition = {"index": 1, "records": data}
    await client.call(0, 9, acks=1, topic_data=[{"name": "t", "partition_data": [partition]}])
    response = await client.call(DESCRIBE_LOG_DIRS, version, topics=None)
    (directory,) = response.results
    assert directory.log_dir == str(broker.settings.data_dir)
    sizes = {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
    }
    assert sizes == {("t", 0): 0, ("t", 1): len(data), ("other", 0): 0}
    if version >= 4:
        assert 0 < directory.usable_bytes < directory.total_bytes


async def test_only_the_logs_that_are_asked_for_and_exist_are_described(
    broker: Broker, connect: Connect
) -> None:
    await broker.topics.create("t", 3)
    client = await connect(broker)
    topics = [{"topic": "t", "partitions": (2, 9)}, {"topic": "no", "partitions": (0,)}]
    response = await client.call(DESCRIBE_LOG_DIRS, 4, topics=topics)
    (topic,) = response.results[0].topics
    assert (topic.name, [each.partition_index for each in topic.partitions]) == ("t", [2])
