"""ConsumerGroupHeartbeat 0 to 1, ConsumerGroupDescribe 0 to 1: the consumer group protocol of KIP-848.

Heartbeat 1 added regular expressions, and lets the client choose its member id (KIP-1082). Describe 1 added
the type of members.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta

from ...authorization.rules import Operation, Resource
from ...coordinators.groups.consumer_group import ConsumerGroup
from ...coordinators.groups.consumer_types import ConsumerHeartbeat
from ...coordinators.groups.group_types import GroupError, by_topic
from ...log.results import LogError
from ...turns import in_turns
from .. import entities
from ..access import Access, authorized_operations
from ..api import NO_THROTTLE, api
from .groups import group_error_code

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from ...coordinators.groups.consumer_types import ConsumerHeartbeatResult, ConsumerMember
    from ..api import RequestContext

_FIRST_WITH_CLIENTS_MEMBER_ID = 1
_CONSUMER_MEMBER = i8(1)

logger = structlog.get_logger(__name__)

_MESSAGES: Final = {
    GroupError.UNSUPPORTED_ASSIGNOR: "supported server-side assignors: uniform, range",
    GroupError.INVALID_REGULAR_EXPRESSION: "RE2 cannot read the regular expression",
    GroupError.UNRELEASED_INSTANCE_ID: "another member has this instance id, and has not left",
    GroupError.GROUP_ID_NOT_FOUND: "the group has members of the classic protocol; let them leave first",
    GroupError.FENCED_MEMBER_EPOCH: "the member's epoch is not the one that it has here",
}


@api(
    "ConsumerGroupHeartbeat",
    max_version=1,
    access=Access(whole=[(Operation.READ, Resource.GROUP, "group_id")]),
)
async def _heartbeat(
    context: RequestContext, request: entities.ConsumerGroupHeartbeatRequest
) -> entities.ConsumerGroupHeartbeatResponse:
    """Respond when the group's change is stored as durably as --fsync demands."""
    owned = None
    if request.topic_partitions is not None:
        owned = frozenset(
            [
                (each.topic_id, int(index))
                async for each in in_turns(request.topic_partitions)
                if each.topic_id is not None
                for index in each.partitions
            ]
        )
    problem = _check(context, request)
    if problem:
        return _refused(ErrorCode.invalid_request, problem)
    names = request.subscribed_topic_names or ()
    async for name in in_turns(names):
        if not _may_see(context, name):
            return _refused(ErrorCode.topic_authorization_failed, None)
    timeout = request.rebalance_timeout.total_seconds()
    heartbeat = ConsumerHeartbeat(
        member_id=request.member_id or str(uuid4()),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout=timeout if timeout >= 0 else None,
        topics=None if request.subscribed_topic_names is None else tuple(names),
        # Version 0 has no expressions.
        regex=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=owned,
        client_id=context.client_id,
        client_host=context.client_host,
    )
    try:
        result = await context.services.groups.consumer_heartbeat(
            request.group_id, heartbeat, lambda name: _may_see(context, name)
        )
    except LogError as error:
        logger.error("a group could not be stored", group=request.group_id, error=str(error))
        return _refused(ErrorCode.coordinator_not_available, None)
    if result.error is not None:
        return _refused(group_error_code(result.error), _MESSAGES.get(result.error))
    return _accepted(context, request.group_id, result)


def _check(context: RequestContext, request: entities.ConsumerGroupHeartbeatRequest) -> str:
    """Return the problem of a request that breaks the protocol, or nothing."""
    epoch = request.member_epoch
    joins = epoch == 0
    if not request.member_id and (
        not joins or context.api_version >= _FIRST_WITH_CLIENTS_MEMBER_ID
    ):
        return "MemberId can't be empty."
    if request.instance_id == "":
        return "InstanceId can't be empty."
    if epoch < -2:
        return "MemberEpoch is invalid."
    if epoch == -2 and request.instance_id is None:
        return "InstanceId can't be null."
    if joins:
        if request.rebalance_timeout.total_seconds() < 0:
            return "RebalanceTimeoutMs must be provided in first request."
        if request.topic_partitions is None or request.topic_partitions:
            return "TopicPartitions must be empty when (re-)joining."
        regex = getattr(request, "subscribed_topic_regex", None)
        if (
            not request.subscribed_topic_names
            and not regex
            and (request.subscribed_topic_names is None)
        ):
            return (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining."
            )
    return ""


def _may_see(context: RequestContext, topic: str) -> bool:
    return context.allows(Operation.DESCRIBE, Resource.TOPIC, topic)


def _refused(code: ErrorCode, message: str | None) -> entities.ConsumerGroupHeartbeatResponse:
    return entities.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        member_epoch=i32(0),
        heartbeat_interval=i32Timedelta.parse(timedelta(0)),
    )


def _accepted(
    context: RequestContext, group_id: str, result: ConsumerHeartbeatResult
) -> entities.ConsumerGroupHeartbeatResponse:
    assignment = None
    if result.assignment is not None:
        assignment = entities.ConsumerAssignment(
            topic_partitions=tuple(
                entities.ConsumerTopicPartitions(topic_id=topic, partitions=partitions)
                for topic, partitions in _by_topic(result.assignment)
            )
        )
    interval = timedelta(seconds=context.services.groups.own.heartbeat_interval(group_id))
    return entities.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        member_id=result.member_id,
        member_epoch=i32(result.epoch),
        heartbeat_interval=i32Timedelta.parse(interval),
        assignment=assignment,
    )


def _by_topic(partitions: Iterable[tuple[UUID, int]]) -> Iterable[tuple[UUID, tuple[i32, ...]]]:
    return [(topic, tuple(map(i32, each))) for topic, each in by_topic(partitions).items()]


# -- ConsumerGroupDescribe -------------------------------------------------------------------------


@api(
    "ConsumerGroupDescribe",
    max_version=1,
    access=Access(each=("group_ids", Operation.DESCRIBE, Resource.GROUP)),
)
async def _describe_groups(
    context: RequestContext, request: entities.ConsumerGroupDescribeRequest
) -> entities.ConsumerGroupDescribeResponse:
    operations = request.include_authorized_operations
    groups = [
        await _describe(context, each, operations=operations)
        async for each in in_turns(request.group_ids)
    ]
    return entities.ConsumerGroupDescribeResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


async def _describe(context: RequestContext, group_id: Any, *, operations: bool) -> Any:
    group = context.services.groups.find(group_id)
    if not isinstance(group, ConsumerGroup):
        message = f"Group {group_id} is not a consumer group."
        return _undescribed(group_id, ErrorCode.group_id_not_found, message)
    if not all(_may_see(context, name) for name in group.subscribed_topics()):
        message = "The group has described topic(s) that the client is not authorized to describe."
        return _undescribed(group_id, ErrorCode.topic_authorization_failed, message)
    return entities.ConsumerDescribedGroup(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=i32(group.epoch),
        assignment_epoch=i32(group.assignment_epoch),
        assignor_name=group.assignor,
        members=tuple(
            [
                _member(context, group, each)
                async for each in in_turns(tuple(group.members.values()))
            ]
        ),
        authorized_operations=authorized_operations(
            context, Resource.GROUP, group_id, wanted=operations
        ),
    )


def _undescribed(group_id: Any, code: ErrorCode, message: str) -> Any:
    return entities.ConsumerDescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=i32(0),
        assignment_epoch=i32(0),
        assignor_name="",
        members=(),
    )


def _member(context: RequestContext, group: ConsumerGroup, member: ConsumerMember) -> Any:
    return entities.ConsumerDescribedMember(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=i32(member.epoch),
        client_id=member.client_id,
        client_host=f"/{member.client_host}",  # as Java prints addresses
        subscribed_topic_names=tuple(TopicName(name) for name in member.topics),
        subscribed_topic_regex=member.regex or None,
        assignment=_described(context, member.assigned),
        target_assignment=_described(context, group.target.get(member.id, ())),
        member_type=_CONSUMER_MEMBER,
    )


def _described(context: RequestContext, partitions: Iterable[tuple[UUID, int]]) -> Any:
    named = [
        (topic, topic_id, indexes)
        for topic_id, indexes in _by_topic(partitions)
        if (topic := context.services.topics.by_id(topic_id)) is not None
    ]
    return entities.ConsumerDescribedAssignment(
        topic_partitions=tuple(
            entities.ConsumerDescribedTopicPartitions(
                topic_id=topic_id, topic_name=TopicName(topic.name), partitions=indexes
            )
            for topic, topic_id, indexes in named
        )
    )
