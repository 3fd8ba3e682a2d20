"""DescribeTopicPartitions: topics page by page (KIP-966)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from kio.schema.describe_topic_partitions.v0 import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from broker.api import Api
from broker.apis.common import LEADER_EPOCH, NO_THROTTLE
from broker.apis.operations import allowed_operations
from broker.errors import RequestError
from broker.security.acls import Resource
from broker.topics.names import check_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import RequestContext
    from broker.topics.topics import Topic

__all__ = ["APIS"]

_MAX_PARTITIONS = 2000  # of one page, as Kafka's max.request.partition.size.limit
_NO_ID = UUID(int=0)


def _describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """The topics that are asked for, or all, by name, from the cursor on; as many as fit on a page."""
    topics = context.services.topics
    names: Iterable[str] = {each.name for each in request.topics} or {each.name for each in topics}
    first_name, first = "", 0
    if request.cursor is not None:
        first_name, first = request.cursor.topic_name, request.cursor.partition_index
    room = min(request.response_partition_limit, _MAX_PARTITIONS)
    if room < 1 or first < 0:
        return DescribeTopicPartitionsResponse(
            throttle_time=NO_THROTTLE,
            topics=tuple(_missing(each.name, ErrorCode.invalid_request) for each in request.topics),
        )
    described: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    for name in sorted(name for name in names if name >= first_name):
        topic = topics.get(name)
        if topic is None:
            described.append(_missing(name, _why_missing(name)))
            continue
        start = first if name == first_name else 0
        end = min(len(topic.partitions), start + room)
        if start < end or not topic.partitions:
            described.append(_describe(context, topic, range(start, end)))
            room -= end - start
        if end < len(topic.partitions):
            next_cursor = Cursor(topic_name=TopicName(name), partition_index=i32(end))
            break
    return DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(described), next_cursor=next_cursor
    )


def _describe(
    context: RequestContext, topic: Topic, indexes: Iterable[int]
) -> DescribeTopicPartitionsResponseTopic:
    node = context.node_id
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(index),
                leader_id=node,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=(node,),
                isr_nodes=(node,),
                eligible_leader_replicas=(),
                last_known_elr=(),
            )
            for index in indexes
        ),
        topic_authorized_operations=allowed_operations(context, Resource.TOPIC, topic.name),
    )


def _missing(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=TopicName(name), topic_id=_NO_ID, partitions=()
    )


def _why_missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except RequestError as error:
        return error.code
    return ErrorCode.unknown_topic_or_partition


APIS = (
    Api(
        _describe_topic_partitions,
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        min_version=0,
    ),
)
