"""FindCoordinator, DescribeGroups, ListGroups, DeleteGroups; and all that is about groups in one list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kio.schema.find_coordinator.v3 as find_one
import structlog
from kio.schema.delete_groups.v2 import DeleteGroupsRequest, DeleteGroupsResponse
from kio.schema.delete_groups.v2.response import DeletableGroupResult
from kio.schema.describe_groups.v6 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.find_coordinator.v6.response import Coordinator
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.types import BrokerId, GroupId
from kio.static.primitive import i32

from broker.api import Api
from broker.apis import membership, offset_delete, offsets
from broker.apis.common import NO_THROTTLE
from broker.apis.membership import error_code
from broker.apis.operations import allowed_operations
from broker.log.errors import LogError
from broker.membership.types import GroupState
from broker.security.acls import Resource

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS"]

_GROUP, _TRANSACTION = 0, 1
_FIRST_WITH_NOT_FOUND = 6
_CLASSIC = "classic"
"""The type of every group: their members use the classic protocol (KIP-848 has another one)."""

logger = structlog.get_logger()


def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """This node coordinates every group and every transaction."""
    return FindCoordinatorResponse(
        throttle_time=NO_THROTTLE,
        coordinators=tuple(
            _coordinator(context, key, request.key_type) for key in request.coordinator_keys
        ),
    )


def find_one_coordinator(
    context: RequestContext, request: find_one.FindCoordinatorRequest
) -> find_one.FindCoordinatorResponse:
    """Up to version 3 a request has one key; version 0 is for groups only."""
    found = _coordinator(context, request.key, request.key_type)
    return find_one.FindCoordinatorResponse(
        throttle_time=NO_THROTTLE,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(context: RequestContext, key: str, key_type: int) -> Coordinator:
    if key_type not in (_GROUP, _TRANSACTION):
        return Coordinator(
            key=key,
            node_id=BrokerId(-1),
            host="",
            port=i32(-1),
            error_code=ErrorCode.invalid_request,
            error_message=f"there are no coordinators of type {key_type}",
        )
    return Coordinator(
        key=key,
        node_id=context.node_id,
        host=context.node_host,
        port=i32(context.node_port),
        error_code=ErrorCode.none,
        error_message=None,
    )


def describe_groups(
    context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(
            _describe(context, group_id, operations=request.include_authorized_operations)
            for group_id in request.groups
        ),
    )


def _describe(context: RequestContext, group_id: GroupId, *, operations: bool) -> DescribedGroup:
    group = context.services.groups.describe(group_id)
    code, message = ErrorCode.none, None
    if group.state is GroupState.DEAD and context.api_version >= _FIRST_WITH_NOT_FOUND:  # KIP-1043
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
        authorized_operations=allowed_operations(
            context, Resource.GROUP, group_id, wanted=operations
        ),
    )


def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """All groups, or those in one of the states and of the types asked for (in any case)."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        groups=tuple(
            ListedGroup(
                group_id=GroupId(group.group_id),
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=_CLASSIC,
            )
            for group in context.services.groups.groups()
            if (not states or group.state.value.lower() in states)
            and (not types or _CLASSIC in types)
        ),
    )


async def delete_groups(
    context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                DeletableGroupResult(group_id=group_id, error_code=await _delete(context, group_id))
                for group_id in request.groups_names
            ]
        ),
    )


async def _delete(context: RequestContext, group_id: str) -> ErrorCode:
    try:
        return error_code(await context.services.groups.delete(group_id))
    except LogError as failure:
        logger.error("a group could not be deleted", group=group_id, error=str(failure))
        return ErrorCode.coordinator_not_available


APIS = (
    *membership.APIS,
    *offsets.APIS,
    *offset_delete.APIS,
    Api(find_coordinator, FindCoordinatorRequest, FindCoordinatorResponse, min_version=4),
    Api(
        find_one_coordinator,
        find_one.FindCoordinatorRequest,
        find_one.FindCoordinatorResponse,
        min_version=0,
    ),
    Api(describe_groups, DescribeGroupsRequest, DescribeGroupsResponse, min_version=0),
    Api(list_groups, ListGroupsRequest, ListGroupsResponse, min_version=0),
    Api(delete_groups, DeleteGroupsRequest, DeleteGroupsResponse, min_version=0),
)
