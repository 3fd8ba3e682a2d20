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
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
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
from .group_types import GROUP_BYTES, GroupDescription, GroupError, GroupState, MemberIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ...settings import BrokerSettings
    from .assignors import Assignment
    from .group_types import Clock, TimerHandle

_SMALL = 1_000  # members and partitions of a group that gets a new target at each change
_PARTITION_BYTES = 500  # of a partition in targets and assignments
_PAUSE = 1.0  # seconds between two targets of a larger group


Offload: TypeAlias = (
    "Callable[[Callable[[], Assignment], Callable[[Assignment | None], None]], None]"
)


class ConsumerGroup:
    """The coordinator's side of one group.

    Calls: `heartbeat` for each request; then `changes`, which are to be stored before the answer is sent,
    and `mark_stored`. `on_change` is called when a timer has changed the group.
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
        topics_version: Callable[[], int],
        offload: Offload = lambda work, done: done(work()),
        session_timeout: Callable[[], float] | None = None,
    ) -> None:
        """`topics` returns the id and the number of partitions of a topic that exists.

        `topics_version` returns a number that grows when topics change. `offload` does long work elsewhere,
        and hands its result over in this thread. `session_timeout` returns the seconds that count from a
        heartbeat on; None: those of all groups.
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
        self._topics_version = topics_version
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Subscriptions, each once: members that read the same topics share them."""
        self._readers: Counter[str] = Counter()
        """The number of members that are subscribed to each topic."""
        self._resolved: dict[str, tuple[UUID, int]] = {}
        self._resolved_at: int | None = None
        """The version of the topics of `_resolved`; None: subscriptions have changed since."""
        self._is_computing = False
        self._offload = offload
        self._pause: TimerHandle | None = None
        """Runs while a large group has no new target, because the last one was made a moment ago."""
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
    def kept_bytes(self) -> int:
        """The approximate memory, in bytes, of the group."""
        return (
            GROUP_BYTES
            + len(self.id)
            + sum(each.kept_bytes for each in self.members.values())
            + len(self._holders) * _PARTITION_BYTES
        )

    def kept_by(self, member_id: str) -> int:
        """The approximate memory, in bytes, of a member; 0 if there is none of this id."""
        member = self.members.get(member_id)
        return 0 if member is None else member.kept_bytes

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
        # A member that joins owns nothing: its client has dropped what it had.
        self._reconcile(member, frozenset() if request.epoch == JOIN_EPOCH else request.owned)
        self._expect_heartbeat(member)
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
        return None if epoch == member.epoch else GroupError.STALE_MEMBER_EPOCH

    def refresh(self) -> None:
        """Follow the topics as they are now; make a new target when the epoch has grown."""
        version = self._topics_version()
        if version != self._resolved_at:
            self._resolved_at = version
            names = self._readers
            resolved = {name: at for name in names if (at := self._topics(name)) is not None}
            if resolved != self._resolved:
                self._resolved = resolved
                self._bump()
        is_resting = self._is_computing or self._pause is not None
        if self.epoch > self.assignment_epoch and not is_resting:
            self._assign()

    def _remove(self, member: ConsumerMember) -> None:
        """Remove a member; what it held is free."""
        member.stop()
        self._count(member.subscription, set())
        self._hold(member, frozenset(), frozenset())
        del self.members[member.id]
        self.target.pop(member.id, None)
        if member.instance_id is not None:
            self._instances.pop(member.instance_id, None)
        self._dirty.add(member.id)
        self._bump()
        if not self.members:
            self._resolved, self._resolved_at = {}, None
            self.assignment_epoch = self.epoch

    # -- administration ------------------------------------------------------------------------

    def describe(self) -> GroupDescription:
        """Return the group as DescribeGroups shows it: it is not a classic group."""
        return GroupDescription(self.id, GroupState.DEAD)

    @property
    def is_of_consumers(self) -> bool:
        """Whether the group assigns partitions of topics: always."""
        return True

    def subscribed_topics(self) -> AbstractSet[str]:
        """Return the topics that the members read."""
        return self._readers.keys()

    def close(self, error: GroupError) -> None:
        """Stop the timers; the group must not be used again."""
        self._is_dead = True
        if self._pause is not None:
            self._pause.cancel()
        for member in self.members.values():
            member.stop()

    # -- storage -------------------------------------------------------------------------------

    def changes(self) -> dict[str | None, dict[str, Any] | None]:
        """Return what is to be stored since `mark_stored`: members by id, and the group by None.

        A value of None removes the record.
        """
        return {
            each: self._record(each) for each in sorted(self._dirty, key=lambda each: each or "")
        }

    def mark_stored(self) -> None:
        """All changes are stored."""
        self._dirty.clear()

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
            if "classic" in stored:  # it used the other protocol, before the two were kept apart
                self._dirty.add(member_id)
                continue
            member, self.target[member_id] = ConsumerMember.from_record(member_id, stored)
            member.topics, member.matched = map(self._shared, (member.topics, member.matched))
            self._add(member)
            self._hold(member, member.assigned, member.revoking)
            self._expect_heartbeat(member)
            if member.revoking:
                self._expect_release(member)
        self._dirty -= {None, *self.members}

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
            return known
        returning = self._instances.get(request.instance_id or "")
        if returning is not None:
            before = self.members[returning]
            if before.epoch != STATIC_LEAVE_EPOCH:
                return GroupError.UNRELEASED_INSTANCE_ID
            return self._replace(before, request.member_id)
        if len(self.members) >= self._settings.group_consumer_max_size:
            return GroupError.GROUP_MAX_SIZE_REACHED
        member = ConsumerMember(request.member_id, request.instance_id)
        self._add(member)
        self._bump()
        return member

    def _known(self, request: ConsumerHeartbeat) -> ConsumerMember | GroupError:
        member = self._identify(request)
        if isinstance(member, GroupError) or request.epoch == member.epoch:
            return member
        # The response with the new epoch was lost; the client holds nothing that it must not hold.
        owned = request.owned
        is_behind = request.epoch == member.previous_epoch
        if is_behind and owned is not None and owned <= member.assigned:
            return member
        return GroupError.FENCED_MEMBER_EPOCH

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        member = self._identify(request)
        if isinstance(member, GroupError):
            return ConsumerHeartbeatResult(error=member)
        if request.epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            # Its partitions stay until it comes back, or until its session ends.
            member.epoch = STATIC_LEAVE_EPOCH
            self._hold(member, member.assigned, frozenset())
            self._stop_waiting(member)
            self._expect_heartbeat(member)
            self._dirty.add(member.id)
        else:
            self._remove(member)
        return ConsumerHeartbeatResult(member.id, request.epoch)

    def _identify(self, request: ConsumerHeartbeat) -> ConsumerMember | GroupError:
        """Return the sender of a request, or the error if it is not a member."""
        if request.instance_id is not None:
            current = self._instances.get(request.instance_id)
            if current is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if current != request.member_id:
                return GroupError.FENCED_INSTANCE_ID
        return self.members.get(request.member_id) or GroupError.UNKNOWN_MEMBER_ID

    def _shared(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names, as another member has them if one has the same."""
        if len(self._names) > 2 * len(self.members) + 10:
            kept = [
                names for each in self.members.values() for names in (each.topics, each.matched)
            ]
            self._names = {names: names for names in kept}
        return self._names.setdefault(names, names)

    def _count(self, before: set[str], after: set[str]) -> None:
        """Count the readers of each topic anew, when a member's subscription changes."""
        if before == after:
            return
        known = len(self._readers)
        self._readers.update(after - before)
        changed = len(self._readers) > known
        for name in before - after:
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._readers[name]
                changed = True
        if changed:
            self._resolved_at = None

    def _add(self, member: ConsumerMember) -> None:
        self.members[member.id] = member
        self._count(set(), member.subscription)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id
        self._dirty.add(member.id)

    def _replace(self, before: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place of a static member that had left to the one that came back."""
        before.stop()
        self._count(before.subscription, set())
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
        if self._is_computing:  # the new target is for the member before
            self._bump()
        assigned = before.assigned
        self._hold(before, frozenset(), frozenset())
        self._hold(after, assigned, frozenset())
        return after

    def _update(self, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        """Take what the request says; return whether the target may change by it."""
        if request.matched_at is not None:
            member.matched_at = request.matched_at
        told: dict[str, Any] = {
            "regex": request.regex,
            "matched": None if request.matched is None else self._shared(request.matched),
            "assignor": request.assignor,
            "rack_id": request.rack_id,
            "rebalance_timeout": request.rebalance_timeout,
            "client_id": request.client_id,
            "client_host": request.client_host,
        }
        if request.topics is not None:
            told["topics"] = self._shared(tuple(sorted(set(request.topics))))
        if not (member.regex if request.regex is None else request.regex):
            told["matched"] = ()
        changed = {
            name: value
            for name, value in told.items()
            if value is not None and value != getattr(member, name)
        }
        if not changed:
            return False
        subscription = member.subscription
        for name, value in changed.items():
            setattr(member, name, value)
        self._count(subscription, member.subscription)
        self._dirty.add(member.id)
        return member.subscription != subscription or "assignor" in changed

    # -- target and reconciliation -------------------------------------------------------------

    def _bump(self) -> None:
        self.epoch += 1
        self._dirty.add(None)

    def _assign(self) -> None:
        """Make a new target: at once, or for a large group elsewhere, which then rests for a while."""
        wishes = Counter(each.assignor for each in self.members.values() if each.assignor)
        assignor = wishes.most_common(1)[0][0] if wishes else DEFAULT_ASSIGNOR
        # An instance id keeps its place in the order when the member id changes.
        order = sorted(self.members.values(), key=lambda each: each.instance_id or each.id)
        read = [(each.id, each.topics, each.matched) for each in order]
        work = partial(_new_target, assignor, read, dict(self._resolved), dict(self.target))
        load = len(self.members) + sum(count for _, count in self._resolved.values())
        if load <= _SMALL:
            self._take_target(work(), assignor, self.epoch)
            return
        if not self.assignment_epoch:
            # An empty target: the epoch of a member that has joined is above 0.
            self._take_target({}, assignor, self.epoch)
            self._bump()
        epoch = self.epoch
        self._is_computing = True
        self._offload(work, lambda target: self._take_large_target(target, assignor, epoch))

    def _take_target(self, target: Assignment, assignor: str, epoch: int) -> None:
        self.assignor = assignor
        for member_id, partitions in target.items():
            if self.target.get(member_id) != partitions:
                self._dirty.add(member_id)
        self.target = target
        self.assignment_epoch = epoch
        self._dirty.add(None)

    def _take_large_target(self, target: Assignment | None, assignor: str, epoch: int) -> None:
        """Take what was computed; None: it failed, and is tried again."""
        self._is_computing = False
        if self._is_dead or not self.members:
            return
        self._pause = self._clock.call_later(_PAUSE, self._end_pause)
        if target is not None:
            here = {each: parts for each, parts in target.items() if each in self.members}
            self._take_target(here, assignor, epoch)
            self._on_change(self)

    def _end_pause(self) -> None:
        """Make the target that had to wait."""
        self._pause = None
        if self.members and not self._is_dead:
            self.refresh()
            self._on_change(self)

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
            self._stop_waiting(member)
        if self._is_settled(member):
            return
        target = self.target.get(member.id, frozenset())
        kept, lost = member.assigned & target, member.assigned - target
        if lost and (owned is None or owned & lost):
            self._hold(member, kept, lost)
            self._expect_release(member)
            return
        # What no other member holds.
        free = frozenset(each for each in target if self._holders.get(each, member.id) == member.id)
        self._hold(member, free, frozenset())
        member.is_waiting = len(free) < len(target)
        if member.epoch != self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch

    def _hold(self, member: ConsumerMember, assigned: Partitions, revoking: Partitions) -> None:
        """The only assignment of what a member holds."""
        for each in member.assigned | member.revoking:
            if self._holders.get(each) == member.id:
                del self._holders[each]
        member.assigned, member.revoking = assigned, revoking
        for each in assigned | revoking:
            self._holders[each] = member.id

    # -- timers --------------------------------------------------------------------------------

    def _expect_heartbeat(self, member: ConsumerMember) -> None:
        """Begin the member's session anew."""
        if member.session_timer is not None:
            member.session_timer.cancel()
        member.session_timer = self._clock.call_later(
            self._session_timeout(), lambda: self._expire(member)
        )

    def _expect_release(self, member: ConsumerMember) -> None:
        """Give the member its rebalance timeout to release partitions, from now on."""
        self._stop_waiting(member)
        member.step_timer = self._clock.call_later(
            member.rebalance_timeout, lambda: self._expire(member)
        )

    def _stop_waiting(self, member: ConsumerMember) -> None:
        """The member has released its partitions."""
        if member.step_timer is not None:
            member.step_timer.cancel()
            member.step_timer = None

    def _expire(self, member: ConsumerMember) -> None:
        if self.members.get(member.id) is member:
            self._remove(member)
            self._on_change(self)


def _new_target(
    assignor: str,
    members: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]],
    topics: Mapping[str, tuple[UUID, int]],
    before: Assignment,
) -> Assignment:
    """Return the partitions of each member: of its id, and the names of topics that it reads."""
    known: dict[tuple[int, int], frozenset[UUID]] = {}
    subscriptions: dict[str, Collection[UUID]] = {}
    for member_id, names, matched in members:
        key = (id(names), id(matched))
        if key not in known:
            readable = topics.keys() & {*names, *matched}
            known[key] = frozenset(topics[name][0] for name in readable)
        subscriptions[member_id] = known[key]
    return ASSIGNORS[assignor](AssignorInput(subscriptions, dict(topics.values())), before)
