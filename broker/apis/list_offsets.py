"""ListOffsets: the offsets where a log begins and ends, and where a time is (KIP-79, KIP-734).

Nothing is on tiered storage (KIP-405): the log begins on this disk, nothing was moved, nothing waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)
from kio.static.primitive import i32, i64

from broker.api import Api
from broker.apis.common import LEADER_EPOCH, NO_THROTTLE
from broker.log.errors import LogCorrupt

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition

    from broker.api import RequestContext
    from broker.topics.partition import Partition

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)

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


def _list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    committed = request.isolation_level == _READ_COMMITTED
    return ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _answer(context, topic.name, wanted, committed=committed)
                    for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _answer(
    context: RequestContext, topic: str, wanted: ListOffsetsPartition, *, committed: bool
) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    partition = context.services.topics.partition(topic, index)
    error = ErrorCode.none
    offset, timestamp = _NOT_FOUND
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif wanted.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    elif wanted.timestamp < 0 and not _is_served(wanted.timestamp, context.api_version):
        error = ErrorCode.unsupported_version
    else:
        try:
            offset, timestamp = _find(partition, wanted.timestamp, committed=committed)
        except LogCorrupt as problem:
            logger.error("records cannot be read", topic=topic, partition=index, error=str(problem))
            error = ErrorCode.kafka_storage_error
    if error is not ErrorCode.none:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error)
    return ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=error,
        timestamp=i64(timestamp),
        offset=i64(offset),
        leader_epoch=LEADER_EPOCH if offset >= 0 else _NO_LEADER_EPOCH,
    )


def _is_served(timestamp: int, version: int) -> bool:
    first = _FIRST_VERSIONS.get(timestamp)
    return first is not None and version >= first


def _find(partition: Partition, timestamp: int, *, committed: bool) -> tuple[int, int]:
    """Offset and timestamp (milliseconds); those that mark an end have no timestamp."""
    end = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == _LATEST:
        return end, -1
    if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
        return partition.log.log_start_offset, -1
    if timestamp in {_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD}:
        return _NOT_FOUND
    if timestamp == _MAX_TIMESTAMP:
        found = partition.log.offset_of_max_timestamp()
    else:
        found = partition.log.offset_for_timestamp(timestamp)
    return found if found is not None and found[0] < end else _NOT_FOUND


APIS = (Api(_list_offsets, ListOffsetsRequest, ListOffsetsResponse, min_version=1),)
