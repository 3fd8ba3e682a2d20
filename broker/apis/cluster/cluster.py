"""The one node: what describes a cluster, and what would move partitions between nodes or directories.

DescribeCluster 0 to 2 (KIP-700), DescribeQuorum 0 to 2 (KIP-595, KIP-836), DescribeLogDirs 1 to 5 (KIP-113,
sizes of the volume by KIP-827), AlterReplicaLogDirs 1 to 2, ElectLeaders 0 to 2 (KIP-460),
AlterPartitionReassignments 0 to 1 and ListPartitionReassignments 0 (KIP-455).

As in a Kafka cluster of one node that is its own controller, that node leads every partition, in one
directory, and is the only voter; nothing can be moved. Differs from Kafka: there is no metadata log.
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
from ...errors import RequestError
from ...turns import in_turns
from .. import entities
from ..access import ALTER_CLUSTER, DESCRIBE_CLUSTER, EVERYONE, authorized_operations
from ..api import LEADER_EPOCH, NO_THROTTLE, api
from ..slices import answer_partitions
from ..topics.topics import check_replicas

if TYPE_CHECKING:
    from ..api import RequestContext


_BROKERS, _CONTROLLERS = 1, 2
_METADATA_LOG: Final = "__cluster_metadata"
_LOG_END: Final = i64(0)
_ELECTIONS = (0, 1)  # of the preferred leader, of any leader


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
        cluster_id=context.services.cluster_id,
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
        name=context.listener.name,
        host=context.node_host,
        port=u16(context.node_port),
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
    directory = context.services.settings.data_dir.absolute()
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


@api(
    "AlterReplicaLogDirs",
    min_version=1,
    max_version=2,
    access=replace(
        ALTER_CLUSTER, elements=lambda request: [t for e in request.dirs for t in e.topics]
    ),
)
async def _alter_replica_log_dirs(
    context: RequestContext, request: entities.AlterReplicaLogDirsRequest
) -> entities.AlterReplicaLogDirsResponse:
    results: dict[str, list[entities.AlterReplicaLogDirPartitionResult]] = {}
    here = str(context.services.settings.data_dir.absolute())
    for directory in request.dirs:
        async for topic in in_turns(directory.topics):
            async for index in in_turns(topic.partitions):
                if context.services.topics.partition(topic.name, index) is None:
                    code = ErrorCode.unknown_topic_or_partition
                else:
                    code = ErrorCode.none if directory.path == here else ErrorCode.log_dir_not_found
                results.setdefault(topic.name, []).append(
                    entities.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=code
                    )
                )
    return entities.AlterReplicaLogDirsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            entities.AlterReplicaLogDirTopicResult(
                topic_name=TopicName(name), partitions=tuple(each)
            )
            for name, each in results.items()
        ),
    )


# -- ElectLeaders ----------------------------------------------------------------------------------


@api("ElectLeaders", max_version=2, access=ALTER_CLUSTER)
async def _elect_leaders(
    context: RequestContext, request: entities.ElectLeadersRequest
) -> entities.ElectLeadersResponse:
    """Without a list of partitions, those whose leader changed are returned: none."""
    known = request.election_type in _ELECTIONS

    def elect(topic: str, index: i32) -> entities.PartitionResult:
        if not known:
            code = ErrorCode.invalid_request
            message = f"there is no election of type {request.election_type}"
        elif context.services.topics.partition(topic, index) is None:
            code, message = ErrorCode.unknown_topic_or_partition, "there is no such partition"
        else:
            code, message = ErrorCode.election_not_needed, "the one node leads it already"
        return entities.PartitionResult(partition_id=index, error_code=code, error_message=message)

    return entities.ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known else ErrorCode.invalid_request,
        replica_election_results=await answer_partitions(
            entities.ReplicaElectionResult, request.topic_partitions or (), elect
        ),
    )


# -- reassignments (KIP-455) -----------------------------------------------------------------------


@api("ListPartitionReassignments", max_version=0, access=DESCRIBE_CLUSTER)
def _list_reassignments(
    _: RequestContext, __: entities.ListPartitionReassignmentsRequest
) -> entities.ListPartitionReassignmentsResponse:
    return entities.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )


@api("AlterPartitionReassignments", max_version=1, access=ALTER_CLUSTER)
async def _alter_reassignments(
    context: RequestContext, request: entities.AlterPartitionReassignmentsRequest
) -> entities.AlterPartitionReassignmentsResponse:
    return entities.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        responses=await answer_partitions(
            entities.ReassignableTopicResponse, request.topics, partial(_reassign, context)
        ),
    )


def _reassign(
    context: RequestContext, topic: str, wanted: entities.ReassignablePartition
) -> entities.ReassignablePartitionResponse:
    code, message = ErrorCode.none, None
    try:
        if context.services.topics.partition(topic, wanted.partition_index) is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition, "there is no such partition")
        if wanted.replicas is None:
            raise RequestError(ErrorCode.no_reassignment_in_progress, "there is nothing to cancel")
        check_replicas(context, [wanted.replicas])
    except RequestError as error:
        code, message = error.code, error.message
    return entities.ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_code=code, error_message=message
    )
