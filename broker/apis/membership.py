"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the classic group protocol on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kio.schema.leave_group.v2 as leave_one
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4 import HeartbeatRequest, HeartbeatResponse
from kio.schema.join_group.v9 import JoinGroupRequest, JoinGroupResponse
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.schema.leave_group.v5 import LeaveGroupRequest, LeaveGroupResponse
from kio.schema.leave_group.v5.response import MemberResponse
from kio.schema.sync_group.v5 import SyncGroupRequest, SyncGroupResponse
from kio.static.primitive import i32

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.membership.types import (
    GroupError,
    JoinRequest,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
)

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS", "error_code"]

_FIRST_WITH_MEMBER_ID_REQUIRED = 4
_FIRST_WITH_SKIPPED_ASSIGNMENT = 9


def error_code(error: GroupError | None) -> ErrorCode:
    """The protocol's code of the same name."""
    return ErrorCode.none if error is None else ErrorCode[error.name.lower()]


async def join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Waits until the group's next generation is complete."""
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
        error_code=error_code(result.error),
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


async def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Waits until the leader has brought the assignments."""
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
        error_code=error_code(result.error),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    error = context.services.groups.heartbeat(
        request.group_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.generation_id,
    )
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=error_code(error))


def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    groups = context.services.groups
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        members=tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=error_code(
                    groups.leave(
                        request.group_id,
                        MemberIdentity(member.member_id, member.group_instance_id),
                    )
                ),
            )
            for member in request.members
        ),
    )


def leave_group_alone(
    context: RequestContext, request: leave_one.LeaveGroupRequest
) -> leave_one.LeaveGroupResponse:
    """Up to version 2 a request is for the sender alone."""
    error = context.services.groups.leave(request.group_id, MemberIdentity(request.member_id))
    return leave_one.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=error_code(error))


APIS = (
    Api(join_group, JoinGroupRequest, JoinGroupResponse, min_version=0),
    Api(sync_group, SyncGroupRequest, SyncGroupResponse, min_version=0),
    Api(heartbeat, HeartbeatRequest, HeartbeatResponse, min_version=0),
    Api(leave_group, LeaveGroupRequest, LeaveGroupResponse, min_version=3),
    Api(
        leave_group_alone,
        leave_one.LeaveGroupRequest,
        leave_one.LeaveGroupResponse,
        min_version=0,
    ),
)
