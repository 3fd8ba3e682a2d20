"""Metadata: which topics there are and who leads them; creates topics on demand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import kio.schema.metadata.v10 as v10
import structlog
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v13.response import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32

from broker.api import Api
from broker.apis.common import LEADER_EPOCH, NO_THROTTLE
from broker.apis.operations import allowed_operations
from broker.errors import RequestError
from broker.log.errors import LogError
from broker.security.acls import Resource
from broker.topics.names import check_topic_name
from broker.wire.messages import recast

if TYPE_CHECKING:
    from kio.schema.metadata.v13.request import MetadataRequestTopic

    from broker.api import RequestContext
    from broker.topics.topics import Topic

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)


async def _metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    services = context.services
    operations = request.include_topic_authorized_operations
    # Version 0 has no null: there, no names means all topics.
    if request.topics is None or (context.api_version == 0 and not request.topics):
        topics = tuple(
            _describe(context, topic, operations=operations) for topic in services.topics
        )
    else:
        topics = tuple([await _find(context, request, wanted) for wanted in request.topics])
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(
            MetadataResponseBroker(
                node_id=context.node_id, host=context.node_host, port=i32(context.node_port)
            ),
        ),
        cluster_id=services.cluster_id,
        controller_id=context.node_id,
        topics=topics,
        error_code=ErrorCode.none,
    )


async def _find(
    context: RequestContext, request: MetadataRequest, wanted: MetadataRequestTopic
) -> MetadataResponseTopic:
    topics = context.services.topics
    create = request.allow_auto_topic_creation
    operations = request.include_topic_authorized_operations
    if wanted.topic_id is not None or wanted.name is None:  # the Java client sends "" with an id
        by_id = topics.by_id(wanted.topic_id) if wanted.topic_id is not None else None
        if by_id is None:
            return _missing_id(wanted)
        return _describe(context, by_id, operations=operations)
    topic = topics.get(wanted.name)
    if topic is not None:
        return _describe(context, topic, operations=operations)
    if not (create and context.services.settings.auto_create_topics):
        return _missing(wanted, _why_missing(wanted.name))
    try:
        topic = await topics.create_if_missing(wanted.name)
    except RequestError as error:
        return _missing(wanted, error.code)
    except (LogError, OSError) as error:
        logger.error("a topic could not be created", topic=wanted.name, error=str(error))
        return _missing(wanted, ErrorCode.kafka_storage_error)
    return _describe(context, topic, operations=operations)


def _why_missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except RequestError as error:
        return error.code
    return ErrorCode.unknown_topic_or_partition


def _missing(wanted: MetadataRequestTopic, error: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error, name=wanted.name, topic_id=wanted.topic_id, partitions=()
    )


def _missing_id(wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.unknown_topic_id, name=None, topic_id=wanted.topic_id, partitions=()
    )


def _describe(context: RequestContext, topic: Topic, *, operations: bool) -> MetadataResponseTopic:
    node = context.node_id
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(partition.index),
                leader_id=node,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=(node,),
                isr_nodes=(node,),
            )
            for partition in topic.partitions
        ),
        topic_authorized_operations=allowed_operations(
            context, Resource.TOPIC, topic.name, wanted=operations
        ),
    )


async def _metadata_of_cluster(
    context: RequestContext, request: v10.MetadataRequest
) -> v10.MetadataResponse:
    """Versions 8 to 10 say what a client may do to the cluster, too; later DescribeCluster does."""
    newest = await _metadata(context, recast(request, MetadataRequest))
    response: v10.MetadataResponse = recast(newest, v10.MetadataResponse)
    asked = request.include_cluster_authorized_operations
    return replace(
        response,
        cluster_authorized_operations=allowed_operations(context, Resource.CLUSTER, wanted=asked),
    )


APIS = (
    Api(_metadata_of_cluster, v10.MetadataRequest, v10.MetadataResponse, min_version=0),
    Api(_metadata, MetadataRequest, MetadataResponse, min_version=11),
)
