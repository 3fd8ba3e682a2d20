"""The group coordinator: all groups of this broker and what they committed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import structlog

from broker.groups.offsets import CommittedOffset, OffsetStore, Partition
from broker.health.progress import unwatched
from broker.log.errors import LogError
from broker.membership.group import Group
from broker.membership.types import (
    NO_GENERATION,
    Clock,
    GroupDescription,
    GroupError,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
    TimerHandle,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from types import TracebackType

    from anyio.abc import TaskGroup

    from broker.membership.types import GroupOverview
    from broker.producers.identity import ProducerIdentity
    from broker.producers.markers import Marker

__all__ = ["STORE_INTERVAL", "GroupCoordinator"]

T = TypeVar("T")

STORE_INTERVAL = 1.0
"""Seconds between two looks after the store."""
_MAX_NAME_BYTES = 32_767  # the longest string of the protocol's older versions
_MAX_INSTANCE_ID_CHARS = 249  # as for names of topics (KIP-345)

logger = structlog.get_logger()


class GroupCoordinator:
    """Answers group requests while it is entered; an async context manager.

    Groups that were stored go on where they were: their members have one session timeout to send a
    heartbeat. On leaving, whoever waits in a group is answered COORDINATOR_NOT_AVAILABLE. The store
    belongs to the caller, who closes it afterwards.
    """

    def __init__(
        self,
        store: OffsetStore,
        settings: GroupSettings | None = None,
        *,
        clock: Clock | None = None,
        now: Callable[[], float] = time.time,
        beat: Callable[[], None] = unwatched,
    ) -> None:
        """`clock` runs the timers (default: the running event loop), `now` is seconds since 1970.

        `beat` is called as long as the store is looked after.
        """
        self._store = store
        self._settings = settings or GroupSettings()
        self._given_clock = clock
        self._now = now
        self._beat = beat
        self._groups: dict[str, Group] = {}
        self._cleanup_timer: TimerHandle | None = None
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._clock: Clock = self._given_clock or asyncio.get_running_loop()
        for group_id in self._store.group_ids():
            group = self._new_group(group_id)
            stored = self._store.stored_group(group_id)
            if stored is not None:
                group.restore(stored.snapshot)
        self._schedule_cleanup()
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._maintain_store)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()
        for group in self._groups.values():
            group.close(GroupError.COORDINATOR_NOT_AVAILABLE)
        self._groups.clear()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)

    # -- membership ----------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """Wait for the next generation with this member in it (see `Group.join`)."""
        error = _check_name(group_id) or _check_names(request)
        group = self._groups.get(group_id)
        if group is None and error is None:
            if request.member.member_id:
                error = GroupError.UNKNOWN_MEMBER_ID
            else:
                group = self._new_group(group_id)
        if error is not None or group is None:
            return JoinResult(request.member.member_id, error=error)
        answer: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        group.join(request, answer)
        return await answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """Wait for the member's assignment (see `Group.sync`)."""
        group = self._find(group_id)
        if isinstance(group, GroupError):
            return SyncResult(error=group)
        answer: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        group.sync(request, answer)
        return await answer

    def heartbeat(
        self, group_id: str, identity: MemberIdentity, generation: int
    ) -> GroupError | None:
        """Keep a member's session alive (see `Group.heartbeat`)."""
        group = self._find(group_id)
        return group if isinstance(group, GroupError) else group.heartbeat(identity, generation)

    def leave(self, group_id: str, identity: MemberIdentity) -> GroupError | None:
        """Remove a member (see `Group.leave`)."""
        group = self._find(group_id)
        return group if isinstance(group, GroupError) else group.leave(identity)

    # -- offsets -------------------------------------------------------------------------------

    def check_commit(
        self, group_id: str, identity: MemberIdentity, generation: int
    ) -> GroupError | None:
        """Say whether this member, or nobody in particular, may commit now."""
        error = _check_name(group_id)
        if error is not None:
            return error
        group = self._groups.get(group_id)
        if group is not None:
            return group.check_commit(identity, generation)
        return None if generation < 0 else GroupError.ILLEGAL_GENERATION

    def accepts_metadata(self, metadata: str) -> bool:
        """Whether metadata is short enough to be committed."""
        return len(metadata.encode()) <= self._settings.offset_metadata_max_bytes

    async def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        generation: int,
        offsets: Mapping[Partition, tuple[int, int, str]],
    ) -> GroupError | None:
        """Store (offset, leader epoch, metadata) per partition; returns when it is durable.

        Durable as the fsync setting has it. Raises `LogFailed`: then it is not stored.
        """
        error = self.check_commit(group_id, identity, generation)
        if error is None:
            await self._store.commit(group_id, self._stamped(group_id, offsets))
        return error

    async def commit_in_transaction(
        self,
        group_id: str,
        identity: MemberIdentity,
        generation: int,
        producer: ProducerIdentity,
        offsets: Mapping[Partition, tuple[int, int, str]],
    ) -> GroupError | None:
        """The same, to hold when the transaction of `producer` commits (KIP-98, KIP-447).

        Clients older than KIP-447 name neither member nor generation: they may always.
        """
        anybody = identity == MemberIdentity("") and generation <= NO_GENERATION
        error = (
            _check_name(group_id) if anybody else self.check_commit(group_id, identity, generation)
        )
        if error in (None, GroupError.REBALANCE_IN_PROGRESS):
            # The latter is for members that commit themselves: it would be fatal to a producer.
            error = None
            stamped = self._stamped(group_id, offsets)
            await self._store.commit_in_transaction(group_id, producer, stamped)
        return error

    async def end_transaction(self, producer: ProducerIdentity, marker: Marker) -> None:
        """Settle what a transaction was to commit. Raises `LogFailed`: then it is still open."""
        await self._store.end_transaction(producer, marker)

    def pending_producers(self) -> list[ProducerIdentity]:
        """Whose transactions have offsets that are not settled."""
        return self._store.pending_producers

    def pending_offsets(self, group_id: str) -> set[Partition]:
        """The partitions of a group whose offset depends on a transaction that is open."""
        return self._store.pending(group_id)

    async def fetch_offsets(
        self, group_id: str, partitions: Iterable[Partition] | None
    ) -> dict[Partition, CommittedOffset]:
        """What a group committed for `partitions` (None: all); those without are left out."""
        return await self._store.fetch(group_id, partitions)

    async def remove_topics(self, topics: Collection[str]) -> None:
        """Forget what was committed for topics that are being deleted."""
        await self._store.until_durable(self._store.remove_topics(topics))

    # -- administration ------------------------------------------------------------------------

    def groups(self) -> list[GroupOverview]:
        """Every group."""
        return [group.overview() for group in self._groups.values()]

    def committed(self, group_id: str) -> dict[Partition, CommittedOffset]:
        """What a group committed, also what may not be on disk yet: nobody may act on it."""
        return self._store.committed(group_id)

    def describe(self, group_id: str) -> GroupDescription:
        """A group; one that does not exist is Dead, as in Kafka."""
        group = self._groups.get(group_id)
        return group.describe() if group else GroupDescription(group_id, GroupState.DEAD)

    async def delete(self, group_id: str) -> GroupError | None:
        """Delete a group without members and all that it committed."""
        group = self._groups.get(group_id)
        if group is None:
            return _check_name(group_id) or GroupError.GROUP_ID_NOT_FOUND
        if not group.is_idle:
            return GroupError.NON_EMPTY_GROUP
        end = self._store.remove_group(group_id)
        self._drop(group)
        await self._store.until_durable(end)
        return None

    async def delete_offsets(
        self, group_id: str, partitions: Collection[Partition]
    ) -> set[Partition] | GroupError:
        """Forget what a group committed; returns the partitions whose topics its members read now."""
        group = self._groups.get(group_id)
        if group is None:
            return _check_name(group_id) or GroupError.GROUP_ID_NOT_FOUND
        topics = group.subscribed_topics()
        if isinstance(topics, GroupError):
            return topics
        refused = {each for each in partitions if each[0] in topics}
        end = self._store.remove_offsets(
            group_id, [each for each in partitions if each not in refused]
        )
        await self._store.until_durable(end)
        return refused

    # -- inside --------------------------------------------------------------------------------

    def _find(self, group_id: str) -> Group | GroupError:
        error = _check_name(group_id)
        if error is not None:
            return error
        return self._groups.get(group_id, GroupError.UNKNOWN_MEMBER_ID)

    def _new_group(self, group_id: str) -> Group:
        group = Group(group_id, self._settings, self._clock, self._store_generation)
        self._groups[group_id] = group
        return group

    def _stamped(
        self, group_id: str, offsets: Mapping[Partition, tuple[int, int, str]]
    ) -> dict[Partition, CommittedOffset]:
        """What a group is about to commit, as of now; the group exists from then on."""
        if group_id not in self._groups:
            self._new_group(group_id)
        timestamp = int(self._now() * 1000)
        return {each: CommittedOffset(*what, timestamp) for each, what in offsets.items()}

    def _drop(self, group: Group) -> None:
        group.close(GroupError.COORDINATOR_NOT_AVAILABLE)
        del self._groups[group.id]

    def _store_generation(self, group_id: str, generation: GroupSnapshot) -> None:
        try:
            self._store.store_group(group_id, generation)
        except (LogError, OSError, ValueError) as error:
            # The group goes on; only a restart of the broker would make its members join again.
            logger.error(
                "a group's generation could not be stored; its members join again after a restart",
                group=group_id,
                error=str(error),
            )

    def _schedule_cleanup(self) -> None:
        interval = self._settings.cleanup_interval
        self._cleanup_timer = self._clock.call_later(interval, self._clean_up)

    def _clean_up(self) -> None:
        """Expire offsets that nobody reads on from, and forget groups that have nothing left."""
        expired = int((self._now() - self._settings.offsets_retention) * 1000)
        try:
            for group in tuple(self._groups.values()):
                if group.is_idle:
                    self._expire(group, expired)
                else:
                    self._expire_unread(group, expired)
        except LogError as error:
            logger.error("old offsets could not be removed", error=str(error))
        self._schedule_cleanup()

    def _expire(self, group: Group, expired: int) -> None:
        stored = self._store.stored_group(group.id)
        if stored is not None and stored.timestamp > expired:
            return  # the time counts from when its last member left
        if self._store.pending(group.id):
            return  # what it has committed depends on a transaction
        committed = self._store.committed(group.id)
        old = [each for each, what in committed.items() if what.timestamp <= expired]
        self._store.remove_offsets(group.id, old)
        if len(old) == len(committed):
            self._store.remove_group(group.id)
            self._drop(group)

    def _expire_unread(self, group: Group, expired: int) -> None:
        """The members of a group have not read some of its topics for long (KIP-211)."""
        topics = group.subscribed_topics()
        if isinstance(topics, GroupError) or group.state is not GroupState.STABLE:
            return
        pending = self._store.pending(group.id)
        committed = self._store.committed(group.id).items()
        self._store.remove_offsets(
            group.id,
            [
                at
                for at, what in committed
                if at[0] not in topics and what.timestamp <= expired and at not in pending
            ],
        )

    async def _maintain_store(self) -> None:
        failing = False
        while True:
            await anyio.sleep(STORE_INTERVAL)
            self._beat()
            try:
                await self._store.maintain()
                failing = False
            except LogError as error:
                if not failing:
                    logger.error("committed offsets could not be looked after", error=str(error))
                failing = True


def _check_name(group_id: str) -> GroupError | None:
    if not group_id or len(group_id.encode()) > _MAX_NAME_BYTES:
        return GroupError.INVALID_GROUP_ID
    return None


def _check_names(request: JoinRequest) -> GroupError | None:
    """Refuse what could not be stored."""
    instance_id = request.member.instance_id
    if instance_id is not None and not 0 < len(instance_id) <= _MAX_INSTANCE_ID_CHARS:
        return GroupError.INVALID_REQUEST
    names = (request.protocol_type, *(choice.name for choice in request.protocols))
    if any(len(name.encode()) > _MAX_NAME_BYTES for name in names):
        return GroupError.INVALID_REQUEST
    return None
