"""The event handler: the only writer of a worker's state.

Four events change it: an assignment, a revocation, a shutdown, the failure of a stage. They are handled
one at a time. A rebalance of aiokafka is eager: it revokes all partitions and then assigns some of them
again. So a revocation only *suspends*: intake stops, no flush begins, flushes under way finish, watermarks
are committed, and collected rows stay collected. The assignment that follows resumes the partitions that
are still ours and drops the others. A drain does the same, except that it first tries to finish, and takes
no new partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from .delivery.announcement import NO_HISTORY, awaits_history, read_announcement, read_metadata
from .errors import ConsumerError, OffsetOutOfRange
from .kafka.consumer import CommitOffset
from .observe.logs import joined_partitions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .commit import Committer
    from .delivery.announcement import Announcement
    from .kafka.consumer import Consumer
    from .observe.metrics import Metrics
    from .observe.status import WorkerState
    from .pipeline import Pipeline
    from .record import TopicPartition

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Assign:
    """Exactly these partitions are ours now."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Revoke:
    """A rebalance has begun: these partitions may go to another member."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Drain and stop."""

    reason: str


class StageFailed:
    """A stage has failed, which ends the worker."""


Event = Assign | Revoke | Shutdown | StageFailed


class EventHandler:
    """Handles the events of one worker. A `Listener` of the consumer.

    Args:
        revoke_deadline: seconds that a rebalance waits for flushes under way.
        only_history: read nothing of a partition without a history in its committed offset.

    Attributes:
        assigned_once: set after the first assignment.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        consumer: Consumer,
        committer: Committer,
        *,
        revoke_deadline: float,
        only_history: bool = False,
        metrics: Metrics,
    ) -> None:
        self._pipeline = pipeline
        self._consumer = consumer
        self._committer = committer
        self._revoke_deadline = revoke_deadline
        self._only_history = only_history
        self._metrics = metrics
        self._lock = anyio.Lock(fast_acquire=True)
        self.state: WorkerState = "starting"
        self._suspended_at: float | None = None
        self.assigned_once = anyio.Event()

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await self.handle(Assign(partitions))

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self.handle(Revoke(partitions))

    async def handle(self, event: Event) -> None:
        """Handle one event after the other; return when its effect is complete.

        Raises:
            ConsumerError: the broker did not return the committed offsets, or has lost one.
        """
        async with self._lock:
            match self.state, event:
                case (("starting" | "running" | "suspended"), Assign(partitions)):
                    await self._resume(partitions)
                    self.state = "running"
                case (("starting" | "running" | "suspended"), Revoke(partitions)):
                    if (
                        self.state != "starting"
                    ):  # the client revokes nothing before it first assigns
                        self.state = "suspended"
                    await self._suspend(partitions, self._pipeline.suspend)
                case "draining", Assign(partitions):
                    await self._resume_drain(partitions)
                case "draining", Revoke(partitions):
                    await self._suspend(partitions, self._pipeline.suspend_drain)
                case (("starting" | "running"), Shutdown(reason)):
                    _log.info("draining", reason=reason)
                    self.state = "draining"
                    self._pipeline.drain()
                case "suspended", Shutdown(reason):
                    # Collected rows may belong to another member already, which reads them again.
                    _log.info("stopping during a rebalance", reason=reason)
                    self.state = "draining"
                    self._pipeline.abandon()
                case _, StageFailed():
                    self.state = "failed"
                    self._pipeline.stop_flushing()
                case "draining", Shutdown():
                    pass
                case (("stopped" | "failed"), _):
                    pass

    def stopped(self) -> None:
        """Note that all stages have ended."""
        if self.state != "failed":
            self.state = "stopped"

    async def _suspend(
        self, partitions: frozenset[TopicPartition], quiet: Callable[[], Awaitable[None]]
    ) -> None:
        """Wait for `quiet`, but not longer than the rebalance may wait; commit, and nothing from then on."""
        began = anyio.current_time()
        with anyio.move_on_after(self._revoke_deadline) as deadline:
            await quiet()
        self._pipeline.stop_flushing()
        if deadline.cancelled_caught:
            busy = [stage.name for stage in self._pipeline.stages() if stage.rows]
            _log.warning(
                "a flush takes longer than the rebalance may wait: its records may be delivered twice",
                stages=busy,
                seconds=self._revoke_deadline,
            )
        if partitions:
            self._metrics.rebalances.labels("revoked").inc()
            self._suspended_at = began
        await self._committer.commit()
        self._committer.hold()

    async def _resume(self, partitions: frozenset[TopicPartition]) -> None:
        pipeline, committer = self._pipeline, self._committer
        committed = await self._consumer.committed(sorted(partitions)) if partitions else {}
        if self._only_history:
            nothing = CommitOffset(0, NO_HISTORY.metadata)
            committed = {p: entry or nothing for p, entry in committed.items()}
        for partition, entry in committed.items():
            self._require_committed(partition, entry)
            if awaits_history(partition, entry):
                raise ConsumerError(
                    f"{partition}: kmr backfill still reads the history of this group. The strategy "
                    "remembers records (Window, Distinct), so a worker begins when the history is complete: "
                    "start it when kmr backfill has ended"
                )
        starts = await self._start_positions([p for p, entry in committed.items() if entry is None])
        announced = {p: a for p, entry in committed.items() if (a := read_announcement(p, entry))}
        if pipeline.replays:
            await self._require_records(announced)
        kept = self._keep(committed)
        for ledger in pipeline.ledgers:
            if ledger.position is not None:
                self._consumer.seek(ledger.partition, ledger.position)
        for partition in sorted(partitions - kept):
            entry = committed.get(partition)
            announcement = self._replayed(partition, announced.get(partition))
            committer.begin(partition, entry, announcement, windows=pipeline.has_windows)
            start = entry.offset if entry is not None else starts.get(partition)
            back = read_metadata(partition, entry).back
            pipeline.start_partition(partition, start, announcement, back)
            self._metrics.begin_topic(partition.topic)  # a pattern's is not known before
            history = committer.history(partition)
            if history is not None and start is not None and start >= history.until:
                self._consumer.seek(partition, start)
            elif partition in starts:
                self._consumer.seek(partition, starts[partition])
        committer.rejoined()
        self._metrics.rebalances.labels("assigned").inc()
        names = list(joined_partitions(dict.fromkeys(partitions)))
        _log.info("assigned", partitions=names, kept=len(kept))
        if starts:
            # Now, so that a restart continues here, and later members find a committed offset.
            await committer.commit()
        pipeline.resume()
        if self._suspended_at is not None:
            self._metrics.rebalance_seconds.observe(anyio.current_time() - self._suspended_at)
            self._suspended_at = None
        self.assigned_once.set()

    async def _resume_drain(self, partitions: frozenset[TopicPartition]) -> None:
        """Go on with the drain of the partitions that are still ours; new ones soon go to another member."""
        ours = self._pipeline.partitions & partitions
        self._keep(await self._consumer.committed(sorted(ours)) if ours else {})
        self._committer.rejoined()
        self._metrics.rebalances.labels("assigned").inc()
        self._pipeline.resume()

    def _keep(
        self, committed: Mapping[TopicPartition, CommitOffset | None]
    ) -> frozenset[TopicPartition]:
        """Drop what is not ours any more, or what another member has moved on; return the rest."""
        pipeline, committer = self._pipeline, self._committer
        before = pipeline.partitions
        kept = frozenset(p for p in before if p in committed and committer.is_ours(p, committed[p]))
        pipeline.keep_partitions(kept)
        for partition in sorted(before - kept):
            committer.forget(partition)
            self._metrics.forget_lag(*partition)
        return kept

    def _require_committed(self, partition: TopicPartition, committed: CommitOffset | None) -> None:
        """Raise ConsumerError if the broker has lost the offset that we committed."""
        ours = self._committer.committed(partition)
        if committed is None and ours is not None:
            raise ConsumerError(
                f"{partition}: the broker has lost committed offset {ours}. Its data directory, the topic "
                "or the group was replaced or deleted. Restore it, or restart the worker to begin at "
                "auto_offset_reset"
            )

    async def _start_positions(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of new partitions without a committed offset, as far as it is known."""
        partitions = [p for p in partitions if self._pipeline.ledgers.get(p) is None]
        if not partitions:
            return {}
        starts = await self._consumer.start_positions(partitions)
        _log.info(
            "no committed offsets: reading starts at auto_offset_reset",
            offsets=joined_partitions(
                {partition: starts.get(partition) for partition in partitions}
            ),
        )
        return starts

    async def _require_records(self, announced: Mapping[TopicPartition, Announcement]) -> None:
        """Raise OffsetOutOfRange if a log ends before an announced range does.

        Other records would get the missing offsets, and the sink would take them for those of the range.
        """
        ends = await self._consumer.log_ends(sorted(announced)) if announced else {}
        for partition, end in ends.items():
            announcement = announced[partition]
            if announcement.last >= end:
                first = announcement.first
                ways = f"begin new tokens: kmr offsets reset {partition.flags} --to-offset {end}"
                if first < end:
                    ways = (
                        f"look for these offsets in the sink, and {ways} if they are there, else "
                        f"--to-offset {first}"
                    )
                raise OffsetOutOfRange(
                    f"{partition}: the log ends at offset {end}, inside or before the range "
                    f"{first}..{announcement.last}, which was announced: the broker has lost records "
                    "(unclean election, power failure), and new ones get their offsets. Restore the "
                    f"log; or {ways}",
                    partition,
                )

    def _replayed(
        self, partition: TopicPartition, announcement: Announcement | None
    ) -> Announcement | None:
        """Return an announced range if this strategy can write it again as it was announced."""
        if announcement is not None and not self._pipeline.replays:
            _log.warning(
                "a range that was announced with exactly-once may be delivered twice: "
                "this strategy has another delivery",
                partition=str(partition),
                first=announcement.first,
                last=announcement.last,
            )
            return None
        return announcement
