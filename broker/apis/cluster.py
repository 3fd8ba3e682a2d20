"""DescribeCluster: the one node (KIP-700)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.describe_cluster.v2 import DescribeClusterRequest, DescribeClusterResponse
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.apis.operations import allowed_operations
from broker.security.acls import Resource

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS"]

_BROKERS, _CONTROLLERS = 1, 2


def _describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            throttle_time=NO_THROTTLE,
            error_code=(
                ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type
            ),
            error_message="this node is no separate controller: ask for endpoint type 1, brokers",
            cluster_id="",
            brokers=(),
        )
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        cluster_id=context.services.cluster_id,
        controller_id=context.node_id,
        brokers=(
            DescribeClusterBroker(
                broker_id=context.node_id,
                host=context.node_host,
                port=i32(context.node_port),
                is_fenced=False,
            ),
        ),
        cluster_authorized_operations=allowed_operations(
            context, Resource.CLUSTER, wanted=request.include_cluster_authorized_operations
        ),
    )


APIS = (Api(_describe_cluster, DescribeClusterRequest, DescribeClusterResponse, min_version=0),)
