"""OffsetCommit 10 and OffsetFetch 10: committed offsets of topics that are named by their ids (KIP-848).

Each is answered by the version before it: ids become names on the way in, and names become ids on the way
out. Partitions of an id that no topic has get UNKNOWN_TOPIC_ID.
Differs from Kafka: nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from ...authorization.rules import Operation, Resource
from ...protocol.messages import recast
from ...turns import in_turns
from .. import entities
from ..access import refusal
from ..api import api
from ..slices import computed
from . import committed_offsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from uuid import UUID

    from ..access import Call
    from ..api import RequestContext


class _Topics:
    """The topics of one request: `names` of the known ids, and what was asked of the `unknown` ones."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.unknown: list[Any] = []

    async def named(self, context: RequestContext, asked: Any, named_type: Any) -> tuple[Any, ...]:
        """Return the topics with a known id, as entities of the version that names them."""
        known = []
        async for topic in in_turns(asked):
            found = (
                None if topic.topic_id is None else context.services.topics.by_id(topic.topic_id)
            )
            if found is None:
                self.unknown.append(topic)
                continue
            self.names[topic.topic_id] = found.name
            known.append(topic)

        def named() -> tuple[Any, ...]:
            return tuple(
                replace(recast(each, named_type), name=TopicName(self.names[each.topic_id]))
                for each in known
            )

        return await computed(context, known, named)

    async def answered(
        self, context: RequestContext, answers: Any, answer_type: Any, ids: Mapping[str, UUID]
    ) -> tuple[Any, ...]:
        """Return the answers by id, then the refusals of the unknown ids; leave out names without an id."""

        def answered() -> tuple[Any, ...]:
            known = (
                replace(recast(topic, answer_type), topic_id=ids[topic.name])
                for topic in answers
                if topic.name in ids
            )
            unknown = (
                refusal(answer_type, topic, ErrorCode.unknown_topic_id) for topic in self.unknown
            )
            return (*known, *unknown)

        return await computed(context, (*answers, *self.unknown), answered)

    @property
    def ids(self) -> dict[str, UUID]:
        return {name: topic_id for topic_id, name in self.names.items()}


# -- OffsetCommit ----------------------------------------------------------------------------------


async def _commit(
    context: RequestContext,
    request: entities.OffsetCommitRequestV10,
    answer: Callable[[Any], Awaitable[Any]],
) -> entities.OffsetCommitResponseV10:
    topics = _Topics()
    named = await topics.named(context, request.topics, entities.OffsetCommitRequestTopic)
    by_name = recast(replace(request, topics=()), entities.OffsetCommitRequest)
    response = await answer(replace(by_name, topics=named))
    return entities.OffsetCommitResponseV10(
        throttle_time=response.throttle_time,
        topics=await topics.answered(
            context, response.topics, entities.OffsetCommitResponseTopicV10, topics.ids
        ),
    )


async def _commit_access(call: Call) -> Any:
    """Check the group before ids are looked up: a client without it learns nothing of them."""
    if not call.allows(Operation.READ, Resource.GROUP, call.request.group_id):
        return await call.refuse(ErrorCode.group_authorization_failed)
    by_name = committed_offsets.offset_commit
    return await _commit(
        call.context,
        call.request,
        lambda request: by_name.access(replace(call, api=by_name, request=request)),
    )


@api("OffsetCommit", min_version=10, max_version=10, access=_commit_access)
async def _offset_commit(
    context: RequestContext, request: entities.OffsetCommitRequestV10
) -> entities.OffsetCommitResponseV10:
    """Commit as by name."""
    handler = committed_offsets.offset_commit.handler
    return await _commit(context, request, lambda named: handler(context, named))


# -- OffsetFetch -----------------------------------------------------------------------------------


async def _fetch(
    context: RequestContext,
    request: entities.OffsetFetchRequestV10,
    answer: Callable[[Any], Awaitable[Any]],
) -> entities.OffsetFetchResponseV10:
    asked: dict[str, _Topics] = {}
    groups = []
    async for group in in_turns(request.groups):
        topics = asked.setdefault(group.group_id, _Topics())
        by_name = recast(replace(group, topics=None), entities.OffsetFetchRequestGroup)
        if group.topics is not None:
            named = await topics.named(context, group.topics, entities.OffsetFetchRequestTopics)
            by_name = replace(by_name, topics=named)
        groups.append(by_name)
    response = await answer(
        entities.OffsetFetchRequest(groups=tuple(groups), require_stable=request.require_stable)
    )
    wanted = {group.group_id: group for group in request.groups}
    answered = []
    async for group in in_turns(response.groups):
        topics = asked[group.group_id]
        ids = topics.ids
        if wanted[group.group_id].topics is None:
            found = (context.services.topics.get(topic.name) for topic in group.topics)
            ids = {topic.name: topic.topic_id for topic in found if topic is not None}
        if group.error_code:
            topics.unknown.clear()  # the error is that of the whole group
        of_group = recast(replace(group, topics=()), entities.OffsetFetchResponseGroupV10)
        by_id = await topics.answered(
            context, group.topics, entities.OffsetFetchResponseTopicsV10, ids
        )
        answered.append(replace(of_group, topics=by_id))
    return entities.OffsetFetchResponseV10(
        throttle_time=response.throttle_time, groups=tuple(answered)
    )


async def _fetch_access(call: Call) -> Any:
    by_name = committed_offsets.offset_fetch
    return await _fetch(
        call.context,
        call.request,
        lambda request: by_name.access(replace(call, api=by_name, request=request)),
    )


@api("OffsetFetch", min_version=10, max_version=10, access=_fetch_access)
async def _offset_fetch(
    context: RequestContext, request: entities.OffsetFetchRequestV10
) -> entities.OffsetFetchResponseV10:
    """Fetch as by name; of all topics, those that still exist."""
    handler = committed_offsets.offset_fetch.handler
    return await _fetch(context, request, lambda named: handler(context, named))
