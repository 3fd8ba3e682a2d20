"""CreateTopics 2 to 7, DeleteTopics 1 to 6, CreatePartitions 0 to 3 (KIP-195).

CreateTopics 7 and DeleteTopics 6 added topic ids (KIP-516).
Differs from Kafka: each partition has one replica, on this node; anything else is refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32

from ...authorization.rules import Operation, Resource
from ...errors import RequestError
from ...topics.topic_config import describe_topic_config
from ...turns import in_turns
from .. import entities
from ..access import Access, Need
from ..api import NO_THROTTLE, ElementResult, api, attempt, check_listed_once
from .metadata import topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..access import Call
    from ..api import RequestContext

_DEFAULT = -1
_NO_ID = UUID(int=0)


def check_replicas(context: RequestContext, assignments: Iterable[Sequence[int]]) -> None:
    """Raise RequestError (INVALID_REPLICA_ASSIGNMENT) unless this node is each partition's only replica."""
    node = context.node_id
    if any(tuple(nodes) != (node,) for nodes in assignments):
        raise RequestError(
            ErrorCode.invalid_replica_assignment,
            f"each partition must be assigned to node {node} alone",
        )


# -- CreateTopics ----------------------------------------------------------------------------------


def _needs_create(_: Call, topic: entities.CreatableTopic) -> Iterable[Need]:
    return [
        Need(Operation.CREATE, Resource.TOPIC, topic.name),
        Need(Operation.CREATE, Resource.CLUSTER),
    ]


@api("CreateTopics", min_version=2, max_version=7, access=Access(each=("topics", _needs_create)))
async def _create_topics(
    context: RequestContext, request: entities.CreateTopicsRequest
) -> entities.CreateTopicsResponse:
    times = Counter(str(topic.name) for topic in request.topics)
    results = [
        await _create(context, each, times, validate_only=request.validate_only)
        async for each in in_turns(request.topics)
    ]
    return entities.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))


async def _create(
    context: RequestContext,
    wanted: entities.CreatableTopic,
    times: Counter[str],
    *,
    validate_only: bool,
) -> entities.CreatableTopicResult:
    topics = context.services.topics
    name = wanted.name
    created = entities.CreatableTopicResult(
        name=name, topic_id=_NO_ID, error_code=ErrorCode.none, error_message=None, configs=()
    )

    async def create() -> None:
        nonlocal created
        check_listed_once(name, times)
        partitions = _partition_count(context, wanted)
        settings = _given_settings(wanted)
        topic_id = _NO_ID
        if validate_only:
            topics.check_new(name, partitions, settings)
        else:
            topic_id = (await topics.create(name, partitions, settings)).topic_id
        created = replace(
            created,
            topic_id=topic_id,
            num_partitions=i32(partitions),
            replication_factor=i16(1),
            configs=tuple(
                entities.CreatableTopicConfigs(
                    name=entry.name,
                    value=settings.get(entry.name, entry.value),  # as it was given
                    read_only=entry.read_only,
                    config_source=i8(entry.source),
                    is_sensitive=False,
                )
                for entry in describe_topic_config(settings, topics.defaults)
            ),
        )

    outcome = await attempt(create(), "a topic could not be created", topic=name)
    return replace(created, error_code=outcome.code, error_message=outcome.message)


def _partition_count(context: RequestContext, wanted: entities.CreatableTopic) -> int:
    if not wanted.assignments:
        if wanted.replication_factor not in (1, _DEFAULT):
            raise RequestError(
                ErrorCode.invalid_replication_factor,
                f"replication factor {wanted.replication_factor}: must be 1, there is one node",
            )
        default = context.services.node.settings.default_partitions
        return default if wanted.num_partitions == _DEFAULT else wanted.num_partitions
    if wanted.num_partitions != _DEFAULT or wanted.replication_factor != _DEFAULT:
        raise RequestError(
            ErrorCode.invalid_request,
            "with replica assignments, partitions and replication factor must be -1",
        )
    indexes = sorted(each.partition_index for each in wanted.assignments)
    if indexes != list(range(len(indexes))):
        raise RequestError(
            ErrorCode.invalid_replica_assignment,
            "replicas must be assigned to partitions 0 to n - 1, once each",
        )
    check_replicas(context, (each.broker_ids for each in wanted.assignments))
    return len(indexes)


def _given_settings(wanted: entities.CreatableTopic) -> dict[str, str]:
    times = Counter(each.name for each in wanted.configs)
    settings = {}
    for name, value in ((each.name, each.value) for each in wanted.configs):
        check_listed_once(name, times)
        if value is None:
            raise RequestError(ErrorCode.invalid_config, f"{name}: the value is null; give one")
        settings[name] = value
    return settings


# -- DeleteTopics ----------------------------------------------------------------------------------


def _needs_delete(call: Call, wanted: Any) -> Iterable[Need]:
    name = topic_name(call.context, wanted)
    return [] if name is None else [Need(Operation.DELETE, Resource.TOPIC, name)]


@api("DeleteTopics", min_version=6, max_version=6, access=Access(each=("topics", _needs_delete)))
async def _delete_topics(
    context: RequestContext, request: entities.DeleteTopicsRequest
) -> entities.DeleteTopicsResponse:
    """From version 6 on, a request has names or ids."""
    names = [each.name or topic_name(context, each) for each in request.topics]
    times = Counter(name for name in names if name is not None)
    results = []
    async for wanted, name in in_turns(zip(request.topics, names, strict=True)):
        topic = None if name is None else context.services.topics.get(name)
        topic_id = wanted.topic_id or (_NO_ID if topic is None else topic.topic_id)
        if (wanted.name is None) is (wanted.topic_id is None):
            outcome = ElementResult(
                ErrorCode.invalid_request, "name a topic by its name or by its id"
            )
        elif name is None:
            outcome = ElementResult(
                ErrorCode.unknown_topic_id, f"there is no topic with the id {topic_id}"
            )
        else:
            outcome = await _delete(context, name, times)
        results.append(
            entities.DeletableTopicResult(
                name=None if name is None else TopicName(name),
                topic_id=topic_id,
                error_code=outcome.code,
                error_message=outcome.message,
            )
        )
    return entities.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))


@api(
    "DeleteTopics",
    min_version=1,
    max_version=5,
    access=Access(each=("topic_names", Operation.DELETE, Resource.TOPIC)),
)
async def _delete_topics_by_name(
    context: RequestContext, request: entities.DeleteTopicsRequestV5
) -> entities.DeleteTopicsResponse:
    named = tuple(
        entities.DeleteTopicState(name=each, topic_id=None) for each in request.topic_names
    )
    newest = entities.DeleteTopicsRequest(topics=named, timeout=request.timeout)
    response: entities.DeleteTopicsResponse = await _delete_topics.handler(context, newest)
    return response


async def _delete(context: RequestContext, name: str, times: Counter[str]) -> ElementResult:
    async def delete() -> None:
        check_listed_once(name, times)
        await context.services.topics.delete(name)

    return await attempt(delete(), "a topic could not be deleted", topic=name)


# -- CreatePartitions ------------------------------------------------------------------------------


@api(
    "CreatePartitions",
    max_version=3,
    access=Access(each=("topics", Operation.ALTER, Resource.TOPIC)),
)
async def _create_partitions(
    context: RequestContext, request: entities.CreatePartitionsRequest
) -> entities.CreatePartitionsResponse:
    times = Counter(str(topic.name) for topic in request.topics)
    results = []
    async for wanted in in_turns(request.topics):
        outcome = await attempt(
            _grow(context, wanted, times, validate_only=request.validate_only),
            "partitions could not be added",
            topic=wanted.name,
        )
        results.append(
            entities.CreatePartitionsTopicResult(
                name=wanted.name, error_code=outcome.code, error_message=outcome.message
            )
        )
    return entities.CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


async def _grow(
    context: RequestContext,
    wanted: entities.CreatePartitionsTopic,
    times: Counter[str],
    *,
    validate_only: bool,
) -> None:
    check_listed_once(wanted.name, times)
    topics = context.services.topics
    topic = topics.check_growth(wanted.name, wanted.count)
    if wanted.assignments is not None:
        added = wanted.count - len(topic.partitions)
        if len(wanted.assignments) != added:
            raise RequestError(
                ErrorCode.invalid_replica_assignment,
                f"{added} partitions are added, but {len(wanted.assignments)} assigned",
            )
        check_replicas(context, (each.broker_ids for each in wanted.assignments))
    if not validate_only:
        await topics.grow(wanted.name, wanted.count)
