"""The state machine of one consumer group: Kafka's classic group protocol, without wire or disk.

    Empty ──join──► PreparingRebalance ──all joined──► CompletingRebalance ──leader synced──► Stable
      ▲                  ▲        │                            │                                │
      └───no member──────┼────────┘                            │                                │
                         └────────── a member joins, leaves, expires or changes ◄───────────────┘

No method waits. A request that depends on other members is answered later, through the waiter (an
`asyncio.Future`) that the caller passes. Sources: Kafka's protocol guide, KIP-62 (rebalance timeout),
KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member id required), KIP-559 (protocol in
sync), KIP-814 (skip assignment).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ...protocol.cursor import MalformedRequest
from .embedded_protocol import CONSUMER_PROTOCOL, subscribed_topics
from .group_members import Member, Members, new_member_id
from .group_types import (
    GROUP_BYTES,
    MEMBER_BYTES,
    NO_GENERATION,
    GroupDescription,
    GroupError,
    GroupSnapshot,
    GroupState,
    JoinResult,
    MemberIdentity,
    SyncResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from ...settings import BrokerSettings
    from .group_types import Clock, JoinRequest, SyncRequest, TimerHandle, Waiter

_NEXT: Final = {
    # A stored generation is restored as stable.
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.STABLE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {
        GroupState.COMPLETING_REBALANCE,
        GroupState.EMPTY,
        GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupState.STABLE,
        GroupState.PREPARING_REBALANCE,
        GroupState.DEAD,
    },
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.DEAD: set[GroupState](),
}
"""The picture above as data: the states that may follow each state."""

_NEW_MEMBER_JOIN_TIMEOUT = 300.0  # seconds that a new member may wait in one rebalance


class Group:
    """The coordinator's side of one group, with one method for each request of the protocol."""

    def __init__(
        self,
        group_id: str,
        settings: BrokerSettings,
        clock: Clock,
        on_generation: Callable[[Group], None],
    ) -> None:
        """`on_generation` is called with this group for each generation that is stable or empty.

        The call comes before any member gets its answer.
        """
        self.id = group_id
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self._state = GroupState.EMPTY
        self._settings = settings
        self._clock = clock
        self._on_generation = on_generation
        self._members = Members()
        self._pending_ids: dict[str, TimerHandle] = {}
        """Ids that were given to new members, which must join again with them (KIP-394)."""
        self._unsynced_ids: set[str] = set()
        self._phase_timer: TimerHandle | None = None
        self._in_initial_delay = False

    @property
    def state(self) -> GroupState:
        """The state of the group in Kafka's words."""
        return self._state

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, read-only, in the order of their first join."""
        return tuple(self._members)

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    @property
    def kept_bytes(self) -> int:
        """The approximate memory, in bytes, of the group."""
        members = sum(each.kept_bytes for each in self._members)
        return GROUP_BYTES + len(self.id) + members + len(self._pending_ids) * MEMBER_BYTES

    def kept_by(self, member_id: str) -> int:
        """The approximate bytes of a member without its assignment; 0 if there is none of this id."""
        if member_id not in self._members:
            return 0
        member = self._members[member_id]
        return member.kept_bytes - len(member.assignment)

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members and none is about to join."""
        return self._state is GroupState.EMPTY and not self._pending_ids

    def _enter(self, state: GroupState) -> None:
        if state not in _NEXT[self._state]:
            raise RuntimeError(f"group {self.id}: {self._state.value} cannot become {state.value}")
        self._state = state

    # -- requests ------------------------------------------------------------------------------

    def join(self, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        """Add a member to the next generation; answer when that generation is complete."""
        identity = request.member
        error = self._check_join(request)
        if error is not None:
            waiter.set_result(JoinResult(identity.member_id, error=error))
        elif not identity.member_id:
            self._join_new(request, waiter)
        elif identity.member_id in self._pending_ids and identity.instance_id is None:
            self._pending_ids.pop(identity.member_id).cancel()
            self._add(identity.member_id, request, waiter)
        else:
            self._rejoin(request, waiter)

    def sync(self, request: SyncRequest, waiter: Waiter[SyncResult]) -> None:
        """Give a member its assignment; answer when the leader has sent it."""
        member = self._check_generation(request.member, request.generation)
        if isinstance(member, GroupError):
            waiter.set_result(SyncResult(error=member))
        elif request.protocol_type not in (None, self.protocol_type) or (
            request.protocol_name not in (None, self.protocol_name)
        ):
            waiter.set_result(SyncResult(error=GroupError.INCONSISTENT_GROUP_PROTOCOL))
        elif self._state is GroupState.PREPARING_REBALANCE:
            waiter.set_result(SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
        else:
            self._unsynced_ids.discard(member.id)
            member.wait_sync(waiter)
            if self._state is GroupState.STABLE:
                self._send_assignment(member)
            elif member.id == self._members.leader_id:
                self._become_stable(dict(request.assignments))
            if self._state is GroupState.STABLE and not self._unsynced_ids:
                self._stop_phase()

    def heartbeat(self, identity: MemberIdentity, generation: int) -> GroupError | None:
        """Extend a member's session; REBALANCE_IN_PROGRESS asks it to join again."""
        member = self._check_generation(identity, generation)
        if isinstance(member, GroupError):
            return member
        self._expect_heartbeat(member)
        if self._state is GroupState.PREPARING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return None

    def leave(self, identity: MemberIdentity) -> GroupError | None:
        """Remove a member now instead of at the end of its session.

        A static member may be identified by its instance id alone, with an empty member id.
        """
        if identity.instance_id is None and identity.member_id in self._pending_ids:
            self._drop_pending_id(identity.member_id)
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
        """Check whether the sender may commit offsets now; a member's commit extends its session.

        A client outside the group (generation -1) may commit while the group has no members.
        """
        if generation <= NO_GENERATION:
            if self._state is GroupState.EMPTY:
                return None
            if identity == MemberIdentity(""):
                return GroupError.UNKNOWN_MEMBER_ID
        member = self._check_generation(identity, generation)
        if isinstance(member, GroupError):
            return member
        self._expect_heartbeat(member)
        if self._state is GroupState.COMPLETING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return None

    # -- administration ------------------------------------------------------------------------

    def describe(self) -> GroupDescription:
        """Return the group as DescribeGroups shows it: during a rebalance without assignments."""
        members = self.snapshot().members
        stable = self._state is GroupState.STABLE
        if not stable:
            members = tuple(replace(each, metadata=b"", assignment=b"") for each in members)
        return GroupDescription(
            group_id=self.id,
            state=self._state,
            protocol_type=self.protocol_type,
            protocol_name=(self.protocol_name or "") if stable else "",
            members=members,
        )

    @property
    def is_of_consumers(self) -> bool:
        """Whether the group assigns partitions of topics."""
        return self.protocol_type == CONSUMER_PROTOCOL

    def subscribed_topics(self) -> AbstractSet[str] | None:
        """Return the topics that the members read; None if their metadata does not say."""
        if not len(self._members):
            return frozenset()
        if self.protocol_name is None or not self.is_of_consumers:
            return None
        metadata = [each.metadata(self.protocol_name) for each in self._members]
        try:
            return frozenset().union(*map(subscribed_topics, metadata))
        except MalformedRequest:
            return None

    def snapshot(self) -> GroupSnapshot:
        """Return the current generation as it is stored."""
        return GroupSnapshot(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self._members.leader_id,
            members=tuple(member.snapshot(self.protocol_name) for member in self._members),
        )

    def restore(self, stored: GroupSnapshot) -> None:
        """Continue a generation; its members have one session timeout to send a heartbeat."""
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
        self._enter(GroupState.STABLE)

    def close(self, error: GroupError) -> None:
        """Answer all open requests with `error`; the group is dead and must not be used again."""
        self._enter(GroupState.DEAD)
        self._stop_phase()
        for timer in self._pending_ids.values():
            timer.cancel()
        self._pending_ids.clear()
        for member in self._members:
            member.dismiss(error)

    # -- joining -------------------------------------------------------------------------------

    def _check_join(self, request: JoinRequest) -> GroupError | None:
        settings = self._settings
        if self._state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
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
        is_expected = known is not None or identity.member_id in self._pending_ids
        if (
            not is_expected
            and len(self._members) + len(self._pending_ids) >= settings.group_max_size
        ):
            return GroupError.GROUP_MAX_SIZE_REACHED
        return None

    def _check_generation(self, identity: MemberIdentity, generation: int) -> Member | GroupError:
        if self._state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        member = self._members.identify(identity)
        if isinstance(member, Member) and generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        return member

    def _join_new(self, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        instance_id = request.member.instance_id
        member_id = new_member_id(request)
        returning = self._members.of_instance(instance_id)
        if returning is not None:
            self._replace_static(returning, member_id, request, waiter)
        elif request.require_known_member_id and instance_id is None:
            self._pending_ids[member_id] = self._clock.call_later(
                request.session_timeout, lambda: self._drop_pending_id(member_id)
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
        # The client does not know its id yet: it cannot heartbeat, and may vanish unnoticed.
        self._expect_heartbeat(member, _NEW_MEMBER_JOIN_TIMEOUT)
        self.rebalance()

    def _rejoin(self, request: JoinRequest, waiter: Waiter[JoinResult]) -> None:
        member = self._members.identify(request.member)
        if isinstance(member, GroupError):
            waiter.set_result(JoinResult(request.member.member_id, error=member))
            return
        unchanged = member.protocols == request.protocols
        leads = member.id == self._members.leader_id
        if unchanged and (
            # It may have missed the answer to its first join.
            self._state is GroupState.COMPLETING_REBALANCE
            # In a stable group only the leader rejoins to force a rebalance: its topics have changed.
            or (self._state is GroupState.STABLE and not leads)
        ):
            self._expect_heartbeat(member)
            waiter.set_result(self._joined(member))
            return
        self._update(member, request, waiter)
        self.rebalance()

    def _replace_static(
        self, member: Member, new_id: str, request: JoinRequest, waiter: Waiter[JoinResult]
    ) -> None:
        """Take back a static member that lost its id; the old process, if it runs, is fenced."""
        old_leader_id = self._members.leader_id or ""
        synced = member.id not in self._unsynced_ids
        self._unsynced_ids.discard(member.id)
        member.dismiss(GroupError.FENCED_INSTANCE_ID)
        self._members.rename(member, new_id)
        self._update(member, request, waiter)
        self._expect_heartbeat(member)
        if self._state is not GroupState.STABLE or (
            self._members.choose_protocol() != self.protocol_name
        ):
            # A leader may be computing an assignment for the old id right now.
            self.rebalance()
            return
        # Nothing changes for the others, and the member keeps its assignment.
        if not synced:
            self._unsynced_ids.add(new_id)
        self._on_generation(self)
        if not request.can_skip_assignment:
            # With the old id as the leader, the client does not compute an assignment.
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
            members=tuple(member.snapshot(self.protocol_name) for member in self._members)
            if member.id == leader_id
            else (),
            skip_assignment=skip_assignment,
        )

    # -- from one generation to the next ---------------------------------------------------------

    def rebalance(self) -> None:
        """Ask all members to join again, unless a rebalance already asks them."""
        if self._state is not GroupState.PREPARING_REBALANCE:
            if self._state is GroupState.COMPLETING_REBALANCE:
                self._refuse_syncs()
            delay = self._settings.group_initial_rebalance_delay
            self._in_initial_delay = self._state is GroupState.EMPTY and delay > 0
            self._enter(GroupState.PREPARING_REBALANCE)
            self._unsynced_ids.clear()
            timeout = self._members.rebalance_timeout()
            if self._in_initial_delay:
                self._delay_join(min(delay, timeout), timeout, known=len(self._members))
            else:
                self._start_phase(timeout, self._complete_join)
        self._complete_join_when_all_joined()

    def _refuse_syncs(self) -> None:
        for member in self._members:
            if member.sync_waiter is not None:
                member.answer_sync(SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
                self._expect_heartbeat(member)

    def _delay_join(self, delay: float, remaining: float, known: int) -> None:
        """Wait `delay` seconds, again while new members arrive, for at most `remaining` seconds."""
        remaining -= delay

        def delayed() -> None:
            if remaining > 0 and len(self._members) > known:
                again = min(self._settings.group_initial_rebalance_delay, remaining)
                self._delay_join(again, remaining, known=len(self._members))
            else:
                self._in_initial_delay = False
                self._complete_join()

        self._start_phase(delay, delayed)

    def _complete_join_when_all_joined(self) -> None:
        if (
            self._state is GroupState.PREPARING_REBALANCE
            and not self._in_initial_delay
            and not self._pending_ids
            and self._members.all_joined()
        ):
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with the members that joined and all static members."""
        self._stop_phase()
        for member in self._members:
            if not member.awaits_join and member.instance_id is None:
                member.dismiss(GroupError.UNKNOWN_MEMBER_ID)
                self._members.remove(member)
        if len(self._members) and not self._members.elect_joined_leader():
            # Only static members are left, and none has joined: wait until one does or expires. The
            # shortest session is the floor, because a client may ask for a rebalance timeout of 0.
            again = max(self._members.rebalance_timeout(), self._settings.group_min_session_timeout)
            self._start_phase(again, self._complete_join)
            return
        self.generation += 1
        if not len(self._members):
            self._enter(GroupState.EMPTY)
            self.protocol_name = None
            self._on_generation(self)
            return
        self._enter(GroupState.COMPLETING_REBALANCE)
        self.protocol_name = self._members.choose_protocol()
        self._unsynced_ids = {member.id for member in self._members}
        self._start_phase(self._members.rebalance_timeout(), self._remove_unsynced)
        for member in self._members:
            member.answer_join(self._joined(member))
            self._expect_heartbeat(member)

    def _become_stable(self, assignments: dict[str, bytes]) -> None:
        self._enter(GroupState.STABLE)
        for member in self._members:
            member.assignment = assignments.get(member.id, b"")
        self._on_generation(self)
        for member in self._members:
            if member.sync_waiter is not None:
                self._send_assignment(member)

    def _send_assignment(self, member: Member) -> None:
        member.answer_sync(SyncResult(member.assignment, self.protocol_type, self.protocol_name))
        # It did not have to heartbeat while it waited, so its session starts anew.
        self._expect_heartbeat(member)

    def _remove_unsynced(self) -> None:
        self._phase_timer = None
        for member_id in tuple(self._unsynced_ids):
            self._remove(self._members[member_id])

    def _remove(self, member: Member) -> None:
        member.dismiss(GroupError.UNKNOWN_MEMBER_ID)
        self._members.remove(member)
        self.rebalance()

    # -- timers ----------------------------------------------------------------------------------

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

    def _drop_pending_id(self, member_id: str) -> None:
        self._pending_ids.pop(member_id).cancel()
        self._complete_join_when_all_joined()

    def _start_phase(self, seconds: float, callback: Callable[[], None]) -> None:
        self._stop_phase()
        self._phase_timer = self._clock.call_later(seconds, callback)

    def _stop_phase(self) -> None:
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None
