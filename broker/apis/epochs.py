"""OffsetForLeaderEpoch: clients ask it to find out whether a log was cut off behind their back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderTopicResult,
)
from kio.static.primitive import i32, i64

from broker.api import Api
from broker.apis.common import LEADER_EPOCH, NO_THROTTLE

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderPartition

    from broker.api import RequestContext

__all__ = ["APIS"]


def _offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _answer(context, topic.topic, wanted) for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _answer(
    context: RequestContext, topic: str, wanted: OffsetForLeaderPartition
) -> EpochEndOffset:
    partition = context.services.topics.partition(topic, wanted.partition)
    if partition is None:
        return _failed(wanted.partition, ErrorCode.unknown_topic_or_partition)
    if wanted.current_leader_epoch > LEADER_EPOCH:
        return _failed(wanted.partition, ErrorCode.unknown_leader_epoch)
    if wanted.leader_epoch != LEADER_EPOCH:
        return _failed(wanted.partition, ErrorCode.none)  # there never was such an epoch
    return EpochEndOffset(
        error_code=ErrorCode.none,
        partition=wanted.partition,
        leader_epoch=LEADER_EPOCH,
        end_offset=i64(partition.high_watermark),
    )


def _failed(partition: i32, error: ErrorCode) -> EpochEndOffset:
    return EpochEndOffset(error_code=error, partition=partition)


APIS = (
    Api(
        _offset_for_leader_epoch,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        min_version=2,
    ),
)
