"""What a client must be allowed to do for each API, and what is answered when it is not.

Requirements and error codes are those of Kafka's authorizer, with one difference: `alter` stands for
ALTER and ALTER_CONFIGS, and who may describe a resource may read its configuration. Produce and Fetch,
which read their requests themselves, ask `RequestContext.allows` on their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kio.schema.describe_topic_partitions.v0.request import TopicRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from broker.apis.common import ResourceType
from broker.apis.refusals import answer_list, refusal
from broker.security.acls import ANY_NAME, Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from broker.api import Api, RequestContext

__all__ = ["GUARDED", "OPEN", "guarded"]

_CODES: Final = {
    Resource.TOPIC: ErrorCode.topic_authorization_failed,
    Resource.GROUP: ErrorCode.group_authorization_failed,
    Resource.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    Resource.CLUSTER: ErrorCode.cluster_authorization_failed,
}
_COORDINATED: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID}


class _Need(NamedTuple):
    """An operation on a resource that must be allowed."""

    operation: Operation
    resource: Resource
    name: str = "kafka-cluster"


@dataclass(frozen=True, slots=True)
class _Call:
    """One request that may be refused."""

    api: Any
    context: RequestContext
    request: Any

    def lacks(self, need: _Need) -> bool:
        return not self.context.allows(*need)

    async def answer(self, request: Any = None) -> Any:
        """Let the handler answer, this request or what is left of it."""
        response = self.api.handler(self.context, self.request if request is None else request)
        return await response if isawaitable(response) else response

    def refuse(self, code: ErrorCode, *, lists: bool = True) -> Any:
        return refusal(self.api.response, self.request, code, lists=lists)

    async def answer_but(self, field: str, refused: dict[Any, ErrorCode]) -> Any:
        """Answer without these elements of the request's list `field`, and add their refusals."""
        if not refused:
            return await self.answer()
        rest = tuple(each for each in getattr(self.request, field) if each not in refused)
        response = await self.answer(replace(self.request, **{field: rest}))
        name, element = answer_list(self.api.response)
        refusals = tuple(refusal(element, each, code) for each, code in refused.items())
        return replace(response, **{name: (*getattr(response, name), *refusals)})


_Guard: TypeAlias = "Callable[[_Call], Awaitable[Any]]"
_Needed: TypeAlias = "Callable[[Any], Iterable[_Need]]"
"""What an element of a request needs: any one of these."""


def guarded(api: Api[Any, Any]) -> Api[Any, Any]:
    """The same API for those who are allowed; of APIs that are not in the table: administrators."""
    if api.key in OPEN:
        return api
    guard = GUARDED.get(api.key, _ADMINISTRATION)
    return replace(api, handler=partial(_run, guard, api))


async def _run(guard: _Guard, api: Api[Any, Any], context: RequestContext, request: Any) -> Any:
    return await guard(_Call(api, context, request))


# -- kinds of guards -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """`whole`: operation, resource and field with its name, all needed for anything at all.

    `field` and `each`: the list of what is decided one by one.
    """

    whole: tuple[tuple[Operation, Resource, str], ...] = ()
    field: str = ""
    each: _Needed | None = None
    lists: bool = True

    async def __call__(self, call: _Call) -> Any:
        for operation, resource, field in self.whole:
            need = _Need(operation, resource)
            if field:
                need = need._replace(name=getattr(call.request, field))
            if call.lacks(need):
                return call.refuse(_CODES[resource], lists=self.lists)
        if self.each is None:
            return await call.answer()
        return await _decide_each(call, self.field, self.each)


async def _decide_each(call: _Call, field: str, needed: _Needed) -> Any:
    refused = {}
    for element in getattr(call.request, field):
        needs = list(needed(element))
        if needs and all(call.lacks(each) for each in needs):
            refused[element] = _CODES[needs[0].resource]
    return await call.answer_but(field, refused)


def _topics(operation: Operation) -> _Needed:
    return lambda topic: [_Need(operation, Resource.TOPIC, _name(topic))]


def _creates_topic(topic: Any) -> Iterable[_Need]:
    return [
        _Need(Operation.CREATE, Resource.TOPIC, topic.name),
        _Need(Operation.CREATE, Resource.CLUSTER),
    ]


def _groups(operation: Operation) -> _Needed:
    return lambda group: [_Need(operation, Resource.GROUP, group)]


def _configured(operation: Operation) -> _Needed:
    def needed(wanted: Any) -> Iterable[_Need]:
        if wanted.resource_type == ResourceType.TOPIC:
            return [_Need(operation, Resource.TOPIC, wanted.resource_name)]
        return [_Need(operation, Resource.CLUSTER)]

    return needed


def _name(topic: Any) -> str:
    return str(topic.name if hasattr(topic, "name") else topic.topic)


# -- APIs that need more than one question ---------------------------------------------------------


async def _metadata(call: _Call) -> Any:
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


def _may_see(call: _Call, topic: str) -> bool:
    return not call.lacks(_Need(Operation.DESCRIBE, Resource.TOPIC, topic))


def _may_ask_for(call: _Call, topic: str) -> bool:
    """Asking for a topic may create it."""
    services = call.context.services
    creates = (
        services.topics.get(topic) is None
        and call.request.allow_auto_topic_creation
        and services.settings.auto_create_topics
    )
    return (
        not creates
        or not call.lacks(_Need(Operation.CREATE, Resource.TOPIC, topic))
        or not call.lacks(_Need(Operation.CREATE, Resource.CLUSTER))
    )


def _topic_name(call: _Call, wanted: Any) -> str | None:
    """The name of a topic that is asked for by name or id; None for an unknown id."""
    if wanted.name is not None:
        return str(wanted.name)
    topic = call.context.services.topics.by_id(wanted.topic_id) if wanted.topic_id else None
    return None if topic is None else topic.name


async def _describe_topics(call: _Call) -> Any:
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


async def _alter_replica_log_dirs(call: _Call) -> Any:
    if not call.lacks(_Need(Operation.ALTER, Resource.CLUSTER)):
        return await call.answer()
    name, element = answer_list(call.api.response)
    code = ErrorCode.cluster_authorization_failed
    refusals = (refusal(element, t, code) for each in call.request.dirs for t in each.topics)
    return replace(call.refuse(code, lists=False), **{name: tuple(refusals)})


async def _delete_topics(call: _Call) -> Any:
    if hasattr(call.request, "topic_names"):
        return await _decide_each(
            call, "topic_names", lambda n: [_Need(Operation.DELETE, Resource.TOPIC, n)]
        )

    def needed(wanted: Any) -> Iterable[_Need]:
        name = _topic_name(call, wanted)
        return [] if name is None else [_Need(Operation.DELETE, Resource.TOPIC, name)]

    return await _decide_each(call, "topics", needed)


async def _find_coordinator(call: _Call) -> Any:
    resource = _COORDINATED.get(call.request.key_type)
    if resource is None:
        return await call.answer()
    if hasattr(call.request, "coordinator_keys"):
        return await _decide_each(
            call, "coordinator_keys", lambda key: [_Need(Operation.DESCRIBE, resource, key)]
        )
    if call.lacks(_Need(Operation.DESCRIBE, resource, call.request.key)):
        return call.refuse(_CODES[resource])
    return await call.answer()


async def _offset_fetch(call: _Call) -> Any:
    """Offsets of topics that may not be seen are refused, or left out where all are asked for."""
    if not hasattr(call.request, "groups"):
        if call.lacks(_Need(Operation.DESCRIBE, Resource.GROUP, call.request.group_id)):
            return call.refuse(ErrorCode.group_authorization_failed)
        return _censored(call, call.request, await call.answer())
    allowed = tuple(
        group
        for group in call.request.groups
        if not call.lacks(_Need(Operation.DESCRIBE, Resource.GROUP, group.group_id))
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


def _censored(call: _Call, asked: Any, answer: Any) -> Any:
    """The offsets of a group, without those of topics that may not be seen."""
    topics = []
    for topic in answer.topics:
        if _may_see(call, topic.name):
            topics.append(topic)
        elif asked.topics is not None:
            wanted = next(each for each in asked.topics if each.name == topic.name)
            topics.append(refusal(type(topic), wanted, ErrorCode.topic_authorization_failed))
    return replace(answer, topics=tuple(topics))


async def _list_groups(call: _Call) -> Any:
    response = await call.answer()
    if not call.lacks(_Need(Operation.DESCRIBE, Resource.CLUSTER)):
        return response
    seen = tuple(
        each
        for each in response.groups
        if not call.lacks(_Need(Operation.DESCRIBE, Resource.GROUP, each.group_id))
    )
    return replace(response, groups=seen)


async def _list_transactions(call: _Call) -> Any:
    response = await call.answer()
    seen = tuple(
        each
        for each in response.transaction_states
        if not call.lacks(
            _Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, each.transactional_id)
        )
    )
    return replace(response, transaction_states=seen)


async def _init_producer_id(call: _Call) -> Any:
    """An idempotent producer has to be allowed to write somewhere (KIP-679)."""
    transactional_id = call.request.transactional_id
    if transactional_id is not None:
        if call.lacks(_Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)):
            return call.refuse(ErrorCode.transactional_id_authorization_failed)
    elif call.lacks(_Need(Operation.WRITE, Resource.TOPIC, ANY_NAME)) and call.lacks(
        _Need(Operation.WRITE, Resource.CLUSTER)
    ):
        return call.refuse(ErrorCode.cluster_authorization_failed)
    return await call.answer()


async def _add_partitions(call: _Call) -> Any:
    """All partitions or none: those of other topics are not attempted."""
    request = call.request
    transactional_id = request.v3_and_below_transactional_id
    if call.lacks(_Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)):
        return call.refuse(ErrorCode.transactional_id_authorization_failed)
    refused = {
        topic.name
        for topic in request.v3_and_below_topics
        if call.lacks(_Need(Operation.WRITE, Resource.TOPIC, topic.name))
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


# -- the table -------------------------------------------------------------------------------------

_READS_GROUP = (Operation.READ, Resource.GROUP, "group_id")
_DELETES_GROUP = (Operation.DELETE, Resource.GROUP, "group_id")
_WRITES_TRANSACTION = (Operation.WRITE, Resource.TRANSACTIONAL_ID, "transactional_id")
_ADMINISTRATION: Final = _Rule(whole=((Operation.ALTER, Resource.CLUSTER, ""),))
_MEMBERSHIP: Final = _Rule(whole=(_READS_GROUP,))

OPEN: Final = frozenset({17, 18, 36, 60})
"""SaslHandshake, ApiVersions, SaslAuthenticate, DescribeCluster: for everybody."""

GUARDED: Final[dict[int, _Guard]] = {
    2: _Rule(field="topics", each=_topics(Operation.DESCRIBE)),  # ListOffsets
    3: _metadata,
    8: _Rule(whole=(_READS_GROUP,), field="topics", each=_topics(Operation.READ)),  # OffsetCommit
    9: _offset_fetch,
    10: _find_coordinator,
    11: _MEMBERSHIP,  # JoinGroup
    12: _MEMBERSHIP,  # Heartbeat
    13: _MEMBERSHIP,  # LeaveGroup
    14: _MEMBERSHIP,  # SyncGroup
    15: _Rule(field="groups", each=_groups(Operation.DESCRIBE)),  # DescribeGroups
    16: _list_groups,
    19: _Rule(field="topics", each=_creates_topic),  # CreateTopics
    20: _delete_topics,
    21: _Rule(field="topics", each=_topics(Operation.DELETE)),  # DeleteRecords
    22: _init_producer_id,
    23: _Rule(field="topics", each=_topics(Operation.DESCRIBE)),  # OffsetForLeaderEpoch
    24: _add_partitions,
    25: _Rule(whole=(_WRITES_TRANSACTION, _READS_GROUP)),  # AddOffsetsToTxn
    26: _Rule(whole=(_WRITES_TRANSACTION,)),  # EndTxn
    28: _Rule(  # TxnOffsetCommit
        whole=(_WRITES_TRANSACTION, _READS_GROUP), field="topics", each=_topics(Operation.READ)
    ),
    32: _Rule(field="resources", each=_configured(Operation.DESCRIBE)),  # DescribeConfigs
    33: _Rule(field="resources", each=_configured(Operation.ALTER)),  # AlterConfigs
    34: _alter_replica_log_dirs,
    35: _Rule(whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),), lists=False),  # DescribeLogDirs
    37: _Rule(field="topics", each=_topics(Operation.ALTER)),  # CreatePartitions
    42: _Rule(field="groups_names", each=_groups(Operation.DELETE)),  # DeleteGroups
    43: _ADMINISTRATION,  # ElectLeaders
    44: _Rule(field="resources", each=_configured(Operation.ALTER)),  # IncrementalAlterConfigs
    45: _ADMINISTRATION,  # AlterPartitionReassignments
    46: _Rule(whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),)),  # ListPartitionReassignments
    47: _Rule(
        whole=(_DELETES_GROUP,), field="topics", each=_topics(Operation.READ)
    ),  # OffsetDelete
    61: _Rule(field="topics", each=_topics(Operation.READ)),  # DescribeProducers
    65: _Rule(  # DescribeTransactions
        field="transactional_ids",
        each=lambda each: [_Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, each)],
    ),
    66: _list_transactions,
    74: _Rule(whole=((Operation.DESCRIBE, Resource.CLUSTER, ""),)),  # ListConfigResources
    75: _describe_topics,
}
"""By API key; all others are for administrators of the cluster."""
