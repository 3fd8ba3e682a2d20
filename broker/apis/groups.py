"""FindCoordinator 0 to 6; JoinGroup 0 to 9, SyncGroup 0 to 5, Heartbeat 0 to 4, LeaveGroup 0 to 5: the
classic group protocol; DescribeGroups 0 to 6, ListGroups 0 to 5, DeleteGroups 0 to 2.

FindCoordinator 4 finds several coordinators at once (KIP-699). JoinGroup 4 requires a member id from the
broker (KIP-394), 5 added static members (KIP-345), 9 lets the leader skip the assignment (KIP-814).
LeaveGroup 3 removes several members at once (KIP-345). DescribeGroups 5 added authorized operations
(KIP-430), 6 an error for groups that do not exist (KIP-1043); ListGroups 4 and 5 added filters by state
(KIP-518) and type (KIP-848).
Differs from Kafka: this node coordinates every group and every transaction, and groups are classic ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import kio.schema.find_coordinator.v3 as find_one
import kio.schema.leave_group.v2 as leave_one
import structlog
from kio.schema.delete_groups.v2 import DeleteGroupsRequest, DeleteGroupsResponse
from kio.schema.delete_groups.v2.response import DeletableGroupResult
from kio.schema.describe_groups.v6 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.find_coordinator.v6.response import Coordinator
from kio.schema.heartbeat.v4 import HeartbeatRequest, HeartbeatResponse
from kio.schema.join_group.v9 import JoinGroupRequest, JoinGroupResponse
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.schema.leave_group.v5 import LeaveGroupRequest, LeaveGroupResponse
from kio.schema.leave_group.v5.response import MemberResponse
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.sync_group.v5 import SyncGroupRequest, SyncGroupResponse
from kio.schema.types import BrokerId, GroupId
from kio.static.primitive import i32

from ..authorization.rules import Operation, Resource
from ..coordinators.group_types import (
    GroupState,
    JoinRequest,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
)
from ..log.results import LogError
from ..protocol.messages import recast
from ..turns import in_turns
from .access import DENIED, Access, Need, authorized_operations
from .api import NO_THROTTLE, api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from ..coordinators.group_types import GroupError
    from .access import Call
    from .api import RequestContext

__all__ = ["group_error_code", "group_outcome"]

_COORDINATED: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID}
"""By key type."""

_FIRST_WITH_MEMBER_ID_REQUIRED = 4
_FIRST_WITH_SKIPPED_ASSIGNMENT = 9
_FIRST_WITH_NOT_FOUND = 6
_CLASSIC = "classic"
"""The type of every group (KIP-848 added others)."""

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
    FindCoordinatorRequest, min_version=4, access=Access(each=("coordinator_keys", _needs_describe))
)
async def _find_coordinators(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
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


@api(find_one.FindCoordinatorRequest, access=_find_coordinator_access)
def _find_coordinator(
    context: RequestContext, request: find_one.FindCoordinatorRequest
) -> find_one.FindCoordinatorResponse:
    """Up to version 3 a request has one key; in version 0 it is a group."""
    found = _coordinator(context, request.key, request.key_type)
    return cast("find_one.FindCoordinatorResponse", recast(found, find_one.FindCoordinatorResponse))


def _coordinator(context: RequestContext, key: str, key_type: int) -> Coordinator:
    if key_type not in _COORDINATED:
        return Coordinator(
            key=key,
            node_id=BrokerId(-1),
            host="",
            port=i32(-1),
            error_code=ErrorCode.invalid_request,
            error_message=f"unknown type of coordinator {key_type}",
        )
    return Coordinator(
        key=key,
        node_id=context.node_id,
        host=context.node_host,
        port=i32(context.node_port),
        error_code=ErrorCode.none,
        error_message=None,
    )


# -- JoinGroup, SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------

_READS_GROUP = Access(whole=[(Operation.READ, Resource.GROUP, "group_id")])


@api(JoinGroupRequest, access=_READS_GROUP)
async def _join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Respond when the group's next generation is complete."""
    session_timeout = request.session_timeout.total_seconds()
    rebalance_timeout = request.rebalance_timeout.total_seconds()
    if rebalance_timeout < 0:  # version 0 has none
        rebalance_timeout = session_timeout
    result = await context.services.groups.join(
        request.group_id,
        JoinRequest(
            member=MemberIdentity(request.member_id, request.group_instance_id),
            protocol_type=request.protocol_type,
            protocols=tuple(ProtocolChoice(each.name, each.metadata) for each in request.protocols),
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            client_id=context.client_id,
            client_host=context.client_host,
            require_known_member_id=context.api_version >= _FIRST_WITH_MEMBER_ID_REQUIRED,
            can_skip_assignment=context.api_version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
        ),
    )
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=group_error_code(result.error),
        generation_id=i32(result.generation),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in result.members
        ),
    )


@api(SyncGroupRequest, access=_READS_GROUP)
async def _sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Respond when the leader has sent the assignments."""
    result = await context.services.groups.sync(
        request.group_id,
        SyncRequest(
            member=MemberIdentity(request.member_id, request.group_instance_id),
            generation=request.generation_id,
            assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
        ),
    )
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=group_error_code(result.error),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


@api(HeartbeatRequest, access=_READS_GROUP)
def _heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    error = context.services.groups.heartbeat(
        request.group_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.generation_id,
    )
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=group_error_code(error))


@api(LeaveGroupRequest, min_version=3, access=_READS_GROUP)
async def _leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    groups = context.services.groups
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        members=tuple(
            [
                MemberResponse(
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


@api(leave_one.LeaveGroupRequest, access=_READS_GROUP)
def _leave_group_alone(
    context: RequestContext, request: leave_one.LeaveGroupRequest
) -> leave_one.LeaveGroupResponse:
    """Up to version 2 a request removes its sender."""
    error = context.services.groups.leave(request.group_id, MemberIdentity(request.member_id))
    return leave_one.LeaveGroupResponse(
        throttle_time=NO_THROTTLE, error_code=group_error_code(error)
    )


# -- DescribeGroups, ListGroups, DeleteGroups ------------------------------------------------------


@api(DescribeGroupsRequest, access=Access(each=("groups", Operation.DESCRIBE, Resource.GROUP)))
async def _describe_groups(
    context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    operations = request.include_authorized_operations
    groups = [
        _describe(context, each, operations=operations) async for each in in_turns(request.groups)
    ]
    return DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


def _describe(context: RequestContext, group_id: GroupId, *, operations: bool) -> DescribedGroup:
    group = context.services.groups.describe(group_id)
    code, message = ErrorCode.none, None
    if group.state is GroupState.DEAD and context.api_version >= _FIRST_WITH_NOT_FOUND:
        code, message = ErrorCode.group_id_not_found, f"there is no group {group_id!r}"
    return DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=tuple(
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=f"/{member.client_host}",  # as Java prints addresses
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
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


@api(ListGroupsRequest, access=_list_access)
async def _list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups in one of the states and of one of the types (case is ignored), or all."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        groups=tuple(
            [
                ListedGroup(
                    group_id=GroupId(group.id),
                    protocol_type=group.protocol_type,
                    group_state=group.state.value,
                    group_type=_CLASSIC,
                )
                async for group in in_turns(context.services.groups.groups())
                if (not states or group.state.value.lower() in states)
                and (not types or _CLASSIC in types)
            ]
        ),
    )


@api(DeleteGroupsRequest, access=Access(each=("groups_names", Operation.DELETE, Resource.GROUP)))
async def _delete_groups(
    context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    results = []
    async for group_id in in_turns(request.groups_names):
        deletion = context.services.groups.delete(group_id)
        code = await group_outcome(deletion, "a group could not be deleted", group_id)
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(results))
