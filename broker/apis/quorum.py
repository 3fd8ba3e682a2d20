"""DescribeQuorum: who decides about the cluster's metadata (KIP-595, KIP-836).

As in a Kafka cluster of one node that is its own controller, that node leads, and nobody else votes. There
is no log of metadata here: it is empty, and its end is offset 0.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v2.response import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64, u16

from broker.api import Api
from broker.apis.common import LEADER_EPOCH

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS"]

_METADATA: Final = "__cluster_metadata"
_END: Final = i64(0)
_NOBODY: Final = BrokerId(-1)


def _describe_quorum(
    context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    topics = tuple(
        TopicData(
            topic_name=topic.topic_name,
            partitions=tuple(
                _leads(context.node_id, each.partition_index)
                if (topic.topic_name, each.partition_index) == (_METADATA, 0)
                else _unknown(each.partition_index)
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    listener = Listener(
        name=context.services.settings.security_protocol,
        host=context.node_host,
        port=u16(context.node_port),
    )
    return DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=topics,
        nodes=(Node(node_id=context.node_id, listeners=(listener,)),),
    )


def _leads(node: BrokerId, partition: i32) -> PartitionData:
    alone = ReplicaState(
        replica_id=node,
        replica_directory_id=None,
        log_end_offset=_END,
        last_caught_up_timestamp=i64(int(time.time() * 1000)),  # of the leader: now
    )
    return PartitionData(
        partition_index=partition,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=node,
        leader_epoch=LEADER_EPOCH,
        high_watermark=_END,
        current_voters=(alone,),
        observers=(),
    )


def _unknown(partition: i32) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message=f"only partition 0 of {_METADATA} has a quorum",
        leader_id=_NOBODY,
        leader_epoch=i32(-1),
        high_watermark=i64(-1),
        current_voters=(),
        observers=(),
    )


APIS = (Api(_describe_quorum, DescribeQuorumRequest, DescribeQuorumResponse, min_version=0),)
