"""The state machine of one consumer group of KIP-848, without wire or disk.

    Empty ──join──► Assigning ──target made──► Reconciling ──each member at its target──► Stable
      ▲                 ▲                                                                  │
      └──no member──────┴──── a member joins, leaves, expires; subscriptions or topics change

A member holds partitions (`assigned`), and those that it has yet to give back (`revoking`). It goes to the
epoch of the target when it has given back the latter; it gets a partition that another member holds only
when that one has released it. Durations are seconds. Source: KIP-848, "Reconciliation of the group".
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .assignors import ASSIGNORS, DEFAULT_ASSIGNOR, AssignorInput
from .consumer_types import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupState,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerMember,
    Partitions,
)
from .group_types import GroupDescription, GroupError, GroupState, MemberIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ...settings import BrokerSettings
    from .assignors import Assignment
    from .group_types import Clock

__all__ = ["ConsumerGroup"]


class ConsumerGroup:
    """The coordinator's side of one group.

    Calls: `heartbeat` for each request; then `take_changes`, whose records are to be stored before the
    answer is sent. `on_change` is called when a timer has changed the group.
    """

    protocol_type = "consumer"

    def __init__(
        self,
        group_id: str,
        settings: BrokerSettings,
        clock: Clock,
        topics: Callable[[str], tuple[UUID, int] | None],
        on_change: Callable[[ConsumerGroup], None],
        *,
        session_timeout: Callable[[], float] | None = None,
    ) -> None:
        """`topics` returns the id and the number of partitions of a topic that exists.

        `session_timeout` returns the seconds that count from a heartbeat on; None: those of all groups.
        """
        self.id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.assignor = DEFAULT_ASSIGNOR
        self.members: dict[str, ConsumerMember] = {}
        self.target: Assignment = {}
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._on_change = on_change
        self._session_timeout = session_timeout or (lambda: settings.group_consumer_session_timeout)
        self._instances: dict[str, str] = {}
        self._holders: dict[tuple[UUID, int], str] = {}
        self._resolved: dict[str, tuple[UUID, int]] = {}
        self._dirty: set[str | None] = set()
        self._is_dead = False

    @property
    def state(self) -> ConsumerGroupState:
        """The state of the group in Kafka's words."""
        if self._is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self._is_settled(each) for each in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def generation(self) -> int:
        """The epoch, where a classic group has a generation."""
        return self.epoch

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    # -- requests ------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """Join, stay, or leave; answer with the epoch that the member has reached."""
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            return ConsumerHeartbeatResult(error=GroupError.UNSUPPORTED_ASSIGNOR)
        if request.epoch < JOIN_EPOCH:
            return self._leave(request)
        member = self._join(request) if request.epoch == JOIN_EPOCH else self._known(request)
        if isinstance(member, GroupError):
            return ConsumerHeartbeatResult(error=member)
        before = (member.epoch, member.assigned, member.revoking)
        if self._update(member, request):
            self._bump()
        self.refresh()
        # A member that joins owns nothing: its client has dropped what it had. A classic one joins again
        # and again, and may keep what it owns (KIP-429).
        owns_nothing = request.epoch == JOIN_EPOCH and request.classic is None
        self._reconcile(member, frozenset() if owns_nothing else request.owned)
        self.expect_heartbeat(member)
        if before != (member.epoch, member.assigned, member.revoking):
            self._dirty.add(member.id)
        wants = request.epoch == JOIN_EPOCH or request.is_full or member.assigned != before[1]
        return ConsumerHeartbeatResult(member.id, member.epoch, member.assigned if wants else None)

    def check_commit(self, identity: MemberIdentity, epoch: int) -> GroupError | None:
        """Check whether the sender may commit or fetch offsets as a member at this epoch."""
        if self._is_dead:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.members:
            return None
        member = self.members.get(identity.member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return None
        is_classic = member.classic is not None
        return GroupError.ILLEGAL_GENERATION if is_classic else GroupError.STALE_MEMBER_EPOCH

    def refresh(self) -> None:
        """Follow the topics as they are now; make a new target when the epoch has grown."""
        names = set().union(*(each.subscription for each in self.members.values()))
        resolved = {name: at for name in names if (at := self._topics(name)) is not None}
        if resolved != self._resolved:
            self._resolved = resolved
            self._bump()
        if self.epoch > self.assignment_epoch:
            self._assign()

    # -- what the classic protocol asks (`ClassicMembers`) ---------------------------------------

    def identify(self, identity: MemberIdentity) -> ConsumerMember | GroupError:
        """Return the sender of a request, or the error if it is not a member."""
        if identity.instance_id is not None:
            current = self._instances.get(identity.instance_id)
            if current is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if current != identity.member_id:
                return GroupError.FENCED_INSTANCE_ID
        return self.members.get(identity.member_id) or GroupError.UNKNOWN_MEMBER_ID

    def of_instance(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the static member with this instance id, if there is one."""
        return self.members.get(self._instances.get(instance_id or "", ""))

    def partitions_named(self, partitions: Iterable[tuple[str, int]]) -> Partitions:
        """Return (topic id, partition) pairs for pairs by name, without those of unknown topics."""
        found = ((self._topics(name), index) for name, index in partitions)
        return frozenset((at[0], index) for at, index in found if at is not None)

    def names_of(self, partitions: Partitions) -> set[tuple[str, int]]:
        """Return (topic, partition) pairs, without those of topics that no member reads."""
        names = {topic: name for name, (topic, _) in self._resolved.items()}
        return {(names[topic], index) for topic, index in partitions if topic in names}

    def may_advance(self, member: ConsumerMember) -> bool:
        """Whether the next join of a classic member brings it nearer to its target."""
        if member.epoch < self.epoch or member.revoking:
            return True
        return member.is_waiting and self._free(member) == self.target.get(member.id)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member; what it held is free."""
        member.stop()
        self._hold(member, frozenset(), frozenset())
        del self.members[member.id]
        self.target.pop(member.id, None)
        if member.instance_id is not None:
            self._instances.pop(member.instance_id, None)
        self._dirty.add(member.id)
        self._bump()
        if not self.members:
            self._resolved = {}
            self.assignment_epoch = self.epoch

    def adopt(self, generation: int, members: Iterable[ConsumerMember]) -> None:
        """Continue a classic group's generation: each member holds its whole target."""
        self.epoch = self.assignment_epoch = generation
        for member in members:
            member.epoch = member.previous_epoch = generation
            self._add(member)
            self.target[member.id] = member.assigned
            self._hold(member, member.assigned, frozenset())
            self.expect_heartbeat(member)
        self._dirty.add(None)

    # -- administration ------------------------------------------------------------------------

    def describe(self) -> GroupDescription:
        """Return the group as DescribeGroups shows it: it is not a classic group."""
        return GroupDescription(self.id, GroupState.DEAD)

    def subscribed_topics(self) -> set[str] | GroupError:
        """Return the topics that the members read."""
        return set().union(*(each.subscription for each in self.members.values()))

    def close(self, error: GroupError) -> None:
        """Stop the timers; the group must not be used again."""
        self._is_dead = True
        for member in self.members.values():
            member.stop()

    # -- storage -------------------------------------------------------------------------------

    def take_changes(self) -> dict[str | None, dict[str, Any] | None]:
        """Return what is to be stored since the last call: members by id, and the group by None.

        A value of None removes the record.
        """
        dirty, self._dirty = self._dirty, set()
        return {each: self._record(each) for each in sorted(dirty, key=lambda each: each or "")}

    def records(self) -> dict[str | None, dict[str, Any] | None]:
        """Return all that is to be stored."""
        return {each: self._record(each) for each in (None, *self.members)}

    def restore(self, records: Mapping[str | None, Mapping[str, Any]]) -> None:
        """Continue the stored group; its members have one session timeout to send a heartbeat."""
        group = records.get(None, {})
        self.epoch = group.get("epoch", 0)
        self.assignment_epoch = group.get("assignment_epoch", 0)
        self.assignor = group.get("assignor", DEFAULT_ASSIGNOR)
        self._resolved = {
            name: (UUID(topic), count) for name, (topic, count) in group.get("topics", {}).items()
        }
        for member_id, stored in records.items():
            if member_id is None:
                continue
            member, self.target[member_id] = ConsumerMember.from_record(member_id, stored)
            self._add(member)
            self._hold(member, member.assigned, member.revoking)
            self.expect_heartbeat(member)
            if member.revoking:
                self.expect_step(member)
        self._dirty.clear()

    def _record(self, member_id: str | None) -> dict[str, Any] | None:
        if member_id is None:
            return {
                "epoch": self.epoch,
                "assignment_epoch": self.assignment_epoch,
                "assignor": self.assignor,
                "topics": {name: (str(at), n) for name, (at, n) in self._resolved.items()},
            }
        member = self.members.get(member_id)
        if member is None:
            return None
        return member.record(self.target.get(member_id, frozenset()))

    # -- members -------------------------------------------------------------------------------

    def _join(self, request: ConsumerHeartbeat) -> ConsumerMember | GroupError:
        known = self.members.get(request.member_id)
        if known is not None and known.instance_id == request.instance_id:
            changes_back = request.classic is not None and known.classic is None
            return GroupError.UNKNOWN_MEMBER_ID if changes_back else known
        returning = self._instances.get(request.instance_id or "")
        if returning is not None:
            before = self.members[returning]
            # The classic protocol replaces a static member that has not left; its process is fenced.
            replaces = request.classic is not None or before.classic is not None
            if before.epoch != STATIC_LEAVE_EPOCH and not replaces:
                return GroupError.UNRELEASED_INSTANCE_ID
            return self._replace(before, request.member_id)
        if len(self.members) >= self._settings.group_consumer_max_size:
            return GroupError.GROUP_MAX_SIZE_REACHED
        member = ConsumerMember(request.member_id, request.instance_id)
        self._add(member)
        self._bump()
        return member

    def _known(self, request: ConsumerHeartbeat) -> ConsumerMember | GroupError:
        member = self.identify(MemberIdentity(request.member_id, request.instance_id))
        if isinstance(member, GroupError) or request.epoch == member.epoch:
            return member
        # The response with the new epoch was lost; the client holds nothing that it must not hold.
        owned = request.owned
        is_behind = request.epoch == member.previous_epoch
        if is_behind and owned is not None and owned <= member.assigned:
            return member
        return GroupError.FENCED_MEMBER_EPOCH

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        member = self.identify(MemberIdentity(request.member_id, request.instance_id))
        if isinstance(member, GroupError):
            return ConsumerHeartbeatResult(error=member)
        if request.epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            # Its partitions stay until it comes back, or until its session ends.
            member.epoch = STATIC_LEAVE_EPOCH
            self._hold(member, member.assigned, frozenset())
            self.stop_step(member)
            self.expect_heartbeat(member)
            self._dirty.add(member.id)
        else:
            self.remove(member)
        return ConsumerHeartbeatResult(member.id, request.epoch)

    def _add(self, member: ConsumerMember) -> None:
        self.members[member.id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id
        self._dirty.add(member.id)

    def _replace(self, before: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place of a static member that had left to the one that came back."""
        before.stop()
        del self.members[before.id]
        self._dirty.add(before.id)
        after = ConsumerMember(
            member_id,
            before.instance_id,
            rebalance_timeout=before.rebalance_timeout,
            topics=before.topics,
            regex=before.regex,
            matched=before.matched,
            assignor=before.assignor,
        )
        self._add(after)
        self.target[member_id] = self.target.pop(before.id, frozenset())
        assigned = before.assigned
        self._hold(before, frozenset(), frozenset())
        self._hold(after, assigned, frozenset())
        return after

    def _update(self, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        """Take what the request says; return whether the target may change by it."""
        subscription, assignor = member.subscription, member.assignor
        before = self._record(member.id)
        if request.topics is not None:
            member.topics = tuple(sorted(set(request.topics)))
        if request.regex is not None:
            member.regex = request.regex
        if request.matched is not None:
            member.matched = request.matched
        if not member.regex:
            member.matched = ()
        if request.assignor is not None:
            member.assignor = request.assignor
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.rebalance_timeout is not None:
            member.rebalance_timeout = request.rebalance_timeout
        member.classic = request.classic
        member.client_id = request.client_id
        member.client_host = request.client_host
        if self._record(member.id) != before:
            self._dirty.add(member.id)
        return (member.subscription, member.assignor) != (subscription, assignor)

    # -- target and reconciliation -------------------------------------------------------------

    def _bump(self) -> None:
        self.epoch += 1
        self._dirty.add(None)

    def _assign(self) -> None:
        wishes = Counter(each.assignor for each in self.members.values() if each.assignor)
        self.assignor = wishes.most_common(1)[0][0] if wishes else DEFAULT_ASSIGNOR
        # An instance id keeps its place in the order when the member id changes.
        order = sorted(self.members.values(), key=lambda each: each.instance_id or each.id)
        subscriptions: dict[str, Collection[UUID]] = {
            each.id: {self._resolved[name][0] for name in each.subscription & self._resolved.keys()}
            for each in order
        }
        given = AssignorInput(subscriptions, dict(self._resolved.values()))
        target = ASSIGNORS[self.assignor](given, self.target)
        for member_id, partitions in target.items():
            if self.target.get(member_id) != partitions:
                self._dirty.add(member_id)
        self.target = target
        self.assignment_epoch = self.epoch
        self._dirty.add(None)

    def _is_settled(self, member: ConsumerMember) -> bool:
        return (
            member.epoch == self.assignment_epoch
            and not member.revoking
            and member.assigned == self.target.get(member.id)
        )

    def _reconcile(self, member: ConsumerMember, owned: Partitions | None) -> None:
        """Bring the member one step nearer to its target; `owned` is what it says that it holds."""
        if member.revoking:
            if owned is None or owned & member.revoking:
                return
            self._hold(member, member.assigned, frozenset())
            self.stop_step(member)
        if self._is_settled(member):
            return
        target = self.target.get(member.id, frozenset())
        kept, lost = member.assigned & target, member.assigned - target
        if lost and (owned is None or owned & lost):
            self._hold(member, kept, lost)
            self.expect_step(member)
            return
        free = self._free(member)
        self._hold(member, free, frozenset())
        member.is_waiting = len(free) < len(target)
        if member.epoch != self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch

    def _free(self, member: ConsumerMember) -> Partitions:
        """Return the partitions of the member's target that no other member holds."""
        target = self.target.get(member.id, frozenset())
        return frozenset(each for each in target if self._holders.get(each, member.id) == member.id)

    def _hold(self, member: ConsumerMember, assigned: Partitions, revoking: Partitions) -> None:
        """The only assignment of what a member holds."""
        for each in member.assigned | member.revoking:
            if self._holders.get(each) == member.id:
                del self._holders[each]
        member.assigned, member.revoking = assigned, revoking
        for each in assigned | revoking:
            self._holders[each] = member.id

    # -- timers --------------------------------------------------------------------------------

    def expect_heartbeat(self, member: ConsumerMember) -> None:
        """Begin the member's session anew."""
        if member.session_timer is not None:
            member.session_timer.cancel()
        own = member.classic
        seconds = self._session_timeout() if own is None else own.session_timeout
        member.session_timer = self._clock.call_later(seconds, lambda: self._expire(member))

    def expect_step(self, member: ConsumerMember) -> None:
        """Give the member its rebalance timeout for its next step, from now on."""
        self.stop_step(member)
        member.step_timer = self._clock.call_later(
            member.rebalance_timeout, lambda: self._expire(member)
        )

    def stop_step(self, member: ConsumerMember) -> None:
        """The member has taken its next step."""
        if member.step_timer is not None:
            member.step_timer.cancel()
            member.step_timer = None

    def _expire(self, member: ConsumerMember) -> None:
        if self.members.get(member.id) is member:
            self.remove(member)
            self._on_change(self)
