"""The quorum is this node."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
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
