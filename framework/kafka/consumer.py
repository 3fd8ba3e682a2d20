"""The consumer protocol: the Kafka consumer as the pipeline sees it, independent of the client library."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

    from ..record import Batch, TopicPartition
    from .group_offsets import Membership


class CommitOffset(NamedTuple):
    """A committed offset: the next offset to read, and the metadata committed with it."""

    offset: int
    metadata: str = ""


class RebalanceListener(Protocol):
    """Called when partitions are revoked and assigned; awaited inside the rebalance, one call at a time.

    The next `Consumer.poll` raises an exception that is raised here.
    """

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """All partitions are suspended; commits for them are still accepted until this returns.

        The protocol is eager: every rebalance revokes all partitions, and `assigned` returns those that
        stay. Called with an empty set before the first assignment. Heartbeats continue while it runs, so
        it may take longer than `session_timeout`, but must finish within `rebalance_timeout`, counted
        from the moment the broker began the rebalance (we hear of it up to `heartbeat_interval` later).
        """

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These partitions, and only these, are ours from now on, in a new generation.

        Nothing of them is fetched or polled until this returns. Reading begins at the committed offset
        (or where `auto_offset_reset` says) unless it calls `Consumer.seek`. No heartbeat is sent while it
        runs: it must finish well within `session_timeout`.
        """


class Consumer(Protocol):
    """A member of a consumer group that returns batches. Used from one event loop, by any task.

    Every method raises `ConsumerError` (or a subclass) for errors that the client cannot recover from.
    """

    async def reach(self) -> None:
        """Return if a broker answers. Raises `BrokerUnavailable`, `ConsumerError` for refused credentials."""

    async def start(
        self, listener: RebalanceListener, admitted: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Connect, check that the topics exist, and join the group in the background.

        `listener.assigned` receives the partitions. Raises `BrokerUnavailable` when no broker answers and
        `ConsumerError` for an unknown topic or refused credentials.

        Args:
            admitted: awaited when everything is done but joining.
        """

    async def stop(self, *, leave: bool = False) -> None:
        """Leave the group and close all connections, in at most `stop_timeout` seconds; may be repeated.

        Does not call the listener: settle and commit before.

        Args:
            leave: a static member leaves too; otherwise it is expected back.
        """

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        """Wait for records and return them: at least one batch, at most one per partition.

        Returns no further batch when those before it have `max_bytes` or more; it is returned first by
        the next call.

        Batches of one partition follow each other without gap or overlap: the range of each begins
        where the last one ended, or where `seek` (or `on_out_of_range`) said. Paused partitions are
        left out; their fetched batches are kept and returned after `resume`. Returns nothing during a
        rebalance. May be cancelled at any time without losing a batch. A batch may have no rows
        (transaction markers, compaction): its range must be settled like any other.

        Raises what a listener raised, `CorruptRecords` or `OffsetOutOfRange` for one partition (its
        position stays), `ConsumerError` for lost permissions and the like.
        """

    def let_gather(self, seconds: float) -> None:
        """Begin no fetch for some seconds, so that records gather at the brokers; an assignment ends that.

        Of several calls the latest end counts. What was fetched before is polled at once.
        """

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions until `resume`; those that are not assigned are ignored.

        A rebalance ends all pauses.
        """

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`; partitions that are not assigned or not paused are ignored."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue to read at `offset`; batches fetched before are dropped.

        Raises `ConsumerError` when the partition is not assigned.
        """

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        """Ask the broker for the group's committed offsets; None where it has committed nothing."""

    async def start_positions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the offsets where reading begins in partitions without a committed offset.

        They follow `auto_offset_reset`; but a partition that was created while the group was already
        reading its topic begins at its first record also with `latest`. Partitions whose broker does not
        answer in time are left out: their first batch shows where reading began.

        Raises `OffsetOutOfRange` where `auto_offset_reset` is `error`.
        """

    def read_range(self, partition: TopicPartition, first: int, end: int) -> AsyncGenerator[Batch]:
        """Yield the records `[first, end)` of a partition once more, beside `poll`; its position stays.

        The ranges of the batches follow each other. The first one begins later where retention has removed
        records. The end may come before `end`, where the log ends there.

        Raises `BrokerUnavailable`, `CorruptRecords`, `ConsumerError` when the broker refuses.
        """

    async def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask the broker for the offset after the last readable record of each partition.

        Raises `ConsumerError` when it does not answer.
        """

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        """Commit in one request; return when the broker has acknowledged it.

        Raises `CommitFenced` when the group is in a new generation (the offsets are *not* committed, and
        another member may own the partitions), `CommitRefused` when the broker refuses it for another
        reason, `ConsumerError` for any other error that retrying for `commit_timeout` seconds did not
        resolve.
        """

    @property
    def has_unanswered_commit(self) -> bool:
        """Whether a commit of this generation had no answer: until the next one it may still take effect.

        Its connection was lost, or it took too long. A later commit, on another connection, may overtake it.
        """

    async def join_anew(self) -> None:
        """Leave the generation, so that no commit of it can take effect after the next assignment.

        Returns before that; the listener is told as of any rebalance. Raises nothing.
        """

    def membership(self, partitions: Iterable[TopicPartition]) -> Membership:
        """Return the name of this member for a transaction that commits offsets of these partitions.

        Raises `CommitFenced` when one of them is not assigned to us.
        """

    def start_offset(self, partition: TopicPartition) -> int | None:
        """Return the first offset of the broker's log, as of the last fetch; None while unknown."""

    def end_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last readable record, as last known; None while unknown.

        The high watermark, or the last stable offset with `read_committed`.
        """

    async def look_up_ends(self) -> None:
        """Ask for the ends of partitions that have not been fetched for a while: intake or they are paused.

        Gives up in silence when the broker does not answer soon.
        """

    @property
    def silent(self) -> str | None:
        """Who does not answer: the coordinator of the group, or a leader of our partitions; else None."""

    def answered_at(self, partition: TopicPartition) -> float | None:
        """Return when the broker last answered a fetch of the partition, on the event loop's clock.

        The time of the assignment before the first answer. None while it cannot be asked: the partition is
        not assigned, has no leader, or its leader does not answer.
        """

    @property
    def generation(self) -> int:
        """The group generation of our membership; -1 while we are no member."""

    @property
    def member_id(self) -> str:
        """Our member id in the group, given by the broker; empty while we are no member."""
