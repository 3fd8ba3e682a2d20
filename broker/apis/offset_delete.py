"""OffsetDelete: forgets what a group committed for topics that it does not read now (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0 import OffsetDeleteRequest, OffsetDeleteResponse
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.apis.membership import error_code
from broker.log.errors import LogError
from broker.membership.types import GroupError

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)


async def _offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    services = context.services
    wanted = [
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
        if services.topics.partition(topic.name, partition.partition_index) is not None
    ]
    try:
        refused = await services.groups.delete_offsets(request.group_id, wanted)
    except LogError as failure:
        logger.error("offsets could not be deleted", group=request.group_id, error=str(failure))
        return _response(ErrorCode.coordinator_not_available)
    if isinstance(refused, GroupError):
        return _response(error_code(refused))

    def code(topic: str, partition: int) -> ErrorCode:
        if (topic, partition) in refused:
            return ErrorCode.group_subscribed_to_topic
        if (topic, partition) not in wanted:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.none

    return _response(
        ErrorCode.none,
        tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=code(topic.name, each.partition_index),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _response(
    error: ErrorCode, topics: tuple[OffsetDeleteResponseTopic, ...] = ()
) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error, throttle_time=NO_THROTTLE, topics=topics)


APIS = (Api(_offset_delete, OffsetDeleteRequest, OffsetDeleteResponse, min_version=0),)
