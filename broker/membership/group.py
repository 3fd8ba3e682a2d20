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

from collections.abc import Callable
from uuid import uuid4

from broker.membership.members import Member, Members
from broker.membership.types import (
    NO_GENERATION,
    Clock,
    GroupDescription,
    GroupError,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    JoinedMember,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
    TimerHandle,
    Waiter,
)

__all__ = ["Group"]

_MAX_ID_PREFIX = 249


class Group:
    """The coordinator's side of one group."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        clock: Clock,
        on_generation: Callable[["Group"], None],
    ) -> None:
        """`on_generation` is called before a stable or empty generation becomes known to anybody."""
        self.id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self._settings = settings
        self._clock = clock
        self._on_generation = on_generation
        self._members = Members()
        self._promised_ids: dict[str, TimerHandle] = {}
        self._awaited_syncs: set[str] = set()
        self._phase_timer: TimerHandle | None = None
        self._gathers_first_members = False

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

        A client that only stores offsets (no member, generation -1) may while nobody is a member.
        """
        if identity == MemberIdentity("") and generation <= NO_GENERATION:
            return None if self.state is GroupState.EMPTY else GroupError.UNKNOWN_MEMBER_ID
        member = self._check_generation(identity, generation)
        if isinstance(member, GroupError):
            return member
        self._expect_heartbeat(member)
        if self.state is GroupState.COMPLETING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return None

    def close(self, error: GroupError) -> None:
        """Answer all that wait with `error`; the group is dead and must not be used again."""
        self.state = GroupState.DEAD
        self._stop_phase()
        for timer in self._promised_ids.values():
            timer.cancel()
        self._promised_ids.clear()
        for member in self._members:
            member.dismiss(error)

    # -- views ---------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether it has no members and nobody is about to join."""
        return self.state is GroupState.EMPTY and not self._promised_ids

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

    def snapshot(self) -> GroupSnapshot:
        """Return what is stored of the current generation."""
        return GroupSnapshot(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self._members.leader_id,
            members=tuple(member.snapshot(self.protocol_name) for member in self._members),
        )

    def restore(self, stored: GroupSnapshot) -> None:
        """Go on with a stored generation; its members have one session timeout to show up."""
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        if not stored.members or stored.protocol_name is None:
            return
        self.protocol_name = stored.protocol_name
        for each in stored.members:
            member = Member.from_snapshot(each, stored.protocol_name)
            self._members.add(member)
            self._expect_heartbeat(member)
        if stored.leader_id in self._members:
            self._members.leader_id = stored.leader_id
        self.state = GroupState.STABLE

    # -- joining -------------------------------------------------------------------------------

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
        self._on_generation(self)
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

    def _joined(
        self, member: Member, *, leader_id: str | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        leader_id = leader_id or self._members.leader_id or ""
        return JoinResult(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=leader_id,
            members=tuple(
                JoinedMember(m.id, m.instance_id, m.metadata(self.protocol_name))
                for m in self._members
            )
            if member.id == leader_id
            else (),
            skip_assignment=skip_assignment,
        )

    # -- the rebalance -------------------------------------------------------------------------

    def _rebalance(self) -> None:
        """Ask all members to join again, or go on with the rebalance that already asks them."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            if self.state is GroupState.COMPLETING_REBALANCE:
                self._refuse_syncs()
            delay = self._settings.initial_rebalance_delay
            self._gathers_first_members = self.state is GroupState.EMPTY and delay > 0
            self.state = GroupState.PREPARING_REBALANCE
            self._awaited_syncs.clear()
            timeout = self._members.rebalance_timeout()
            if self._gathers_first_members:
                self._gather(min(delay, timeout), timeout, known=len(self._members))
            else:
                self._start_phase(timeout, self._complete_join)
        self._complete_join_when_all_joined()

    def _refuse_syncs(self) -> None:
        for member in self._members:
            member.assignment = b""
            if member.sync_waiter is not None:
                member.answer_sync(SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
                self._expect_heartbeat(member)

    def _gather(self, delay: float, remaining: float, known: int) -> None:
        """Wait `delay` seconds more as long as members keep coming, `remaining` seconds at most."""
        remaining -= delay

        def gathered() -> None:
            if remaining > 0 and len(self._members) > known:
                again = min(self._settings.initial_rebalance_delay, remaining)
                self._gather(again, remaining, known=len(self._members))
            else:
                self._gathers_first_members = False
                self._complete_join()

        self._start_phase(delay, gathered)

    def _complete_join_when_all_joined(self) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and not self._gathers_first_members
            and not self._promised_ids
            and self._members.all_joined()
        ):
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with those that joined, and the static members."""
        self._stop_phase()
        for member in self._members:
            if not member.awaits_join and member.instance_id is None:
                member.dismiss(GroupError.UNKNOWN_MEMBER_ID)
                self._members.remove(member)
        if len(self._members) and not self._members.elect_joined_leader():
            # Only static members, and none is back: their sessions decide. (The shortest session is
            # the floor: a client may ask for a rebalance timeout of 0.)
            again = max(self._members.rebalance_timeout(), self._settings.min_session_timeout)
            self._start_phase(again, self._complete_join)
            return
        self.generation += 1
        if not len(self._members):
            self.state = GroupState.EMPTY
            self.protocol_name = None
            self._on_generation(self)
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol_name = self._members.choose_protocol()
        self._awaited_syncs = {member.id for member in self._members}
        self._start_phase(self._members.rebalance_timeout(), self._remove_unsynced)
        for member in self._members:
            member.answer_join(self._joined(member))
            self._expect_heartbeat(member)

    def _become_stable(self, assignments: dict[str, bytes]) -> None:
        self.state = GroupState.STABLE
        for member in self._members:
            member.assignment = assignments.get(member.id, b"")
        self._on_generation(self)
        for member in self._members:
            self._hand_over_assignment(member)

    def _hand_over_assignment(self, member: Member) -> None:
        member.answer_sync(SyncResult(member.assignment, self.protocol_type, self.protocol_name))
        # Silence was allowed while it waited, so its session starts anew.
        self._expect_heartbeat(member)

    def _remove_unsynced(self) -> None:
        self._phase_timer = None
        for member_id in tuple(self._awaited_syncs):
            self._remove(self._members[member_id])

    # -- members and timers --------------------------------------------------------------------

    def _check_generation(self, identity: MemberIdentity, generation: int) -> Member | GroupError:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        member = self._members.identify(identity)
        if isinstance(member, Member) and generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        return member

    def _remove(self, member: Member) -> None:
        member.dismiss(GroupError.UNKNOWN_MEMBER_ID)
        self._members.remove(member)
        self._rebalance()

    def _expect_heartbeat(self, member: Member, timeout: float | None = None) -> None:
        member.stop_session()
        member.session_timer = self._clock.call_later(
            member.session_timeout if timeout is None else timeout,
            lambda: self._expire_session(member),
        )

    def _expire_session(self, member: Member) -> None:
        member.session_timer = None
        if not member.may_be_silent:
            self._remove(member)

    def _forget_promised_id(self, member_id: str) -> None:
        self._promised_ids.pop(member_id).cancel()
        self._complete_join_when_all_joined()

    def _start_phase(self, seconds: float, callback: Callable[[], None]) -> None:
        self._stop_phase()
        self._phase_timer = self._clock.call_later(seconds, callback)

    def _stop_phase(self) -> None:
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None

    def _stop_phase_when_synced(self) -> None:
        if self.state is GroupState.STABLE and not self._awaited_syncs:
            self._stop_phase()
