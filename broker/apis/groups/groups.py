"""FindCoordinator 0 to 6; JoinGroup 0 to 9, SyncGroup 0 to 5, Heartbeat 0 to 4, LeaveGroup 0 to 5: the
classic group protocol; DescribeGroups 0 to 6, ListGroups 0 to 5, DeleteGroups 0 to 2.

FindCoordinator 4 finds several coordinators at once (KIP-699). JoinGroup 4 requires a member id from the
broker (KIP-394), 5 added static members (KIP-345), 9 lets the leader skip the assignment (KIP-814).
LeaveGroup 3 removes several members at once (KIP-345). DescribeGroups 5 added authorized operations
(KIP-430), 6 an error for groups that do not exist (KIP-1043); ListGroups 4 and 5 added filters by state
(KIP-518) and type (KIP-848).
Differs from Kafka: this node coordinates every group and every transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, GroupId
from kio.static.primitive import i32

from ...authorization.rules import Operation, Resource
from ...coordinators.groups.consumer_group import ConsumerGroup
from ...coordinators.groups.group_types import (
    GroupError,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
)
from ...log.results import LogError
from ...protocol.messages import recast
from ...turns import in_turns
from .. import entities
from ..access import DENIED, Access, Need, authorized_operations
from ..api import NO_THROTTLE, api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from ...coordinators.groups.group import Group
    from ..access import Call
    from ..api import RequestContext

_COORDINATED: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID}
"""By key type."""

_FIRST_WITH_MEMBER_ID_REQUIRED = 4
_FIRST_WITH_SKIPPED_ASSIGNMENT = 9
_FIRST_WITH_NOT_FOUND = 6

logger = structlog.get_logger(__name__)


def group_error_code(error: GroupError | None) -> ErrorCode:
    """Return the protocol's code of the same name."""
    return ErrorCode.none if error is None else ErrorCode[error.name.lower()]


async def group_outcome(
    work: Awaitable[GroupError | None], failure: str, group_id: str
) -> ErrorCode:
    """Await `work` and return its error code.

    A failure of the log is logged as `failure`, and has the code with which clients try again.
    """
    try:
        return group_error_code(await work)
    except LogError as error:
        logger.error(failure, group=group_id, error=str(error))
        return ErrorCode.coordinator_not_available


# -- FindCoordinator -------------------------------------------------------------------------------


def _needs_describe(call: Call, key: str) -> Iterable[Need]:
    resource = _COORDINATED.get(call.request.key_type)
    return [] if resource is None else [Need(Operation.DESCRIBE, resource, key)]


@api(
    "FindCoordinator",
    min_version=4,
    max_version=6,
    access=Access(each=("coordinator_keys", _needs_describe)),
)
async def _find_coordinators(
    context: RequestContext, request: entities.FindCoordinatorRequest
) -> entities.FindCoordinatorResponse:
    return entities.FindCoordinatorResponse(
        throttle_time=NO_THROTTLE,
        coordinators=tuple(
            [
                _coordinator(context, key, request.key_type)
                async for key in in_turns(request.coordinator_keys)
            ]
        ),
    )


async def _find_coordinator_access(call: Call) -> Any:
    for need in _needs_describe(call, call.request.key):
        if not call.allows(*need):
            return await call.refuse(DENIED[need.resource])
    return await call.answer()


@api("FindCoordinator", max_version=3, access=_find_coordinator_access)
def _find_coordinator(
    context: RequestContext, request: entities.FindCoordinatorRequestV3
) -> entities.FindCoordinatorResponseV3:
    """Up to version 3 a request has one key; in version 0 it is a group."""
    found = _coordinator(context, request.key, request.key_type)
    return cast(
        "entities.FindCoordinatorResponseV3", recast(found, entities.FindCoordinatorResponseV3)
    )


def _coordinator(context: RequestContext, key: str, key_type: int) -> entities.Coordinator:
    if key_type not in _COORDINATED:
        return entities.Coordinator(
            key=key,
            node_id=BrokerId(-1),
            host="",
            port=i32(-1),
            error_code=ErrorCode.invalid_request,
            error_message=f"unknown type of coordinator {key_type}",
        )
    return entities.Coordinator(
        key=key,
        node_id=context.node_id,
        host=context.node_host,
        port=i32(context.node_port),
        error_code=ErrorCode.none,
        error_message=None,
    )


# -- JoinGroup, SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------

_READS_GROUP = Access(whole=[(Operation.READ, Resource.GROUP, "group_id")])


@api("JoinGroup", max_version=9, access=_READS_GROUP)
async def _join_group(
    context: RequestContext, request: entities.JoinGroupRequest
) -> entities.JoinGroupResponse:
    """Respond when the group's next generation is complete."""
    session_timeout = request.session_timeout.total_seconds()
    rebalance_timeout = request.rebalance_timeout.total_seconds()
    if rebalance_timeout < 0:  # version 0 has none
        rebalance_timeout = session_timeout
    join = JoinRequest(
        member=MemberIdentity(request.member_id, request.group_instance_id),
        protocol_type=request.protocol_type,
        protocols=tuple(ProtocolChoice(each.name, each.metadata) for each in request.protocols),
        session_timeout=session_timeout,
        rebalance_timeout=rebalance_timeout,
        client_id=context.client_id,
        client_host=context.client_host,
        require_known_member_id=context.api_version >= _FIRST_WITH_MEMBER_ID_REQUIRED,
        can_skip_assignment=context.api_version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )
    try:
        result = await context.services.groups.join(request.group_id, join)
    except LogError as error:
        logger.error("a group could not be stored", group=request.group_id, error=str(error))
        refused = GroupError.COORDINATOR_NOT_AVAILABLE
        result = JoinResult(request.member_id, error=refused)
    return entities.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=group_error_code(result.error),
        generation_id=i32(result.generation),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=tuple(
            [
                entities.JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata,
                )
                async for member in in_turns(result.members)
            ]
        ),
    )


@api("SyncGroup", max_version=5, access=_READS_GROUP)
async def _sync_group(
    context: RequestContext, request: entities.SyncGroupRequest
) -> entities.SyncGroupResponse:
    """Respond when the leader has sent the assignments."""
    result = await context.services.groups.sync(
        request.group_id,
        SyncRequest(
            member=MemberIdentity(request.member_id, request.group_instance_id),
            generation=request.generation_id,
            assignments=tuple(
                [(each.member_id, each.assignment) async for each in in_turns(request.assignments)]
            ),
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
        ),
    )
    return entities.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=group_error_code(result.error),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


@api("Heartbeat", max_version=4, access=_READS_GROUP)
def _heartbeat(
    context: RequestContext, request: entities.HeartbeatRequest
) -> entities.HeartbeatResponse:
    error = context.services.groups.heartbeat(
        request.group_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.generation_id,
    )
    return entities.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=group_error_code(error))


@api("LeaveGroup", min_version=3, max_version=5, access=_READS_GROUP)
async def _leave_group(
    context: RequestContext, request: entities.LeaveGroupRequest
) -> entities.LeaveGroupResponse:
    groups = context.services.groups
    return entities.LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        members=tuple(
            [
                entities.MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=group_error_code(
                        groups.leave(
                            request.group_id,
                            MemberIdentity(member.member_id, member.group_instance_id),
                        )
                    ),
                )
                async for member in in_turns(request.members)
            ]
        ),
    )


@api("LeaveGroup", max_version=2, access=_READS_GROUP)
def _leave_group_alone(
    context: RequestContext, request: entities.LeaveGroupRequestV2
) -> entities.LeaveGroupResponseV2:
    """Up to version 2 a request removes its sender."""
    error = context.services.groups.leave(request.group_id, MemberIdentity(request.member_id))
    return entities.LeaveGroupResponseV2(
        throttle_time=NO_THROTTLE, error_code=group_error_code(error)
    )


# -- DescribeGroups, ListGroups, DeleteGroups ------------------------------------------------------


@api(
    "DescribeGroups",
    max_version=6,
    access=Access(each=("groups", Operation.DESCRIBE, Resource.GROUP)),
)
async def _describe_groups(
    context: RequestContext, request: entities.DescribeGroupsRequest
) -> entities.DescribeGroupsResponse:
    operations = request.include_authorized_operations
    groups = [
        await _describe(context, each, operations=operations)
        async for each in in_turns(request.groups)
    ]
    return entities.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


async def _describe(
    context: RequestContext, group_id: GroupId, *, operations: bool
) -> entities.DescribedGroup:
    group = context.services.groups.describe(group_id)
    code, message = ErrorCode.none, None
    if group.state is GroupState.DEAD and context.api_version >= _FIRST_WITH_NOT_FOUND:
        code, message = ErrorCode.group_id_not_found, f"there is no group {group_id!r}"
    return entities.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=tuple(
            [
                entities.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=f"/{member.client_host}",  # as Java prints addresses
                    member_metadata=member.metadata,
                    member_assignment=member.assignment,
                )
                async for member in in_turns(group.members)
            ]
        ),
        authorized_operations=authorized_operations(
            context, Resource.GROUP, group_id, wanted=operations
        ),
    )


async def _list_access(call: Call) -> Any:
    """List all groups for a client that may describe the cluster, else those that it may describe."""
    response = await call.answer()
    if call.allows(Operation.DESCRIBE, Resource.CLUSTER):
        return response
    return await call.visible(response, "groups", Resource.GROUP)


@api("ListGroups", max_version=5, access=_list_access)
async def _list_groups(
    context: RequestContext, request: entities.ListGroupsRequest
) -> entities.ListGroupsResponse:
    """List the groups in one of the states and of one of the types (case is ignored), or all."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return entities.ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        groups=tuple(
            [
                entities.ListedGroup(
                    group_id=GroupId(group.id),
                    protocol_type=group.protocol_type,
                    group_state=group.state.value,
                    group_type=_type(group),
                )
                async for group in in_turns(context.services.groups.groups())
                if (not states or group.state.value.lower() in states)
                and (not types or _type(group) in types)
            ]
        ),
    )


def _type(group: Group | ConsumerGroup) -> str:
    """Return the type of a group in Kafka's words (KIP-848)."""
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


@api(
    "DeleteGroups",
    max_version=2,
    access=Access(each=("groups_names", Operation.DELETE, Resource.GROUP)),
)
async def _delete_groups(
    context: RequestContext, request: entities.DeleteGroupsRequest
) -> entities.DeleteGroupsResponse:
    results = []
    async for group_id in in_turns(request.groups_names):
        deletion = context.services.groups.delete(group_id)
        code = await group_outcome(deletion, "a group could not be deleted", group_id)
        results.append(entities.DeletableGroupResult(group_id=group_id, error_code=code))
    return entities.DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(results))
