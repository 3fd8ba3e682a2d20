from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
DESCRIBE_CLUSTER, METADATA = 60, 3


async def test_the_cluster_is_one_node(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    metadata = await client.call(METADATA, 12)
    for version in (0, 1):
        response = await client.call(DESCRIBE_CLUSTER, version)
        (node,) = response.brokers
        assert f"{node.host}:{node.port}" == broker.bootstrap_servers
        assert response.controller_id == node.broker_id
        assert response.cluster_id == metadata.cluster_id


async def test_there_is_no_separate_controller(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    response = await client.call(DESCRIBE_CLUSTER, 1, endpoint_type=2)
    assert response.error_code is ErrorCode.unsupported_endpoint_type
