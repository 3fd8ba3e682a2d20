"""ListOffsets 1 to 11, OffsetForLeaderEpoch 2 to 4, DeleteRecords 0 to 2: where a log begins and ends.

ListOffsets finds the ends of a log and the offset of a time (KIP-79), from version 7 on that of the largest
timestamp (KIP-734). OffsetForLeaderEpoch tells clients whether a log was truncated (KIP-320).
DeleteRecords moves the start (KIP-107).

Differs from Kafka: nothing is on tiered storage (KIP-405), so the log begins on this disk, and the leader
epoch is always 0.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64

from ...authorization.rules import Operation, Resource
from ...log.disk_work import do_in_thread
from ...log.results import LogError, OffsetNotInLog
from ...topics.topic import INTERNAL_TOPICS
from .. import entities
from ..access import Access
from ..api import LEADER_EPOCH, NO_THROTTLE, api, read_error
from ..slices import answer_partitions

if TYPE_CHECKING:
    from ...topics.topic import Partition
    from ..api import RequestContext

logger = structlog.get_logger(__name__)

# -- ListOffsets -----------------------------------------------------------------------------------

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_FIRST_VERSIONS = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED = 1
_NOT_FOUND = (-1, -1)
_NO_LEADER_EPOCH = i32(-1)


@api(
    "ListOffsets",
    min_version=1,
    max_version=11,
    access=Access(each=("topics", Operation.DESCRIBE, Resource.TOPIC)),
)
async def _list_offsets(
    context: RequestContext, request: entities.ListOffsetsRequest
) -> entities.ListOffsetsResponse:
    committed = request.isolation_level == _READ_COMMITTED
    return entities.ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=await answer_partitions(
            entities.ListOffsetsTopicResponse,
            request.topics,
            partial(_offset, context, committed=committed),
        ),
    )


async def _offset(
    context: RequestContext, topic: str, wanted: entities.ListOffsetsPartition, *, committed: bool
) -> entities.ListOffsetsPartitionResponse:
    index = wanted.partition_index
    partition = context.services.topics.partition(topic, index)
    error = ErrorCode.none
    offset, timestamp = _NOT_FOUND
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif wanted.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    elif wanted.timestamp < 0 and context.api_version < _FIRST_VERSIONS.get(wanted.timestamp, inf):
        error = ErrorCode.unsupported_version
    else:
        try:
            offset, timestamp = await _find(
                context, partition, wanted.timestamp, committed=committed
            )
        except (LogError, OSError) as problem:
            error = ErrorCode.unknown_topic_or_partition
            if not partition.closed:
                error = read_error(partition, problem)
    return entities.ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=error,
        timestamp=i64(timestamp),
        offset=i64(offset),
        leader_epoch=LEADER_EPOCH if offset >= 0 else _NO_LEADER_EPOCH,
    )


async def _find(
    context: RequestContext, partition: Partition, timestamp: int, *, committed: bool
) -> tuple[int, int]:
    """Return offset and timestamp (milliseconds); the ends of a log have no timestamp."""
    end = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == _LATEST:
        return end, -1
    if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
        return partition.log.log_start_offset, -1
    if timestamp in {_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD}:
        return _NOT_FOUND
    search = partition.log.search(None if timestamp == _MAX_TIMESTAMP else timestamp)
    found = await do_in_thread(search, limiter=context.services.computing)
    return found if found is not None and found[0] < end else _NOT_FOUND


# -- OffsetForLeaderEpoch --------------------------------------------------------------------------


@api(
    "OffsetForLeaderEpoch",
    min_version=2,
    max_version=4,
    access=Access(each=("topics", Operation.DESCRIBE, Resource.TOPIC)),
)
async def _offset_for_leader_epoch(
    context: RequestContext, request: entities.OffsetForLeaderEpochRequest
) -> entities.OffsetForLeaderEpochResponse:
    return entities.OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=await answer_partitions(
            entities.OffsetForLeaderTopicResult, request.topics, partial(_end_of_epoch, context)
        ),
    )


def _end_of_epoch(
    context: RequestContext, topic: str, wanted: entities.OffsetForLeaderPartition
) -> entities.EpochEndOffset:
    partition = context.services.topics.partition(topic, wanted.partition)
    error, epoch, end = ErrorCode.none, _NO_LEADER_EPOCH, -1
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif wanted.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    elif wanted.leader_epoch == LEADER_EPOCH:  # other epochs have no end
        epoch, end = LEADER_EPOCH, partition.high_watermark
    return entities.EpochEndOffset(
        error_code=error, partition=wanted.partition, leader_epoch=epoch, end_offset=i64(end)
    )


# -- DeleteRecords ---------------------------------------------------------------------------------

_TO_HIGH_WATERMARK = -1


@api(
    "DeleteRecords", max_version=2, access=Access(each=("topics", Operation.DELETE, Resource.TOPIC))
)
async def _delete_records(
    context: RequestContext, request: entities.DeleteRecordsRequest
) -> entities.DeleteRecordsResponse:
    return entities.DeleteRecordsResponse(
        throttle_time=NO_THROTTLE,
        topics=await answer_partitions(
            entities.DeleteRecordsTopicResult, request.topics, partial(_delete_below, context)
        ),
    )


async def _delete_below(
    context: RequestContext, topic: str, wanted: entities.DeleteRecordsPartition
) -> entities.DeleteRecordsPartitionResult:
    """Durable before the response: a restart does not bring the records back."""
    index = wanted.partition_index
    partition = context.services.topics.partition(topic, index)
    error, low_watermark = ErrorCode.none, -1
    if topic in INTERNAL_TOPICS:
        error = ErrorCode.invalid_topic_exception
    elif partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif partition.log.config.compacts and not partition.log.config.deletes:
        error = ErrorCode.policy_violation  # compaction must keep the latest record of each key
    else:
        log, end = partition.log, partition.high_watermark
        offset = end if wanted.offset == _TO_HIGH_WATERMARK else wanted.offset
        try:
            if not 0 <= offset <= end:
                raise OffsetNotInLog(offset, log.log_start_offset, end)
            await context.services.topics.clean(partition, log.truncation(offset))
            low_watermark = log.log_start_offset
        except OffsetNotInLog:
            error = ErrorCode.offset_out_of_range
        except (LogError, OSError) as problem:
            if partition.closed:
                error = ErrorCode.unknown_topic_or_partition
            else:
                error = ErrorCode.kafka_storage_error
                logger.error(
                    "records could not be deleted", topic=topic, partition=index, error=str(problem)
                )
    return entities.DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=i64(low_watermark), error_code=error
    )
