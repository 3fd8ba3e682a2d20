"""Where the one replica of each partition is: log directories, ElectLeaders, reassignments.

There is one node, so it leads every partition already, and nothing can be moved: what Kafka answers in
that case is answered here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread
from kio.schema.alter_partition_reassignments.v1 import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kio.schema.alter_partition_reassignments.v1.response import (
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kio.schema.alter_replica_log_dirs.v2 import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from kio.schema.alter_replica_log_dirs.v2.response import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirTopicResult,
)
from kio.schema.describe_log_dirs.v5 import DescribeLogDirsRequest, DescribeLogDirsResponse
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.elect_leaders.v2 import ElectLeadersRequest, ElectLeadersResponse
from kio.schema.elect_leaders.v2.response import PartitionResult, ReplicaElectionResult
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.apis.partitions import check_replicas
from broker.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kio.schema.alter_partition_reassignments.v1.request import ReassignablePartition

    from broker.api import RequestContext
    from broker.topics.partition import Partition

__all__ = ["APIS"]

_ELECTIONS = (0, 1)  # of the preferred leader, of any at all (KIP-460)


# -- log directories -------------------------------------------------------------------------------


async def _describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """KIP-113, sizes of the volume by KIP-827."""
    directory = context.services.settings.data_dir.absolute()
    volume = await to_thread.run_sync(os.statvfs, directory)
    return DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=(
            DescribeLogDirsResult(
                error_code=ErrorCode.none,
                log_dir=str(directory),
                topics=tuple(_log_sizes(context, request)),
                total_bytes=i64(volume.f_blocks * volume.f_frsize),
                usable_bytes=i64(volume.f_bavail * volume.f_frsize),
            ),
        ),
    )


def _log_sizes(
    context: RequestContext, request: DescribeLogDirsRequest
) -> Iterable[DescribeLogDirsTopic]:
    """Those that were asked for, or all; Kafka leaves out what does not exist."""
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
            for wanted in request.topics
        }
    for name, partitions in found.items():
        if partitions:
            yield DescribeLogDirsTopic(
                name=TopicName(name), partitions=tuple(_log_size(each) for each in partitions)
            )


def _log_size(partition: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=i32(partition.index),
        partition_size=i64(partition.log.size_bytes),
        offset_lag=i64(0),
        is_future_key=False,
    )


def _alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """There is one directory, and every log is in it (KIP-113)."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    here = str(context.services.settings.data_dir.absolute())
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                if context.services.topics.partition(topic.name, index) is None:
                    code = ErrorCode.unknown_topic_or_partition
                else:
                    code = ErrorCode.none if directory.path == here else ErrorCode.log_dir_not_found
                results.setdefault(topic.name, []).append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
    return AlterReplicaLogDirsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=TopicName(name), partitions=tuple(each))
            for name, each in results.items()
        ),
    )


# -- ElectLeaders ----------------------------------------------------------------------------------


def _elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """KIP-460; without a list of partitions only those are named whose leader has changed: none."""
    topics = context.services.topics
    known = request.election_type in _ELECTIONS
    results = tuple(
        ReplicaElectionResult(
            topic=wanted.topic,
            partition_result=tuple(
                _not_elected(index, exists=topics.partition(wanted.topic, index) is not None)
                if known
                else _no_election(index, request.election_type)
                for index in wanted.partitions
            ),
        )
        for wanted in request.topic_partitions or ()
    )
    return ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known else ErrorCode.invalid_request,
        replica_election_results=results,
    )


def _no_election(index: i32, election_type: int) -> PartitionResult:
    return PartitionResult(
        partition_id=index,
        error_code=ErrorCode.invalid_request,
        error_message=f"there is no election of type {election_type}",
    )


def _not_elected(index: i32, *, exists: bool) -> PartitionResult:
    if exists:
        code, message = ErrorCode.election_not_needed, "the one node leads it already"
    else:
        code, message = ErrorCode.unknown_topic_or_partition, "there is no such partition"
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


# -- reassignments (KIP-455) -----------------------------------------------------------------------


def _list_reassignments(
    _: RequestContext, __: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """None is ever under way."""
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )


def _alter_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(_reassign(context, topic.name, each) for each in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _reassign(
    context: RequestContext, topic: str, wanted: ReassignablePartition
) -> ReassignablePartitionResponse:
    code, message = ErrorCode.none, None
    try:
        if context.services.topics.partition(topic, wanted.partition_index) is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition, "there is no such partition")
        if wanted.replicas is None:
            raise RequestError(ErrorCode.no_reassignment_in_progress, "there is nothing to cancel")
        check_replicas(context, [wanted.replicas])
    except RequestError as error:
        code, message = error.code, error.message
    return ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_code=code, error_message=message
    )


APIS = (
    Api(_describe_log_dirs, DescribeLogDirsRequest, DescribeLogDirsResponse, min_version=1),
    Api(
        _alter_replica_log_dirs,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirsResponse,
        min_version=1,
    ),
    Api(_elect_leaders, ElectLeadersRequest, ElectLeadersResponse, min_version=0),
    Api(
        _list_reassignments,
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
        min_version=0,
    ),
    Api(
        _alter_reassignments,
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        min_version=0,
    ),
)
