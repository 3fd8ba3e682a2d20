from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
DESCRIBE_CLUSTER, METADATA = 60, 3


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
