"""Guards of APIs that have to be asked more than one question, or whose answers show too much."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kio.schema.describe_topic_partitions.v0.request import TopicRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from broker.apis.guarding import CODES, Call, Need, decide_each
from broker.apis.refusals import answer_list, refusal
from broker.security.acls import ANY_NAME, Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "add_partitions",
    "alter_replica_log_dirs",
    "alter_users",
    "delete_topics",
    "describe_topics",
    "find_coordinator",
    "init_producer_id",
    "list_groups",
    "list_transactions",
    "metadata",
    "offset_fetch",
]

_COORDINATED: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID}


async def metadata(call: Call) -> Any:
    """Names that may not be seen are refused; a list of all topics has only those that may be."""
    asked = call.request.topics
    version_0_means_all = call.context.api_version == 0 and not asked
    if asked is None or version_0_means_all:
        response = await call.answer()
        seen = tuple(topic for topic in response.topics if _may_see(call, topic.name))
        return replace(response, topics=seen)
    refused = {
        wanted: ErrorCode.topic_authorization_failed
        for wanted in asked
        if (name := _topic_name(call, wanted)) is not None
        and not (_may_see(call, name) and _may_ask_for(call, name))
    }
    if len(refused) == len(set(asked)) and call.context.api_version == 0:
        response = replace(await call.answer(), topics=())
        _, element = answer_list(call.api.response)
        return replace(response, topics=tuple(refusal(element, *each) for each in refused.items()))
    return await call.answer_but("topics", refused)


def _may_see(call: Call, topic: str) -> bool:
    return not call.lacks(Need(Operation.DESCRIBE, Resource.TOPIC, topic))


def _may_ask_for(call: Call, topic: str) -> bool:
    """Asking for a topic may create it."""
    services = call.context.services
    creates = (
        services.topics.get(topic) is None
        and call.request.allow_auto_topic_creation
        and services.settings.auto_create_topics
    )
    return (
        not creates
        or not call.lacks(Need(Operation.CREATE, Resource.TOPIC, topic))
        or not call.lacks(Need(Operation.CREATE, Resource.CLUSTER))
    )


def _topic_name(call: Call, wanted: Any) -> str | None:
    """The name of a topic that is asked for by id, which goes first, or name; None for an unknown id."""
    if wanted.topic_id is None:
        return None if wanted.name is None else str(wanted.name)
    topic = call.context.services.topics.by_id(wanted.topic_id)
    return None if topic is None else topic.name


async def describe_topics(call: Call) -> Any:
    """No names mean all of them, so that what is left of a request must not be without any."""
    asked = [topic.name for topic in call.request.topics]
    names = asked or [topic.name for topic in call.context.services.topics]
    seen = tuple(TopicRequest(name=TopicName(each)) for each in names if _may_see(call, each))
    if seen:
        response = await call.answer(replace(call.request, topics=seen))
    else:
        response = call.refuse(ErrorCode.none, lists=False)
    if call.request.cursor is not None:
        return response  # the first page has the refusals
    _, element = answer_list(call.api.response)
    refusals = (
        refusal(element, topic, ErrorCode.topic_authorization_failed)
        for topic in call.request.topics
        if not _may_see(call, topic.name)
    )
    return replace(response, topics=(*response.topics, *refusals))


async def alter_replica_log_dirs(call: Call) -> Any:
    if not call.lacks(Need(Operation.ALTER, Resource.CLUSTER)):
        return await call.answer()
    name, element = answer_list(call.api.response)
    code = ErrorCode.cluster_authorization_failed
    refusals = (refusal(element, t, code) for each in call.request.dirs for t in each.topics)
    return replace(call.refuse(code, lists=False), **{name: tuple(refusals)})


async def alter_users(call: Call) -> Any:
    """A request has two lists of users, and the answer one result for each user."""
    if not call.lacks(Need(Operation.ALTER, Resource.CLUSTER)):
        return await call.answer()
    name, element = answer_list(call.api.response)
    users = sorted({each.name for each in (*call.request.deletions, *call.request.upsertions)})
    code = ErrorCode.cluster_authorization_failed
    refusals = tuple(refusal(element, user, code) for user in users)
    return replace(call.refuse(code, lists=False), **{name: refusals})


async def delete_topics(call: Call) -> Any:
    if hasattr(call.request, "topic_names"):
        return await decide_each(
            call, "topic_names", lambda n: [Need(Operation.DELETE, Resource.TOPIC, n)]
        )

    def needed(wanted: Any) -> Iterable[Need]:
        name = _topic_name(call, wanted)
        return [] if name is None else [Need(Operation.DELETE, Resource.TOPIC, name)]

    return await decide_each(call, "topics", needed)


async def find_coordinator(call: Call) -> Any:
    resource = _COORDINATED.get(call.request.key_type)
    if resource is None:
        return await call.answer()
    if hasattr(call.request, "coordinator_keys"):
        return await decide_each(
            call, "coordinator_keys", lambda key: [Need(Operation.DESCRIBE, resource, key)]
        )
    if call.lacks(Need(Operation.DESCRIBE, resource, call.request.key)):
        return call.refuse(CODES[resource])
    return await call.answer()


async def offset_fetch(call: Call) -> Any:
    """Offsets of topics that may not be seen are refused, or left out where all are asked for."""
    if not hasattr(call.request, "groups"):
        if call.lacks(Need(Operation.DESCRIBE, Resource.GROUP, call.request.group_id)):
            return call.refuse(ErrorCode.group_authorization_failed)
        return _censored(call, call.request, await call.answer())
    allowed = tuple(
        group
        for group in call.request.groups
        if not call.lacks(Need(Operation.DESCRIBE, Resource.GROUP, group.group_id))
    )
    response = await call.answer(replace(call.request, groups=allowed))
    asked = {group.group_id: group for group in allowed}
    groups = [_censored(call, asked[each.group_id], each) for each in response.groups]
    _, element = answer_list(call.api.response)
    groups += [
        refusal(element, group, ErrorCode.group_authorization_failed, lists=False)
        for group in call.request.groups
        if group not in allowed
    ]
    return replace(response, groups=tuple(groups))


def _censored(call: Call, asked: Any, answer: Any) -> Any:
    """The offsets of a group, without those of topics that may not be seen."""
    topics = []
    for topic in answer.topics:
        if _may_see(call, topic.name):
            topics.append(topic)
        elif asked.topics is not None:
            wanted = next(each for each in asked.topics if each.name == topic.name)
            topics.append(refusal(type(topic), wanted, ErrorCode.topic_authorization_failed))
    return replace(answer, topics=tuple(topics))


async def list_groups(call: Call) -> Any:
    response = await call.answer()
    if not call.lacks(Need(Operation.DESCRIBE, Resource.CLUSTER)):
        return response
    seen = tuple(
        each
        for each in response.groups
        if not call.lacks(Need(Operation.DESCRIBE, Resource.GROUP, each.group_id))
    )
    return replace(response, groups=seen)


async def list_transactions(call: Call) -> Any:
    response = await call.answer()
    seen = tuple(
        each
        for each in response.transaction_states
        if not call.lacks(
            Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, each.transactional_id)
        )
    )
    return replace(response, transaction_states=seen)


async def init_producer_id(call: Call) -> Any:
    """An idempotent producer has to be allowed to write somewhere (KIP-679)."""
    transactional_id = call.request.transactional_id
    if transactional_id is not None:
        if call.lacks(Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)):
            return call.refuse(ErrorCode.transactional_id_authorization_failed)
    elif call.lacks(Need(Operation.WRITE, Resource.TOPIC, ANY_NAME)) and call.lacks(
        Need(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)
    ):
        return call.refuse(ErrorCode.cluster_authorization_failed)
    return await call.answer()


async def add_partitions(call: Call) -> Any:
    """All partitions or none: those of other topics are not attempted."""
    request = call.request
    transactional_id = request.v3_and_below_transactional_id
    if call.lacks(Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)):
        return call.refuse(ErrorCode.transactional_id_authorization_failed)
    refused = {
        topic.name
        for topic in request.v3_and_below_topics
        if call.lacks(Need(Operation.WRITE, Resource.TOPIC, topic.name))
    }
    if not refused:
        return await call.answer()
    name, element = answer_list(call.api.response)
    results = tuple(
        refusal(
            element,
            topic,
            ErrorCode.topic_authorization_failed
            if topic.name in refused
            else ErrorCode.operation_not_attempted,
        )
        for topic in request.v3_and_below_topics
    )
    return replace(call.refuse(ErrorCode.none), **{name: results})
