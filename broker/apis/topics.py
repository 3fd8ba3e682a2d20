"""CreateTopics and DeleteTopics; and all that is about topics and partitions in one list."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import structlog
from kio.schema.create_topics.v7 import CreateTopicsRequest, CreateTopicsResponse
from kio.schema.create_topics.v7.response import CreatableTopicConfigs, CreatableTopicResult
from kio.schema.delete_topics import v5, v6
from kio.schema.delete_topics.v5.response import DeletableTopicResult as DeletedByName
from kio.schema.delete_topics.v6.response import DeletableTopicResult
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32

from broker.api import Api
from broker.apis import describe_topics, partitions, replicas
from broker.apis.common import NO_THROTTLE, STORAGE_FAILED
from broker.apis.partitions import check_replicas
from broker.errors import RequestError
from broker.log.errors import LogError
from broker.topics.config import describe_topic_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kio.schema.create_topics.v7.request import CreatableTopic
    from kio.schema.delete_topics.v6.request import DeleteTopicState

    from broker.api import RequestContext
    from broker.topics.config import Defaults

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)

_DEFAULT = -1
_NO_ID = UUID(int=0)


# -- CreateTopics ----------------------------------------------------------------------------------


async def _create_topics(
    context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    times = Counter(topic.name for topic in request.topics)
    results = []
    for wanted in request.topics:
        try:
            if times[wanted.name] > 1:
                raise RequestError(
                    ErrorCode.invalid_request, f"{wanted.name!r} is in the request more than once"
                )
            result = await _create(context, wanted, validate_only=request.validate_only)
        except RequestError as error:
            result = _not_created(wanted, error.code, error.message)
        except (LogError, OSError) as error:
            logger.error("a topic could not be created", topic=wanted.name, error=str(error))
            result = _not_created(wanted, ErrorCode.kafka_storage_error, STORAGE_FAILED)
        results.append(result)
    return CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))


async def _create(
    context: RequestContext, wanted: CreatableTopic, *, validate_only: bool
) -> CreatableTopicResult:
    topics = context.services.topics
    partitions = _partition_count(context, wanted)
    settings = _settings(wanted)
    topic_id = _NO_ID
    if validate_only:
        topics.check_new(wanted.name, partitions, settings)
    else:
        topic_id = (await topics.create(wanted.name, partitions, settings)).topic_id
    return CreatableTopicResult(
        name=wanted.name,
        topic_id=topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(partitions),
        replication_factor=i16(1),
        configs=_describe_settings(topics.defaults, settings),
    )


def _partition_count(context: RequestContext, wanted: CreatableTopic) -> int:
    if not wanted.assignments:
        if wanted.replication_factor not in (1, _DEFAULT):
            raise RequestError(
                ErrorCode.invalid_replication_factor,
                f"replication factor {wanted.replication_factor}: must be 1, there is one node",
            )
        default = context.services.settings.default_partitions
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


def _settings(wanted: CreatableTopic) -> dict[str, str]:
    times = Counter(each.name for each in wanted.configs)
    settings = {}
    for name, value in ((each.name, each.value) for each in wanted.configs):
        if times[name] > 1:
            raise RequestError(ErrorCode.invalid_request, f"{name} is set more than once")
        if value is None:
            raise RequestError(ErrorCode.invalid_config, f"{name}: a value is needed, not null")
        settings[name] = value
    return settings


def _describe_settings(
    defaults: Defaults, settings: Mapping[str, str]
) -> tuple[CreatableTopicConfigs, ...]:
    return tuple(
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=i8(entry.source),
            is_sensitive=False,
        )
        for entry in describe_topic_config(settings, defaults)
    )


def _not_created(wanted: CreatableTopic, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=wanted.name, topic_id=_NO_ID, error_code=code, error_message=message, configs=()
    )


# -- DeleteTopics ----------------------------------------------------------------------------------


async def _delete_topics(
    context: RequestContext, request: v6.DeleteTopicsRequest
) -> v6.DeleteTopicsResponse:
    """From version 6 on, topics are named by name or id (KIP-516)."""
    names = [_deleted_name(context, wanted) for wanted in request.topics]
    times = Counter(names)
    results = []
    for wanted, name in zip(request.topics, names, strict=True):
        topic = None if name is None else context.services.topics.get(name)
        topic_id = wanted.topic_id or (_NO_ID if topic is None else topic.topic_id)
        if (wanted.name is None) is (wanted.topic_id is None):
            code, message = ErrorCode.invalid_request, "a topic is asked for by its name or its id"
        elif name is None:
            code, message = ErrorCode.unknown_topic_id, f"there is no topic with the id {topic_id}"
        else:
            code, message = await _delete(context, name, times[name])
        results.append(
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=code, error_message=message or None
            )
        )
    return v6.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))


def _deleted_name(context: RequestContext, wanted: DeleteTopicState) -> TopicName | None:
    if wanted.name is not None or wanted.topic_id is None:
        return wanted.name
    topic = context.services.topics.by_id(wanted.topic_id)
    return None if topic is None else TopicName(topic.name)


async def _delete_topics_by_name(
    context: RequestContext, request: v5.DeleteTopicsRequest
) -> v5.DeleteTopicsResponse:
    times = Counter(request.topic_names)
    results = []
    for name in request.topic_names:
        code, message = await _delete(context, name, times[name])
        results.append(DeletedByName(name=name, error_code=code, error_message=message or None))
    return v5.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))


async def _delete(context: RequestContext, name: str, times: int) -> tuple[ErrorCode, str]:
    if times > 1:
        return ErrorCode.invalid_request, f"{name!r} is in the request {times} times"
    try:
        await context.services.topics.delete(name)
    except RequestError as error:
        return error.code, error.message
    except (LogError, OSError) as error:
        logger.error("a topic could not be deleted", topic=name, error=str(error))
        return ErrorCode.kafka_storage_error, STORAGE_FAILED
    return ErrorCode.none, ""


APIS = (
    *partitions.APIS,
    *replicas.APIS,
    *describe_topics.APIS,
    Api(_create_topics, CreateTopicsRequest, CreateTopicsResponse, min_version=2),
    Api(_delete_topics, v6.DeleteTopicsRequest, v6.DeleteTopicsResponse, min_version=6),
    Api(_delete_topics_by_name, v5.DeleteTopicsRequest, v5.DeleteTopicsResponse, min_version=1),
)
