"""What becomes of a group between requests: rebalances, generations, sessions and their timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.membership.members import Member, Members
from broker.membership.types import (
    GroupError,
    GroupOverview,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    JoinedMember,
    JoinResult,
    SyncResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.membership.types import Clock, TimerHandle

__all__ = ["Lifecycle"]


class Lifecycle:
    """A group's state, and the transitions from one generation to the next."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        clock: Clock,
        on_generation: Callable[[str, GroupSnapshot], None],
    ) -> None:
        """`on_generation` is called with the group's id and each generation that is stable or empty.

        That is before anybody is told of it.
        """
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

    @property
    def is_idle(self) -> bool:
        """Whether it has no members and nobody is about to join."""
        return self.state is GroupState.EMPTY and not self._promised_ids

    def overview(self) -> GroupOverview:
        """Return what a list of groups shows."""
        return GroupOverview(
            group_id=self.id,
            protocol_type=self.protocol_type,
            state=self.state,
            members=len(self._members),
            generation=self.generation,
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

    def close(self, error: GroupError) -> None:
        """Answer all that wait with `error`; the group is dead and must not be used again."""
        self.state = GroupState.DEAD
        self._stop_phase()
        for timer in self._promised_ids.values():
            timer.cancel()
        self._promised_ids.clear()
        for member in self._members:
            member.dismiss(error)

    # -- from one generation to the next ---------------------------------------------------------

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
            self._on_generation(self.id, self.snapshot())
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
        self._on_generation(self.id, self.snapshot())
        for member in self._members:
            if member.sync_waiter is not None:
                self._hand_over_assignment(member)

    def _hand_over_assignment(self, member: Member) -> None:
        member.answer_sync(SyncResult(member.assignment, self.protocol_type, self.protocol_name))
        # Silence was allowed while it waited, so its session starts anew.
        self._expect_heartbeat(member)

    def _remove_unsynced(self) -> None:
        self._phase_timer = None
        for member_id in tuple(self._awaited_syncs):
            self._remove(self._members[member_id])

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
