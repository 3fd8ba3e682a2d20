"""OffsetCommit 2 to 9, OffsetFetch 1 to 9, OffsetDelete 0: the committed offsets of groups.

OffsetFetch 7 added `require_stable` (KIP-447), 8 several groups in one request (KIP-709), 9 the
member and its epoch, as OffsetCommit 9 (KIP-848). OffsetDelete
removes offsets of topics that the group is not subscribed to (KIP-496).
Differs from Kafka: nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from ...authorization.rules import Operation, Resource
from ...coordinators.groups.group_types import GroupError, MemberIdentity
from ...coordinators.offset_store import CommittedOffset
from ...log.results import LogError
from ...turns import in_turns
from .. import entities
from ..access import Access, refusal, response_list
from ..api import NO_THROTTLE, api
from ..slices import answer_partitions
from .groups import group_error_code, group_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...topics.topic import TopicPartition
    from ..access import Call
    from ..api import RequestContext

logger = structlog.get_logger(__name__)

# -- OffsetCommit ----------------------------------------------------------------------------------

_FIRST_WITH_EPOCHS = 9  # of members of groups of KIP-848: they may not use an older one


@api(
    "OffsetCommit",
    min_version=2,
    max_version=9,
    access=Access(
        whole=[(Operation.READ, Resource.GROUP, "group_id")],
        each=("topics", Operation.READ, Resource.TOPIC),
    ),
)
async def offset_commit(
    context: RequestContext, request: entities.OffsetCommitRequest
) -> entities.OffsetCommitResponse:
    """Respond when the offsets are stored as durably as --fsync demands."""
    accepted, refused = await check_offsets(context, request)
    commit = context.services.groups.commit(
        request.group_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.generation_id_or_member_epoch,
        accepted,
        knows_epochs=context.api_version >= _FIRST_WITH_EPOCHS,
    )
    outcome = await group_outcome(commit, "offsets could not be stored", request.group_id)
    return await commit_response(request, refused, outcome)


async def commit_response(
    request: entities.OffsetCommitRequest | entities.TxnOffsetCommitRequest,
    refused: Mapping[TopicPartition, ErrorCode],
    outcome: ErrorCode,
) -> entities.OffsetCommitResponse:
    """Return the code of each partition: that of its refusal, or the outcome of the commit."""

    def result(topic: str, asked: Any) -> entities.OffsetCommitResponsePartition:
        index = asked.partition_index
        return entities.OffsetCommitResponsePartition(
            partition_index=index, error_code=refused.get((topic, index), outcome)
        )

    return entities.OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=await answer_partitions(entities.OffsetCommitResponseTopic, request.topics, result),
    )


async def check_offsets(
    context: RequestContext, request: entities.OffsetCommitRequest | entities.TxnOffsetCommitRequest
) -> tuple[dict[TopicPartition, tuple[int, int, str]], dict[TopicPartition, ErrorCode]]:
    """Return the offsets to commit (offset, leader epoch, metadata), and the error codes of the others."""
    services = context.services
    accepted: dict[TopicPartition, tuple[int, int, str]] = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    topics: tuple[Any, ...] = request.topics
    async for topic in in_turns(topics):
        async for each in in_turns(topic.partitions):
            partition = (topic.name, each.partition_index)
            metadata = each.committed_metadata or ""
            if services.topics.partition(*partition) is None:
                refused[partition] = ErrorCode.unknown_topic_or_partition
            elif not services.groups.accepts_metadata(metadata):
                refused[partition] = ErrorCode.offset_metadata_too_large
            else:
                accepted[partition] = (each.committed_offset, each.committed_leader_epoch, metadata)
    return accepted, refused


# -- OffsetFetch -----------------------------------------------------------------------------------

_NOTHING_COMMITTED = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", timestamp=-1)


async def _offset_fetch_access(call: Call) -> Any:
    """Refuse groups that the client may not describe, and hide offsets of such topics."""
    groups = call.request.groups
    may = {each.group_id: _may_describe(call, each) async for each in in_turns(groups)}
    allowed = tuple(each for each in call.request.groups if may[each.group_id])
    response = await call.answer(replace(call.request, groups=allowed))
    asked = {group.group_id: group for group in allowed}
    visible = [
        await _without_hidden_topics(call, asked[each.group_id], each)
        async for each in in_turns(response.groups)
    ]
    _, element_type = response_list(call.api.response)
    visible += [
        refusal(element_type, group, ErrorCode.group_authorization_failed, elements=())
        async for group in in_turns(groups)
        if not may[group.group_id]
    ]
    return replace(response, groups=tuple(visible))


@api("OffsetFetch", min_version=8, max_version=9, access=_offset_fetch_access)
async def offset_fetch(
    context: RequestContext, request: entities.OffsetFetchRequest
) -> entities.OffsetFetchResponse:
    """From version 8 on a request is for several groups."""
    groups = [
        await _group(context, each, stable=request.require_stable)
        async for each in in_turns(request.groups)
    ]
    return entities.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


async def _offset_fetch_one_access(call: Call) -> Any:
    if not _may_describe(call, call.request):
        return await call.refuse(ErrorCode.group_authorization_failed)
    return await _without_hidden_topics(call, call.request, await call.answer())


@api("OffsetFetch", min_version=1, max_version=7, access=_offset_fetch_one_access)
async def _offset_fetch_one(
    context: RequestContext, request: entities.OffsetFetchRequestV7
) -> entities.OffsetFetchResponseGroup:
    """Up to version 7 a request, and its response, is for one group."""
    return await _group(context, request, stable=request.require_stable)


async def _group(
    context: RequestContext, asked: Any, *, stable: bool
) -> entities.OffsetFetchResponseGroup:
    """Fetch the offsets of one group, without those of open transactions; -1 where there is none.

    `stable`: their partitions get UNSTABLE_OFFSET_COMMIT, so that the client tries again. The group's error
    is that of each partition too: version 1 has no field for it.
    """
    offsets = context.services.groups.offsets
    wanted: list[TopicPartition] | None = None
    if asked.topics is not None:
        wanted = [
            (topic.name, index) for topic in asked.topics for index in topic.partition_indexes
        ]
    # Before the offsets are read: a transaction may commit in between.
    unstable = offsets.pending(asked.group_id) if stable else set()
    # Version 9 has the member, whose epoch must be that of a group of KIP-848.
    refused = context.services.groups.check_fetch(
        asked.group_id, getattr(asked, "member_id", None) or "", getattr(asked, "member_epoch", -1)
    )
    if refused is not None:
        return entities.OffsetFetchResponseGroup(
            group_id=asked.group_id, topics=(), error_code=group_error_code(refused)
        )
    error = ErrorCode.none
    committed: Mapping[TopicPartition, CommittedOffset] = {}
    try:
        committed = await offsets.fetch(asked.group_id, wanted)
    except LogError as failure:
        logger.error("offsets could not be read", group=asked.group_id, error=str(failure))
        error = ErrorCode.coordinator_not_available
    by_topic: defaultdict[str, list[entities.OffsetFetchResponsePartitions]] = defaultdict(list)
    async for topic, index in in_turns(dict.fromkeys(committed if wanted is None else wanted)):
        found = committed.get((topic, index), _NOTHING_COMMITTED)
        code = error
        if (topic, index) in unstable:
            found = _NOTHING_COMMITTED
            code = error or ErrorCode.unstable_offset_commit
        by_topic[topic].append(
            entities.OffsetFetchResponsePartitions(
                partition_index=i32(index),
                committed_offset=i64(found.offset),
                committed_leader_epoch=i32(found.leader_epoch),
                metadata=found.metadata,
                error_code=code,
            )
        )
    return entities.OffsetFetchResponseGroup(
        group_id=asked.group_id,
        topics=tuple(
            entities.OffsetFetchResponseTopics(name=TopicName(topic), partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
        error_code=error,
    )


def _may_describe(call: Call, group: Any) -> bool:
    return call.allows(Operation.DESCRIBE, Resource.GROUP, group.group_id)


async def _without_hidden_topics(call: Call, asked: Any, answer: Any) -> Any:
    """Refuse topics that the client may not describe; leave them out if it asked for all topics."""
    topics, refused = [], {}
    by_name = {each.name: each for each in asked.topics or ()}
    async for topic in in_turns(answer.topics):
        if call.allows(Operation.DESCRIBE, Resource.TOPIC, topic.name):
            topics.append(topic)
        elif asked.topics is not None:
            refused[by_name[topic.name]] = ErrorCode.topic_authorization_failed
    if refused:
        topics += await call.refusals(entities.OffsetFetchResponseTopics, refused)
    return replace(answer, topics=tuple(topics))


# -- OffsetDelete ----------------------------------------------------------------------------------


@api(
    "OffsetDelete",
    max_version=0,
    access=Access(
        whole=[(Operation.DELETE, Resource.GROUP, "group_id")],
        each=("topics", Operation.READ, Resource.TOPIC),
    ),
)
async def _offset_delete(
    context: RequestContext, request: entities.OffsetDeleteRequest
) -> entities.OffsetDeleteResponse:
    services = context.services
    wanted = {
        (topic.name, partition.partition_index)
        async for topic in in_turns(request.topics)
        async for partition in in_turns(topic.partitions)
        if services.topics.partition(topic.name, partition.partition_index) is not None
    }
    try:
        refused = await services.groups.delete_offsets(request.group_id, wanted)
    except LogError as failure:
        logger.error("offsets could not be deleted", group=request.group_id, error=str(failure))
        return _not_deleted(ErrorCode.coordinator_not_available)
    if isinstance(refused, GroupError):
        return _not_deleted(group_error_code(refused))

    def result(
        topic: str, asked: entities.OffsetDeleteRequestPartition
    ) -> entities.OffsetDeleteResponsePartition:
        code = ErrorCode.none
        if (topic, asked.partition_index) in refused:
            code = ErrorCode.group_subscribed_to_topic
        elif (topic, asked.partition_index) not in wanted:
            code = ErrorCode.unknown_topic_or_partition
        return entities.OffsetDeleteResponsePartition(
            partition_index=asked.partition_index, error_code=code
        )

    return entities.OffsetDeleteResponse(
        error_code=ErrorCode.none,
        throttle_time=NO_THROTTLE,
        topics=await answer_partitions(entities.OffsetDeleteResponseTopic, request.topics, result),
    )


def _not_deleted(error: ErrorCode) -> entities.OffsetDeleteResponse:
    return entities.OffsetDeleteResponse(error_code=error, throttle_time=NO_THROTTLE, topics=())
