"""The one node: DescribeCluster 0 to 2 (KIP-700), DescribeQuorum 0 to 2 (KIP-595, KIP-836), DescribeLogDirs 1
to 5 (KIP-113, sizes of the volume by KIP-827).

As in a Kafka cluster of one node that is its own controller, that node leads every partition, in one
directory, and is the only voter. Differs from Kafka: there is no metadata log.
DescribeQuorum shows an empty one that ends at offset 0.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import to_thread
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64, u16

from ...authorization.rules import Resource
from ...turns import in_turns
from .. import entities
from ..access import DESCRIBE_CLUSTER, EVERYONE, authorized_operations
from ..api import LEADER_EPOCH, NO_THROTTLE, api
from ..slices import answer_partitions

if TYPE_CHECKING:
    from ..api import RequestContext


_BROKERS, _CONTROLLERS = 1, 2
_METADATA_LOG: Final = "__cluster_metadata"
_LOG_END: Final = i64(0)


# -- DescribeCluster and DescribeQuorum ------------------------------------------------------------


@api("DescribeCluster", max_version=2, access=EVERYONE)
def _describe_cluster(
    context: RequestContext, request: entities.DescribeClusterRequest
) -> entities.DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return entities.DescribeClusterResponse(
            throttle_time=NO_THROTTLE,
            error_code=(
                ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type
            ),
            error_message="this node is no separate controller; use endpoint type 1, brokers",
            cluster_id="",
            brokers=(),
        )
    return entities.DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        cluster_id=context.services.node.cluster_id,
        controller_id=context.node_id,
        brokers=(
            entities.DescribeClusterBroker(
                broker_id=context.node_id,
                host=context.node_host,
                port=i32(context.node_port),
                is_fenced=False,
            ),
        ),
        cluster_authorized_operations=authorized_operations(
            context, Resource.CLUSTER, wanted=request.include_cluster_authorized_operations
        ),
    )


@api("DescribeQuorum", max_version=2, access=DESCRIBE_CLUSTER)
async def _describe_quorum(
    context: RequestContext, request: entities.DescribeQuorumRequest
) -> entities.DescribeQuorumResponse:
    listener = entities.Listener(
        name=context.listener.name, host=context.node_host, port=u16(context.node_port)
    )
    return entities.DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=await answer_partitions(
            entities.TopicData, request.topics, partial(_quorum, context.node_id)
        ),
        nodes=(entities.Node(node_id=context.node_id, listeners=(listener,)),),
    )


def _quorum(
    node: BrokerId, topic: str, asked: entities.RequestedPartition
) -> entities.PartitionData:
    if (topic, asked.partition_index) != (_METADATA_LOG, 0):
        return entities.PartitionData(
            partition_index=asked.partition_index,
            error_code=ErrorCode.unknown_topic_or_partition,
            error_message=f"only partition 0 of {_METADATA_LOG} has a quorum",
            leader_id=BrokerId(-1),
            leader_epoch=i32(-1),
            high_watermark=i64(-1),
            current_voters=(),
            observers=(),
        )
    voter = entities.ReplicaState(
        replica_id=node,
        replica_directory_id=None,
        log_end_offset=_LOG_END,
        last_caught_up_timestamp=i64(int(time.time() * 1000)),  # the leader's is the current time
    )
    return entities.PartitionData(
        partition_index=asked.partition_index,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=node,
        leader_epoch=LEADER_EPOCH,
        high_watermark=_LOG_END,
        current_voters=(voter,),
        observers=(),
    )


# -- log directories -------------------------------------------------------------------------------


@api(
    "DescribeLogDirs",
    min_version=1,
    max_version=5,
    access=replace(DESCRIBE_CLUSTER, elements=lambda _: ()),
)
async def _describe_log_dirs(
    context: RequestContext, request: entities.DescribeLogDirsRequest
) -> entities.DescribeLogDirsResponse:
    directory = context.services.node.settings.data_dir.absolute()
    volume = await to_thread.run_sync(os.statvfs, directory)
    return entities.DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=(
            entities.DescribeLogDirsResult(
                error_code=ErrorCode.none,
                log_dir=str(directory),
                topics=await _log_sizes(context, request),
                total_bytes=i64(volume.f_blocks * volume.f_frsize),
                usable_bytes=i64(volume.f_bavail * volume.f_frsize),
            ),
        ),
    )


async def _log_sizes(
    context: RequestContext, request: entities.DescribeLogDirsRequest
) -> tuple[entities.DescribeLogDirsTopic, ...]:
    """Describe the partitions of the request, or all; as in Kafka, missing ones are left out."""
    topics = context.services.topics
    if request.topics is None:
        found = {topic.name: list(topic.partitions) for topic in topics}
    else:
        found = {
            wanted.topic: [
                partition
                for index in wanted.partitions
                if (partition := topics.partition(wanted.topic, index)) is not None
            ]
            async for wanted in in_turns(request.topics)
        }
    return tuple(
        [
            entities.DescribeLogDirsTopic(
                name=TopicName(name),
                partitions=tuple(
                    [
                        entities.DescribeLogDirsPartition(
                            partition_index=i32(partition.index),
                            partition_size=i64(partition.log.size_bytes),
                            offset_lag=i64(0),
                            is_future_key=False,
                        )
                        async for partition in in_turns(partitions)
                    ]
                ),
            )
            async for name, partitions in in_turns(found.items())
            if partitions
        ]
    )
