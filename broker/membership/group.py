"""One consumer group as a state machine: the classic group protocol, without wire or disk.

    Empty ──join──► PreparingRebalance ──all joined──► CompletingRebalance ──leader synced──► Stable
      ▲                  ▲        │                            │                                │
      └──nobody joined───┼────────┘                            │                                │
                         └────────────── a member comes, goes or changes ◄──────────────────────┘

Every method runs without waiting: what must wait for other members is answered later through the
waiter (an `asyncio.Future`) that the caller passes. Source: Kafka's protocol guide, KIP-62 (rebalance
timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member id required), KIP-559
(protocol in sync), KIP-814 (skip assignment).
"""

from uuid import uuid4

from broker.membership.lifecycle import Lifecycle
from broker.membership.members import Member
from broker.membership.subscriptions import CONSUMER_PROTOCOL, subscribed_topics
from broker.membership.types import (
    NO_GENERATION,
    GroupDescription,
    GroupError,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
    Waiter,
)

__all__ = ["Group"]

_MAX_ID_PREFIX = 249


class Group(Lifecycle):
    """The coordinator's side of one group: every request of the protocol has its method."""

    # -- requests ------------------------------------------------------------------------------

    def join(self, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        """Take a member into the next generation; answered when that generation is complete."""
        identity = request.member
        error = self._check_join(request)
        if error is not None:
            waiter.set_result(JoinResult(identity.member_id, error=error))
        elif not identity.member_id:
            self._join_new(request, waiter)
        elif identity.member_id in self._promised_ids and identity.instance_id is None:
            self._promised_ids.pop(identity.member_id).cancel()
            self._add(identity.member_id, request, waiter)
        else:
            self._rejoin(request, waiter)

    def sync(self, request: SyncRequest, waiter: Waiter[SyncResult]) -> None:
        """Give a member its assignment; answered when the leader has brought it."""
        member = self._check_generation(request.member, request.generation)
        if isinstance(member, GroupError):
            waiter.set_result(SyncResult(error=member))
        elif request.protocol_type not in (None, self.protocol_type) or (
            request.protocol_name not in (None, self.protocol_name)
        ):
            waiter.set_result(SyncResult(error=GroupError.INCONSISTENT_GROUP_PROTOCOL))
        elif self.state is GroupState.PREPARING_REBALANCE:
            waiter.set_result(SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
        else:
            self._awaited_syncs.discard(member.id)
            member.wait_sync(waiter)
            if self.state is GroupState.STABLE:
                self._hand_over_assignment(member)
            elif member.id == self._members.leader_id:
                self._become_stable(dict(request.assignments))
            self._stop_phase_when_synced()

    def heartbeat(self, identity: MemberIdentity, generation: int) -> GroupError | None:
        """Note a sign of life; tells the member when it must join again."""
        member = self._check_generation(identity, generation)
        if isinstance(member, GroupError):
            return member
        self._expect_heartbeat(member)
        if self.state is GroupState.PREPARING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return None

    def leave(self, identity: MemberIdentity) -> GroupError | None:
        """Remove a member now instead of at the end of its session.

        A static member may be named by its instance id alone, with an empty member id.
        """
        if identity.instance_id is None and identity.member_id in self._promised_ids:
            self._forget_promised_id(identity.member_id)
            return None
        if not identity.member_id:
            static = self._members.of_instance(identity.instance_id)
            member: Member | GroupError = static or GroupError.UNKNOWN_MEMBER_ID
        else:
            member = self._members.identify(identity)
        if isinstance(member, GroupError):
            return member
        self._remove(member)
        return None

    def check_commit(self, identity: MemberIdentity, generation: int) -> GroupError | None:
        """Say whether the sender may commit offsets now; a commit is a sign of life, too.

        A client that only stores offsets (generation -1) may while nobody is a member.
        """
        if generation <= NO_GENERATION:
            if self.state is GroupState.EMPTY:
                return None
            if identity == MemberIdentity(""):
                return GroupError.UNKNOWN_MEMBER_ID
        member = self._check_generation(identity, generation)
        if isinstance(member, GroupError):
            return member
        self._expect_heartbeat(member)
        if self.state is GroupState.COMPLETING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return None

    def describe(self) -> GroupDescription:
        """Return what DescribeGroups shows; what a rebalance may change is left out meanwhile."""
        stable = self.state is GroupState.STABLE
        return GroupDescription(
            group_id=self.id,
            state=self.state,
            protocol_type=self.protocol_type,
            protocol_name=(self.protocol_name or "") if stable else "",
            members=tuple(
                member.describe(self.protocol_name, with_bytes=stable) for member in self._members
            ),
        )

    def subscribed_topics(self) -> set[str] | GroupError:
        """Return what the members read; NON_EMPTY_GROUP when nobody but them can tell."""
        if not len(self._members):
            return set()
        if self.protocol_type == CONSUMER_PROTOCOL:
            said = (choice.metadata for member in self._members for choice in member.protocols)
            topics = subscribed_topics(said)
            if topics is not None:
                return topics
        return GroupError.NON_EMPTY_GROUP

    # -- inside --------------------------------------------------------------------------------

    def _check_join(self, request: JoinRequest) -> GroupError | None:
        settings = self._settings
        timeout = request.session_timeout
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if not settings.min_session_timeout <= timeout <= settings.max_session_timeout:
            return GroupError.INVALID_SESSION_TIMEOUT
        identity = request.member
        known = self._members.of_instance(identity.instance_id)
        if known is None and identity.member_id in self._members:
            known = self._members[identity.member_id]
        if not request.protocol_type or not request.protocols:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if len(self._members) and request.protocol_type != self.protocol_type:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if not self._members.share_a_protocol(request.protocols, but=known):
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        is_expected = known is not None or identity.member_id in self._promised_ids
        if not is_expected and len(self._members) + len(self._promised_ids) >= settings.max_size:
            return GroupError.GROUP_MAX_SIZE_REACHED
        return None

    def _join_new(self, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        instance_id = request.member.instance_id
        member_id = f"{(instance_id or request.client_id)[:_MAX_ID_PREFIX]}-{uuid4()}"
        returning = self._members.of_instance(instance_id)
        if returning is not None:
            self._replace_static(returning, member_id, request, waiter)
        elif request.require_known_member_id and instance_id is None:
            self._promised_ids[member_id] = self._clock.call_later(
                request.session_timeout, lambda: self._forget_promised_id(member_id)
            )
            waiter.set_result(JoinResult(member_id, error=GroupError.MEMBER_ID_REQUIRED))
        else:
            self._add(member_id, request, waiter)

    def _add(self, member_id: str, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        if not len(self._members):
            self.protocol_type = request.protocol_type
        member = Member.from_request(member_id, request)
        self._members.add(member)
        member.wait_join(waiter)
        # Its client cannot heartbeat before it knows its id, and may vanish unseen meanwhile.
        self._expect_heartbeat(member, self._settings.new_member_join_timeout)
        self._rebalance()

    def _rejoin(self, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        member = self._members.identify(request.member)
        if isinstance(member, GroupError):
            waiter.set_result(JoinResult(request.member.member_id, error=member))
            return
        unchanged = member.protocols == request.protocols
        leads = member.id == self._members.leader_id
        if unchanged and (
            # It may have missed the answer to its first join.
            self.state is GroupState.COMPLETING_REBALANCE
            # Only a leader joins a stable group to have it rebalanced: its topics have changed.
            or (self.state is GroupState.STABLE and not leads)
        ):
            self._expect_heartbeat(member)
            waiter.set_result(self._joined(member))
            return
        self._update(member, request, waiter)
        self._rebalance()

    def _replace_static(
        self, member: Member, new_id: str, request: JoinRequest, waiter: Waiter[JoinResult]
    ) -> None:
        """A static member came back without its id: the old process, if it lives, is fenced."""
        old_leader_id = self._members.leader_id or ""
        synced = member.id not in self._awaited_syncs
        self._awaited_syncs.discard(member.id)
        member.dismiss(GroupError.FENCED_INSTANCE_ID)
        self._members.rename(member, new_id)
        self._update(member, request, waiter)
        self._expect_heartbeat(member)
        if self.state is not GroupState.STABLE or (
            self._members.choose_protocol() != self.protocol_name
        ):
            # A leader may be computing an assignment for the old id right now.
            self._rebalance()
            return
        # Nothing changes for the others, and the member keeps its assignment.
        if not synced:
            self._awaited_syncs.add(new_id)
        self._on_generation(self.id, self.snapshot())
        if not request.can_skip_assignment:
            # Naming the old id as the leader keeps the client from assigning what nobody asks for.
            member.answer_join(self._joined(member, leader_id=old_leader_id))
            return
        leads = new_id == self._members.leader_id
        member.answer_join(self._joined(member, skip_assignment=leads))

    def _update(self, member: Member, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        self._members.set_protocols(member, request.protocols)
        member.session_timeout = request.session_timeout
        member.rebalance_timeout = request.rebalance_timeout
        member.client_id = request.client_id
        member.client_host = request.client_host
        member.wait_join(waiter)

    def _check_generation(self, identity: MemberIdentity, generation: int) -> Member | GroupError:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        member = self._members.identify(identity)
        if isinstance(member, Member) and generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        return member
