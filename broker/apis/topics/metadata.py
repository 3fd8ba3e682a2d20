"""Metadata 0 to 13 and DescribeTopicPartitions 0: the topics, and the one node that leads all of them.

Metadata 8 added authorized operations (KIP-430), 10 topic ids (KIP-516), 11 dropped the operations on the
cluster; DescribeTopicPartitions lists topics page by page (KIP-966). Metadata creates topics on demand.
Differs from Kafka: nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from ...authorization.rules import Operation, Resource
from ...errors import RequestError
from ...protocol.messages import recast
from ...topics.topic import check_topic_name
from ...turns import in_turns
from .. import entities
from ..access import authorized_operations
from ..api import LEADER_EPOCH, NO_THROTTLE, api, attempt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...topics.topic import Topic
    from ..access import Call
    from ..api import RequestContext

_MAX_PARTITIONS = 2000  # of one page, as Kafka's max.request.partition.size.limit
_NO_ID = UUID(int=0)


# -- Metadata --------------------------------------------------------------------------------------


async def _metadata_access(call: Call) -> Any:
    """Refuse topics that the client may not describe, or not create; leave them out of a list of all."""
    if _asks_for_all(call.context, call.request):
        return await call.visible(await call.answer(), "topics", Resource.TOPIC)
    refused = {
        wanted: ErrorCode.topic_authorization_failed
        async for wanted in in_turns(call.request.topics)
        if (name := topic_name(call.context, wanted)) is not None
        and not (_may_describe(call, name) and _may_create_on_demand(call, name))
    }
    if len(refused) == len(set(call.request.topics)) and call.context.api_version == 0:
        response = replace(await call.answer(), topics=())  # no topics in the request mean all
        return await call.add_refusals(response, refused)
    return await call.answer_without("topics", refused)


@api("Metadata", min_version=11, max_version=13, access=_metadata_access)
async def _metadata(
    context: RequestContext, request: entities.MetadataRequest
) -> entities.MetadataResponse:
    return entities.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(
            entities.MetadataResponseBroker(
                node_id=context.node_id, host=context.node_host, port=i32(context.node_port)
            ),
        ),
        cluster_id=context.services.node.cluster_id,
        controller_id=context.node_id,
        topics=await _topics(context, request),
        error_code=ErrorCode.none,
    )


async def _topics(
    context: RequestContext, request: Any
) -> tuple[entities.MetadataResponseTopic, ...]:
    """Describe the topics of a request of any version."""
    if _asks_for_all(context, request):
        operations = request.include_topic_authorized_operations
        topics = list(context.services.topics)
        found = [
            await _describe(context, each, operations=operations) async for each in in_turns(topics)
        ]
    else:
        found = [await _find(context, request, each) async for each in in_turns(request.topics)]
    return tuple(found)


def _asks_for_all(context: RequestContext, request: Any) -> bool:
    """In version 0, which has no null, an empty list means all topics."""
    return request.topics is None or (context.api_version == 0 and not request.topics)


async def _find(
    context: RequestContext,
    request: entities.MetadataRequest,
    wanted: entities.MetadataRequestTopic,
) -> entities.MetadataResponseTopic:
    topics = context.services.topics
    name, error = None, ErrorCode.unknown_topic_id
    if wanted.topic_id is not None or wanted.name is None:  # the Java client sends "" with an id
        topic = None if wanted.topic_id is None else topics.by_id(wanted.topic_id)
    else:
        name, error = wanted.name, ErrorCode.none
        topic = topics.get(name)
        if topic is None and _creates(context, request):
            create = topics.create_if_missing(name)
            error = (await attempt(create, "a topic could not be created", topic=name)).code
            topic = topics.get(name)
        if topic is None:
            error = error or _why_missing(name)
    if topic is not None:
        operations = request.include_topic_authorized_operations
        return await _describe(context, topic, operations=operations)
    return entities.MetadataResponseTopic(
        error_code=error, name=name, topic_id=wanted.topic_id, partitions=()
    )


def _creates(context: RequestContext, request: Any) -> bool:
    return bool(
        request.allow_auto_topic_creation and context.services.node.settings.auto_create_topics
    )


def _why_missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except RequestError as error:
        return error.code
    return ErrorCode.unknown_topic_or_partition


async def _describe(
    context: RequestContext, topic: Topic, *, operations: bool
) -> entities.MetadataResponseTopic:
    node = context.node_id
    return entities.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            [
                entities.MetadataResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=i32(partition.index),
                    leader_id=node,
                    leader_epoch=LEADER_EPOCH,
                    replica_nodes=(node,),
                    isr_nodes=(node,),
                )
                async for partition in in_turns(topic.partitions)
            ]
        ),
        topic_authorized_operations=authorized_operations(
            context, Resource.TOPIC, topic.name, wanted=operations
        ),
    )


@api("Metadata", max_version=10, access=_metadata_access)
async def _metadata_of_cluster(
    context: RequestContext, request: entities.MetadataRequestV10
) -> entities.MetadataResponseV10:
    """Versions 8 to 10 also have the operations on the cluster, which DescribeCluster has since."""
    newest: entities.MetadataResponse = await _metadata.handler(context, request)
    topics = [
        recast(each, entities.MetadataResponseTopicV10) async for each in in_turns(newest.topics)
    ]
    response: entities.MetadataResponseV10 = recast(
        replace(newest, topics=()), entities.MetadataResponseV10
    )
    return replace(
        response,
        topics=tuple(topics),
        cluster_authorized_operations=authorized_operations(
            context, Resource.CLUSTER, wanted=request.include_cluster_authorized_operations
        ),
    )


def _may_describe(call: Call, topic: str) -> bool:
    return call.allows(Operation.DESCRIBE, Resource.TOPIC, topic)


def _may_create_on_demand(call: Call, topic: str) -> bool:
    """Whether the topic exists, will not be created, or may be created by the client."""
    return (
        call.context.services.topics.get(topic) is not None
        or not _creates(call.context, call.request)
        or call.allows(Operation.CREATE, Resource.TOPIC, topic)
        or call.allows(Operation.CREATE, Resource.CLUSTER)
    )


def topic_name(context: RequestContext, wanted: Any) -> str | None:
    """Return the name of a topic that a request names by id or name; None for an unknown id.

    An id takes precedence.
    """
    if wanted.topic_id is None:
        return None if wanted.name is None else str(wanted.name)
    topic = context.services.topics.by_id(wanted.topic_id)
    return None if topic is None else topic.name


# -- DescribeTopicPartitions -----------------------------------------------------------------------


async def _describe_access(call: Call) -> Any:
    """Describe only the topics that the client may describe; the first page refuses the others."""
    asked = [topic.name for topic in call.request.topics]
    names = asked or [topic.name for topic in call.context.services.topics]
    allowed = [
        entities.TopicRequest(name=TopicName(each))
        async for each in in_turns(names)
        if _may_describe(call, each)
    ]
    if allowed:
        response = await call.answer(replace(call.request, topics=tuple(allowed)))
    else:  # a request without names would describe all topics
        response = await call.refuse(ErrorCode.none, elements=())
    if call.request.cursor is not None:
        return response
    refused = {
        topic: ErrorCode.topic_authorization_failed
        async for topic in in_turns(call.request.topics)
        if not _may_describe(call, topic.name)
    }
    return await call.add_refusals(response, refused)


@api("DescribeTopicPartitions", max_version=0, access=_describe_access)
async def _describe_topic_partitions(
    context: RequestContext, request: entities.DescribeTopicPartitionsRequest
) -> entities.DescribeTopicPartitionsResponse:
    """Describe the topics of the request, or all, by name, from the cursor on, as many as fit on a page."""
    topics = context.services.topics
    names: Iterable[str] = {each.name for each in request.topics} or {each.name for each in topics}
    first_name, first = "", 0
    if request.cursor is not None:
        first_name, first = request.cursor.topic_name, request.cursor.partition_index
    room = min(request.response_partition_limit, _MAX_PARTITIONS)
    if room < 1 or first < 0:
        return entities.DescribeTopicPartitionsResponse(
            throttle_time=NO_THROTTLE,
            topics=tuple(_missing(each.name, ErrorCode.invalid_request) for each in request.topics),
        )
    described: list[entities.DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    async for name in in_turns(sorted(name for name in names if name >= first_name)):
        topic = topics.get(name)
        if topic is None:
            described.append(_missing(name, _why_missing(name)))
            continue
        start = first if name == first_name else 0
        end = min(len(topic.partitions), start + room)
        if start < end or not topic.partitions:
            described.append(await _describe_page(context, topic, range(start, end)))
            room -= end - start
        if end < len(topic.partitions):
            next_cursor = entities.Cursor(topic_name=TopicName(name), partition_index=i32(end))
            break
    return entities.DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(described), next_cursor=next_cursor
    )


async def _describe_page(
    context: RequestContext, topic: Topic, indexes: Iterable[int]
) -> entities.DescribeTopicPartitionsResponseTopic:
    node = context.node_id
    return entities.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            [
                entities.DescribeTopicPartitionsResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=i32(index),
                    leader_id=node,
                    leader_epoch=LEADER_EPOCH,
                    replica_nodes=(node,),
                    isr_nodes=(node,),
                    eligible_leader_replicas=(),
                    last_known_elr=(),
                )
                async for index in in_turns(indexes)
            ]
        ),
        topic_authorized_operations=authorized_operations(context, Resource.TOPIC, topic.name),
    )


def _missing(name: str, error: ErrorCode) -> entities.DescribeTopicPartitionsResponseTopic:
    return entities.DescribeTopicPartitionsResponseTopic(
        error_code=error, name=TopicName(name), topic_id=_NO_ID, partitions=()
    )
