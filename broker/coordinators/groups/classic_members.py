"""The classic protocol in a group of KIP-848, for members that are upgraded one after the other.

Such a member has no leader: the broker assigns. Each JoinGroup brings it one step nearer to its target, as a
heartbeat does for the others, and SyncGroup tells it what it has; a heartbeat asks it to join again while
there is more to do. Source: KIP-848, "Supporting Online Consumer Group Upgrade".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.cursor import MalformedRequest
from .consumer_types import JOIN_EPOCH, ClassicProtocol, ConsumerHeartbeat
from .embedded_protocol import CONSUMER_PROTOCOL, read_subscription, write_assignment
from .group_members import new_member_id
from .group_types import GroupError, JoinResult, MemberIdentity, SyncResult

if TYPE_CHECKING:
    from .consumer_group import ConsumerGroup
    from .consumer_types import ConsumerMember
    from .group_types import JoinRequest, SyncRequest

__all__ = ["ClassicMembers"]


class ClassicMembers:
    """Answers the requests of the classic protocol to one group, each at once."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group

    def join(self, request: JoinRequest) -> JoinResult:
        """Add a member, or bring it nearer to its target; the generation is its epoch."""
        identity = request.member
        member_id = identity.member_id or new_member_id(request)
        error = self._check_join(request)
        if error is not None:
            return JoinResult(member_id, error=error)
        subscription = read_subscription(request.protocols[0].metadata)
        result = self._group.heartbeat(
            ConsumerHeartbeat(
                member_id=member_id,
                epoch=JOIN_EPOCH,
                instance_id=identity.instance_id,
                rack_id=subscription.rack_id,
                rebalance_timeout=request.rebalance_timeout,
                topics=subscription.topics,
                regex="",
                owned=self._group.partitions_named(subscription.owned),
                client_id=request.client_id,
                client_host=request.client_host,
                classic=ClassicProtocol(request.session_timeout, request.protocols),
            )
        )
        if result.error is not None:
            return JoinResult(member_id, error=result.error)
        self._group.expect_step(self._group.members[member_id])  # the sync
        return JoinResult(
            member_id,
            generation=result.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=request.protocols[0].name,
        )

    def sync(self, request: SyncRequest) -> SyncResult:
        """Return what the member has now."""
        member = self._member(request.member, request.generation)
        if isinstance(member, GroupError):
            return SyncResult(error=member)
        choice = _classic(member).protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or (
            request.protocol_name not in (None, choice.name)
        ):
            return SyncResult(error=GroupError.INCONSISTENT_GROUP_PROTOCOL)
        if member.epoch < self._group.epoch and not member.revoking:
            self._expect_join(member)
            return SyncResult(error=GroupError.REBALANCE_IN_PROGRESS)
        if not member.revoking:
            self._group.stop_step(member)
        self._group.expect_heartbeat(member)
        version = read_subscription(choice.metadata).version
        names = self._group.names_of(member.assigned)
        return SyncResult(write_assignment(version, names), CONSUMER_PROTOCOL, choice.name)

    def heartbeat(self, identity: MemberIdentity, generation: int) -> GroupError | None:
        """Extend a member's session; REBALANCE_IN_PROGRESS asks it to join again."""
        member = self._member(identity, generation)
        if isinstance(member, GroupError):
            return member
        self._group.expect_heartbeat(member)
        self._group.refresh()
        if self._group.may_advance(member):
            self._expect_join(member)
            return GroupError.REBALANCE_IN_PROGRESS
        return None

    def leave(self, identity: MemberIdentity) -> GroupError | None:
        """Remove a member of either protocol.

        A static member may be identified by its instance id alone, with an empty member id.
        """
        member: ConsumerMember | GroupError | None
        if identity.member_id:
            member = self._group.identify(identity)
        else:
            member = self._group.of_instance(identity.instance_id)
        if member is None or isinstance(member, GroupError):
            return member or GroupError.UNKNOWN_MEMBER_ID
        self._group.remove(member)
        return None

    def _check_join(self, request: JoinRequest) -> GroupError | None:
        """Refuse a member that is fenced, has no id yet, or could not go on in a classic group."""
        names = {each.name for each in request.protocols}
        before = self._group.of_instance(request.member.instance_id)
        for member in self._group.members.values():
            is_sender = member is before or member.id == request.member.member_id
            if member.classic is not None and not is_sender:
                names &= {each.name for each in member.classic.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL or not names:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        try:
            for each in request.protocols:
                read_subscription(each.metadata)
        except MalformedRequest:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if request.member.member_id and request.member.instance_id is not None:
            found = self._group.identify(request.member)
            return found if isinstance(found, GroupError) else None
        if request.require_known_member_id and request.member == MemberIdentity(""):
            return GroupError.MEMBER_ID_REQUIRED  # nothing is kept of it until it comes back
        return None

    def _member(self, identity: MemberIdentity, generation: int) -> ConsumerMember | GroupError:
        member = self._group.identify(identity)
        if isinstance(member, GroupError):
            return member
        if member.classic is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return member if generation == member.epoch else GroupError.ILLEGAL_GENERATION

    def _expect_join(self, member: ConsumerMember) -> None:
        if member.step_timer is None:
            self._group.expect_step(member)


def _classic(member: ConsumerMember) -> ClassicProtocol:
    if member.classic is None:
        raise TypeError(f"{member.id} does not use the classic protocol")
    return member.classic
