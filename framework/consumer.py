"""The Kafka consumer as the pipeline sees it: a small protocol, so that nothing above knows the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from framework.record import Batch, TopicPartition

__all__ = ["CommitOffset", "Consumer", "Listener"]


class CommitOffset(NamedTuple):
    """What a group commits for a partition: the next offset to read, and any text with it."""

    offset: int
    metadata: str = ""


class Listener(Protocol):
    """Told of partitions that go and come; awaited inside the rebalance, one call at a time.

    An exception raised here does not vanish: the next `Consumer.poll` raises it.
    """

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """All partitions are suspended; commits for them are still accepted until this returns.

        The protocol is eager: every rebalance revokes everything, and `assigned` gives back what stays.
        Called with an empty set before the first assignment. Heartbeats go on while it runs, so it may
        take longer than `session_timeout`, but it must be done within `rebalance_timeout`, counted
        from the moment the broker began the rebalance (we hear of it up to `heartbeat_interval` later).
        """

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These partitions, and only these, are ours from now on, in a new generation.

        `poll` returns nothing of them and nothing is fetched until this returns. Reading begins at the
        committed offset (or where `auto_offset_reset` says) unless it calls `Consumer.seek`. No
        heartbeat is sent while it runs: it must be done well within `session_timeout`.
        """


class Consumer(Protocol):
    """A member of a consumer group that hands out batches. Used from one event loop, by any task.

    Every method raises `ConsumerError` (or one of its kinds) for what the client cannot mend itself.
    """

    async def start(self, listener: Listener) -> None:
        """Connect, check that the topics exist, and join the group in the background.

        Partitions arrive by `listener.assigned`. Raises `BrokerUnavailable` when no broker answers and
        `ConsumerError` for an unknown topic or refused credentials.
        """

    async def stop(self) -> None:
        """Leave the group and close all connections, in at most `stop_timeout` seconds; may be repeated.

        Does not call the listener: settle and commit before.
        """

    async def poll(self) -> list[Batch]:
        """Wait for records and return them: at least one batch, at most one per partition.

        Batches of one partition follow each other without gap or overlap: the range of each begins
        where the last one ended, or where `seek` (or `on_out_of_range`) said. Paused partitions are
        left out; what had been fetched for them is kept and returned after `resume`. Nothing is
        returned during a rebalance. May be cancelled at any time without losing a batch. A batch may
        have no rows (transaction markers, compaction): its range must be settled like any other.

        Raises what a listener raised, `CorruptRecords` or `OffsetOutOfRange` for one partition (its
        position stays), `ConsumerError` for lost permissions and the like.
        """

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions until `resume`; those that are not assigned are ignored.

        A rebalance forgets pauses: the partitions of a new assignment are not paused.
        """

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`; partitions that are not assigned or not paused are ignored."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on reading at `offset`; what had been fetched before is dropped.

        Raises `ConsumerError` when the partition is not assigned.
        """

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        """What the group has committed, asked from the broker; None where it has committed nothing."""

    async def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where reading begins in partitions of which the group has committed nothing.

        As `auto_offset_reset` says; but a partition that was created while the group was already reading
        its topic begins at its first record also with `latest`. Left out are partitions whose broker did
        not tell in time: their first batch says where it began.

        Raises `OffsetOutOfRange` where `auto_offset_reset` is `error`.
        """

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        """Commit in one request; returns when the broker has acknowledged it.

        Raises `CommitFenced` when the group has moved on (the offsets are *not* committed, and another
        member may own the partitions), `ConsumerError` for anything else that retrying for
        `commit_timeout` seconds did not mend.
        """

    def start_offset(self, partition: TopicPartition) -> int | None:
        """The first offset that the broker still has, as of the last fetch; None while unknown."""

    def end_offset(self, partition: TopicPartition) -> int | None:
        """The offset after the last readable record, as of the last fetch; None while unknown.

        The high watermark, or the last stable offset with `read_committed`.
        """

    @property
    def generation(self) -> int:
        """The group's generation that we are a member of; -1 while we are none."""

    @property
    def member_id(self) -> str:
        """Our name in the group, given by the broker; empty while we are no member."""
