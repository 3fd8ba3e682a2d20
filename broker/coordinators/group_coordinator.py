"""The group coordinator: all groups of this broker and their committed offsets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

import anyio
import structlog
from anyio import to_thread

from ..supervision import Supervision
from ..turns import in_turns
from .groups.consumer_group import ConsumerGroup
from .groups.consumer_types import JOIN_EPOCH, ConsumerHeartbeat, ConsumerHeartbeatResult
from .groups.group import Group
from .groups.group_members import metadata_bytes
from .groups.group_settings import GroupOverrides
from .groups.group_types import (
    GROUP_BYTES,
    MEMBER_BYTES,
    NO_GENERATION,
    Clock,
    GroupDescription,
    GroupError,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
)
from .groups.name_patterns import InvalidPattern, NamePatterns
from .offset_store import CommittedOffset, OffsetStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from uuid import UUID

    from anyio.abc import TaskGroup

    from ..log.producers import ProducerIdentity
    from ..settings import BrokerSettings
    from ..topics.topic import TopicPartition
    from ..topics.topics import Topics
    from .groups.assignors import Assignment

_STORE_INTERVAL = 1.0  # seconds between two runs of the store's maintenance
_EXPIRY_INTERVAL = 600.0  # seconds between two checks for expired offsets
_EXPIRY = "the expiry of committed offsets"
_MAINTENANCE = "the maintenance of committed offsets"
_MATCHED_FOR = (
    60.0  # seconds until an expression is matched again, because permissions may have changed
)
_MAX_NAME_BYTES = 32_767  # the longest string of the protocol's older versions
_MAX_INSTANCE_ID_CHARS = 249  # as for names of topics (KIP-345)

logger = structlog.get_logger()


class GroupCoordinator:
    """Answers group requests while it is entered; an async context manager.

    Stored groups continue: their members have one session timeout to send a heartbeat. On exit, open
    joins and syncs are answered COORDINATOR_NOT_AVAILABLE. The caller owns the store and closes it.
    """

    def __init__(
        self,
        store: OffsetStore,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        now: Callable[[], float] = time.time,
        topics: Topics | None = None,
        own: GroupOverrides | None = None,
        supervisor: Supervision | None = None,
    ) -> None:
        """`clock` runs the timers (default: the running event loop), `now` is seconds since 1970.

        `topics`: those that members of KIP-848 groups may read; None: none. `own`: settings of single
        groups; None: they are not kept.
        """
        self.offsets = store
        """Committed and pending offsets; `commit` checks the sender of new ones."""
        self.own = own or GroupOverrides(None, settings)
        """Settings of single groups."""
        self._settings = settings
        self._given_clock = clock
        self._now = now
        self._supervisor = supervisor or Supervision()
        self._topics = topics
        self._groups: dict[str, Group | ConsumerGroup] = {}
        self._patterns = NamePatterns()
        self._group_bytes = 0
        """The approximate bytes of all groups: counted once a second, and raised by each request."""
        self._unstored: set[str] = set()
        """The groups whose last change could not be stored."""
        self._tasks: TaskGroup | None = None
        self._computing = anyio.CapacityLimiter(1)

    async def __aenter__(self) -> Self:
        self._clock: Clock = self._given_clock or asyncio.get_running_loop()
        for group_id in self.offsets.group_ids():
            try:
                self._restore(group_id)
            except Exception as error:  # noqa: BLE001  whatever is stored, the others go on
                logger.error(
                    "a stored group cannot be read; its members must join again",
                    group=group_id,
                    error=str(error) or repr(error),
                )
                self._new_group(group_id)
        self._tasks = await anyio.create_task_group().__aenter__()
        for work, action, every in (
            (_MAINTENANCE, self.maintain, _STORE_INTERVAL),
            (_EXPIRY, self.expire_offsets, _EXPIRY_INTERVAL),
        ):
            self._tasks.start_soon(partial(self._supervisor.repeat, work, action, every=every))
        return self

    async def __aexit__(self, *_: object) -> None:
        for group in self._groups.values():
            group.close(GroupError.COORDINATOR_NOT_AVAILABLE)
        self._groups.clear()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)

    # -- membership ----------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """Join a group; return when its next generation is complete (see `Group.join`).

        A group of KIP-848 with members refuses; without members it becomes a classic one. Raises
        `LogFailed`.
        """
        error = _check_name(group_id) or _check_names(request) or self._check_session(request)
        if error is not None:
            return JoinResult(request.member.member_id, error=error)
        group = self._groups.get(group_id)
        kept = 0 if group is None else group.kept_by(request.member.member_id)
        more = MEMBER_BYTES + metadata_bytes(request.protocols) - kept
        if group is None:
            more += GROUP_BYTES + len(group_id)
        if isinstance(group, ConsumerGroup) and not group.is_idle:
            error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        elif not self._has_room(more):
            error = GroupError.GROUP_MAX_SIZE_REACHED
        if error is not None:
            return JoinResult(request.member.member_id, error=error)
        if not isinstance(group, Group):
            if request.member.member_id:
                return JoinResult(request.member.member_id, error=GroupError.UNKNOWN_MEMBER_ID)
            if group is not None:
                self.offsets.remove_consumer_group(group_id)
                self._drop(group)
            group = self._new_group(group_id)
        answer: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self._group_bytes += more
        group.join(request, answer)
        return await answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """Return the member's assignment when the leader has sent it (see `Group.sync`)."""
        group = self._find(group_id)
        if isinstance(group, GroupError):
            return SyncResult(error=group)
        more = sum(len(assignment) for _, assignment in request.assignments)
        if not self._has_room(more):
            return SyncResult(error=GroupError.COORDINATOR_NOT_AVAILABLE)
        self._group_bytes += more
        answer: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        group.sync(request, answer)
        return await answer

    def heartbeat(
        self, group_id: str, identity: MemberIdentity, generation: int
    ) -> GroupError | None:
        """Extend a member's session (see `Group.heartbeat`)."""
        group = self._find(group_id)
        return group if isinstance(group, GroupError) else group.heartbeat(identity, generation)

    def leave(self, group_id: str, identity: MemberIdentity) -> GroupError | None:
        """Remove a member (see `Group.leave`)."""
        group = self._find(group_id)
        return group if isinstance(group, GroupError) else group.leave(identity)

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, may_see: Callable[[str], bool]
    ) -> ConsumerHeartbeatResult:
        """Join, stay in, or leave a group of KIP-848; return when the change is durable.

        `may_see`: whether the client may know of a topic. Raises `LogFailed`.
        """
        error = _check_name(group_id)
        if error is not None:
            return ConsumerHeartbeatResult(error=error)
        error = self._has_no_group(group_id, request)
        if error is None:
            try:
                request = await self._with_matched_topics(group_id, request, may_see)
            except InvalidPattern:
                return ConsumerHeartbeatResult(error=GroupError.INVALID_REGULAR_EXPRESSION)
            error = self._has_no_group(group_id, request)
        if error is not None:
            return ConsumerHeartbeatResult(error=error)
        before = self._groups.get(group_id)
        if request.topics is not None or request.regex is not None:
            kept = 0 if before is None else before.kept_by(request.member_id)
            more = request.kept_bytes - kept
            if before is None:
                more += GROUP_BYTES + len(group_id)
            if not self._has_room(more):
                return ConsumerHeartbeatResult(error=GroupError.GROUP_MAX_SIZE_REACHED)
            self._group_bytes += more
        group = before if isinstance(before, ConsumerGroup) else self._new_consumer_group(group_id)
        result = group.heartbeat(request)
        if group is not before:
            if result.error is not None:
                group.close(result.error)
                return result
            if before is not None:
                self._drop(before)
            self._groups[group_id] = group
        await self.offsets.until_durable(self._store(group))
        return result

    def _has_no_group(self, group_id: str, request: ConsumerHeartbeat) -> GroupError | None:
        """Return the error if there is no group of KIP-848, and the request cannot make one."""
        group = self._groups.get(group_id)
        if isinstance(group, Group) and not group.is_idle:
            return GroupError.GROUP_ID_NOT_FOUND
        if not isinstance(group, ConsumerGroup) and request.epoch != JOIN_EPOCH:
            return GroupError.UNKNOWN_MEMBER_ID
        return None

    async def _with_matched_topics(
        self, group_id: str, request: ConsumerHeartbeat, may_see: Callable[[str], bool]
    ) -> ConsumerHeartbeat:
        """Match the member's expression again: if it, or the topics, have changed, or after a minute."""
        while True:
            group = self._groups.get(group_id)
            members = group.members if isinstance(group, ConsumerGroup) else {}
            member = members.get(request.member_id)
            pattern = request.regex
            if pattern is None and member is not None:
                pattern = member.regex
            if not pattern or self._topics is None or request.epoch < JOIN_EPOCH:
                return request
            now, version = self._now(), self._topics.version
            if member is not None and pattern == member.regex and request.epoch != JOIN_EPOCH:
                matched_version, matched_at = member.matched_at
                if version == matched_version and 0 <= now - matched_at < _MATCHED_FOR:
                    return request
            names = [each.name for each in self._topics]  # internal ones too, as in Kafka
            matched = await self._patterns.match(pattern, names)
            member = members.get(request.member_id)
            if request.regex is not None or member is None or member.regex == pattern:
                matched = tuple(each for each in matched if may_see(each))
                return replace(request, matched=matched, matched_at=(version, now))

    # -- offsets -------------------------------------------------------------------------------

    def check_commit(
        self, group_id: str, identity: MemberIdentity, generation: int
    ) -> GroupError | None:
        """Check whether this member, or a client outside the group, may commit now."""
        error = _check_name(group_id)
        if error is not None:
            return error
        group = self._groups.get(group_id)
        if group is not None:
            return group.check_commit(identity, generation)
        return None if generation < 0 else GroupError.ILLEGAL_GENERATION

    def check_fetch(self, group_id: str, member_id: str, epoch: int) -> GroupError | None:
        """Check the member that fetches offsets; a client outside the group has epoch -1 and no id."""
        if epoch < 0 and not member_id:
            return None
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return None
        return group.check_commit(MemberIdentity(member_id), epoch)

    def accepts_metadata(self, metadata: str) -> bool:
        """Whether metadata is short enough for a commit."""
        return len(metadata.encode()) <= self._settings.offset_metadata_max_bytes

    async def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        generation: int,
        offsets: Mapping[TopicPartition, tuple[int, int, str]],
        *,
        knows_epochs: bool = True,
    ) -> GroupError | None:
        """Store (offset, leader epoch, metadata) of each partition, as durably as `fsync` requires.

        `knows_epochs`: whether the request is of a version for members of groups of KIP-848. Raises
        `LogFailed`: nothing is stored.
        """
        error = self.check_commit(group_id, identity, generation)
        group = self._groups.get(group_id)
        if not knows_epochs and isinstance(group, ConsumerGroup):
            member = group.members.get(identity.member_id)
            if member is not None:
                error = GroupError.UNSUPPORTED_VERSION
        if error is None and not self._has_room(self.offsets.growth(group_id, offsets)):
            error = GroupError.INVALID_COMMIT_OFFSET_SIZE
        if error is None:
            await self.offsets.commit(group_id, self._stamped(group_id, offsets))
        return error

    async def commit_in_transaction(
        self,
        group_id: str,
        identity: MemberIdentity,
        generation: int,
        producer: ProducerIdentity,
        offsets: Mapping[TopicPartition, tuple[int, int, str]],
    ) -> GroupError | None:
        """Store offsets that become committed with the transaction of `producer` (KIP-98, KIP-447).

        Clients older than KIP-447 send neither member nor generation: they may always commit.
        """
        is_outside = identity == MemberIdentity("") and generation <= NO_GENERATION
        error = (
            _check_name(group_id)
            if is_outside
            else self.check_commit(group_id, identity, generation)
        )
        if error is GroupError.STALE_MEMBER_EPOCH:
            return GroupError.ILLEGAL_GENERATION  # the one that producers understand
        if not self._has_room(self.offsets.growth(group_id, offsets)):
            return GroupError.INVALID_COMMIT_OFFSET_SIZE
        if error in (None, GroupError.REBALANCE_IN_PROGRESS):
            # A rebalance in progress only stops members that commit outside of a transaction: a
            # producer would treat the error as fatal.
            error = None
            stamped = self._stamped(group_id, offsets)
            await self.offsets.commit_in_transaction(group_id, producer, stamped)
        return error

    async def remove_topics(self, topics: Collection[str]) -> None:
        """Remove the committed offsets of deleted topics."""
        await self.offsets.until_durable(self.offsets.remove_topics(topics))

    # -- administration ------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | ConsumerGroup | None:
        """Return a group, read-only."""
        return self._groups.get(group_id)

    def groups(self) -> list[Group | ConsumerGroup]:
        """Return all groups, read-only."""
        return list(self._groups.values())

    def describe(self, group_id: str) -> GroupDescription:
        """Describe a group; one that does not exist is Dead, as in Kafka."""
        group = self._groups.get(group_id)
        return group.describe() if group else GroupDescription(group_id, GroupState.DEAD)

    async def delete(self, group_id: str) -> GroupError | None:
        """Delete a group without members, and its committed offsets."""
        group = self._groups.get(group_id)
        if group is None:
            return _check_name(group_id) or GroupError.GROUP_ID_NOT_FOUND
        if not group.is_idle:
            return GroupError.NON_EMPTY_GROUP
        end = self.offsets.remove_group(group_id)
        self._drop(group)
        await self.offsets.until_durable(end)
        return None

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> set[TopicPartition] | GroupError:
        """Remove committed offsets; return the partitions refused because members read their topics."""
        group = self._groups.get(group_id)
        if group is None:
            return _check_name(group_id) or GroupError.GROUP_ID_NOT_FOUND
        if group.size and not group.is_of_consumers:
            return GroupError.NON_EMPTY_GROUP
        topics = group.subscribed_topics()
        refused = {each for each in partitions if topics is None or each[0] in topics}
        end = self.offsets.remove_offsets(
            group_id, [each for each in partitions if each not in refused]
        )
        await self.offsets.until_durable(end)
        return refused

    async def maintain(self) -> None:
        """Count what groups keep, store what a full disk did not let store, and maintain the offsets' log.

        Raises `LogFailed`, OSError: the next call goes on.
        """
        self._group_bytes = sum([each.kept_bytes async for each in in_turns(self.groups())])
        for group_id in tuple(self._unstored):
            group = self._groups.get(group_id)
            if group is None:
                self._unstored.discard(group_id)
            elif self._supervisor.may_try(_MAINTENANCE, group=group_id):
                self._store_later(group)
        await self.offsets.maintain()

    async def expire_offsets(self) -> None:
        """Remove expired offsets, and groups without offsets."""
        expired = int((self._now() - self._settings.offsets_retention_seconds) * 1000)
        async for group in in_turns(self.groups()):
            if self._groups.get(group.id) is not group or not self._supervisor.may_try(
                _EXPIRY, group=group.id
            ):
                continue
            event = "cannot remove expired offsets of a group"
            with self._supervisor.attempt(_EXPIRY, event, group=group.id):
                if group.is_idle:
                    self._expire(group, expired)
                else:
                    self._expire_unread(group, expired)

    # -- inside --------------------------------------------------------------------------------

    def _find(self, group_id: str) -> Group | GroupError:
        """Return a classic group."""
        group = self._groups.get(group_id)
        if isinstance(group, Group):
            return group
        return _check_name(group_id) or GroupError.UNKNOWN_MEMBER_ID

    def _check_session(self, request: JoinRequest) -> GroupError | None:
        low = self._settings.group_min_session_timeout
        high = self._settings.group_max_session_timeout
        is_allowed = low <= request.session_timeout <= high
        return None if is_allowed else GroupError.INVALID_SESSION_TIMEOUT

    def _restore(self, group_id: str) -> None:
        """Continue a stored group."""
        consumers = self.offsets.stored_consumer_group(group_id)
        if consumers is not None:
            restored = self._new_consumer_group(group_id)
            restored.restore(consumers)
            self._groups[group_id] = restored
            return
        group = self._new_group(group_id)
        stored = self.offsets.stored_group(group_id)
        if stored is not None:
            group.restore(stored.snapshot)

    def _new_group(self, group_id: str) -> Group:
        group = Group(group_id, self._settings, self._clock, self._store_later)
        self._groups[group_id] = group
        return group

    def _new_consumer_group(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(
            group_id,
            self._settings,
            self._clock,
            self._topic,
            self._store_later,
            topics_version=self._topics_version,
            offload=self._offload,
            session_timeout=lambda: self.own.session_timeout(group_id),
        )

    def _offload(
        self, work: Callable[[], Assignment], done: Callable[[Assignment | None], None]
    ) -> None:
        """Compute a large group's target in a thread: that takes long, and other clients go on."""

        async def compute() -> None:
            target = None
            with self._supervisor.attempt(_MAINTENANCE, "cannot assign partitions to a group"):
                target = await to_thread.run_sync(work, limiter=self._computing)
            done(target)

        if self._tasks is not None:
            self._tasks.start_soon(compute)

    def _topics_version(self) -> int:
        return 0 if self._topics is None else self._topics.version

    def _topic(self, name: str) -> tuple[UUID, int] | None:
        topic = None if self._topics is None else self._topics.get(name)
        return None if topic is None else (topic.topic_id, len(topic.partitions))

    def _stamped(
        self, group_id: str, offsets: Mapping[TopicPartition, tuple[int, int, str]]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return offsets with the current time; create the group if it does not exist."""
        if group_id not in self._groups:
            self._new_group(group_id)
            self._group_bytes += GROUP_BYTES + len(group_id)
        timestamp = int(self._now() * 1000)
        return {each: CommittedOffset(*what, timestamp) for each, what in offsets.items()}

    def _drop(self, group: Group | ConsumerGroup) -> None:
        group.close(GroupError.COORDINATOR_NOT_AVAILABLE)
        del self._groups[group.id]

    def _has_room(self, more: int) -> bool:
        """Whether the budget allows clients to make this broker keep so many bytes more; less always fits."""
        kept = self._group_bytes + self.offsets.offset_bytes
        return more <= 0 or kept + more <= self._settings.group_memory_bytes

    def _store_later(self, group: Group | ConsumerGroup) -> None:
        """Store what has changed; nothing waits until it is durable. If the disk fails, try again later.

        The group goes on; after a restart before that, its members may have to join again.
        """
        with self._supervisor.attempt(_MAINTENANCE, "cannot store a group", group=group.id):
            self._store(group)

    def _store(self, group: Group | ConsumerGroup) -> int:
        """Store what has changed; return the log offset for `until_durable`. Raises `LogFailed`."""
        self._unstored.add(group.id)
        end = 0
        if isinstance(group, Group):
            if group.state not in (GroupState.STABLE, GroupState.EMPTY):
                return end  # the next generation is stored soon
            self.offsets.store_group(group.id, group.snapshot())
        elif changes := group.changes():
            end = self.offsets.store_consumer_group(group.id, changes)
            group.mark_stored()
        self._unstored.discard(group.id)
        return end

    def _expire(self, group: Group | ConsumerGroup, expired: int) -> None:
        stored = self.offsets.stored_group(group.id)
        if stored is not None and stored.timestamp > expired:
            return  # the retention time starts when the last member leaves
        if self.offsets.pending(group.id):
            return  # an open transaction may still commit offsets
        committed = self.offsets.committed(group.id)
        old = [each for each, what in committed.items() if what.timestamp <= expired]
        self.offsets.remove_offsets(group.id, old)
        if len(old) == len(committed):
            self.offsets.remove_group(group.id)
            self._drop(group)

    def _expire_unread(self, group: Group | ConsumerGroup, expired: int) -> None:
        """Remove expired offsets of topics that no member reads any more (KIP-211)."""
        topics = group.subscribed_topics()
        if topics is None or group.state.value != GroupState.STABLE.value:
            return
        pending = self.offsets.pending(group.id)
        committed = self.offsets.committed(group.id).items()
        self.offsets.remove_offsets(
            group.id,
            [
                at
                for at, what in committed
                if at[0] not in topics and what.timestamp <= expired and at not in pending
            ],
        )


def _check_name(group_id: str) -> GroupError | None:
    if not group_id or len(group_id.encode()) > _MAX_NAME_BYTES:
        return GroupError.INVALID_GROUP_ID
    return None


def _check_names(request: JoinRequest) -> GroupError | None:
    """Refuse names that cannot be stored."""
    instance_id = request.member.instance_id
    if instance_id is not None and not 0 < len(instance_id) <= _MAX_INSTANCE_ID_CHARS:
        return GroupError.INVALID_REQUEST
    names = (request.protocol_type, *(choice.name for choice in request.protocols))
    if any(len(name.encode()) > _MAX_NAME_BYTES for name in names):
        return GroupError.INVALID_REQUEST
    return None
