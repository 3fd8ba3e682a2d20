"""The event handler: the only place that changes what a worker is doing.

Four events move it: partitions are assigned, partitions are revoked, somebody asks for a shutdown, a
stage has failed. They are handled one at a time. aiokafka's rebalance is eager (everything is revoked,
then some of it assigned anew), so a revocation only *suspends*: nothing is taken in, no flush begins,
those under way finish, watermarks are committed, and everything else stays where it is. The assignment
that follows resumes what is still ours and drops what is not, so most partitions never stop.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from framework.announcement import announced
from framework.errors import ConsumerError

if TYPE_CHECKING:
    from framework.announcement import Announcement
    from framework.commit import Committer
    from framework.consumer import CommitOffset, Consumer
    from framework.pipeline import Pipeline
    from framework.record import TopicPartition
    from framework.status import WorkerState
    from framework.telemetry import Metrics

__all__ = ["Assign", "Event", "EventHandler", "Failed", "Revoke", "Shutdown"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions, and no others, are ours now."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Revoke:
    """A rebalance has begun: these partitions may go to another member."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Drain and stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A stage has failed; its error ends the worker."""

    error: BaseException


Event = Assign | Revoke | Shutdown | Failed


class EventHandler:
    """Moves one worker through its life. A `Listener` of the consumer.

    Args:
        revoke_deadline: seconds that a rebalance waits for flushes under way.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        consumer: Consumer,
        committer: Committer,
        *,
        revoke_deadline: float,
        metrics: Metrics,
    ) -> None:
        self._pipeline = pipeline
        self._consumer = consumer
        self._committer = committer
        self._revoke_deadline = revoke_deadline
        self._metrics = metrics
        self._lock = anyio.Lock()
        self.state: WorkerState = "starting"
        self.assigned_once = anyio.Event()

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """The consumer's call after a rebalance."""
        await self.handle(Assign(partitions))

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """The consumer's call at the beginning of a rebalance."""
        await self.handle(Revoke(partitions))

    async def handle(self, event: Event) -> None:
        """Handle one event after the other; returns when its effect is complete.

        Raises:
            ConsumerError: the broker could not say what is committed.
        """
        async with self._lock:
            match self.state, event:
                case (("starting" | "running" | "suspended"), Assign(partitions)):
                    await self._resume(partitions)
                    self.state = "running"
                case (("starting" | "running" | "suspended"), Revoke(partitions)):
                    self.state = "suspended"
                    await self._suspend(partitions)
                case "draining", Revoke():
                    await self._finish_before_rebalance()
                case (("starting" | "running"), Shutdown(reason)):
                    _log.info("draining", reason=reason)
                    self.state = "draining"
                    self._pipeline.drain()
                case "suspended", Shutdown(reason):
                    # What is buffered may belong to another member already: it is read again there.
                    _log.info("stopping during a rebalance", reason=reason)
                    self.state = "draining"
                    self._pipeline.abandon()
                case _, Failed():
                    self.state = "failed"
                    self._pipeline.stop_flushing()
                case "draining", Assign() | Shutdown():
                    pass  # We are leaving; a partition that came now is another member's soon.
                case (("stopped" | "failed"), _):
                    pass

    def stopped(self) -> None:
        """Everything has ended."""
        if self.state != "failed":
            self.state = "stopped"

    async def _suspend(self, partitions: frozenset[TopicPartition]) -> None:
        with anyio.move_on_after(self._revoke_deadline) as deadline:
            await self._pipeline.suspend()
        if deadline.cancelled_caught:
            busy = [stage.name for stage in self._pipeline.stages() if stage.rows]
            _log.warning(
                "a flush outlasts the rebalance: its records may be delivered twice",
                stages=busy,
                seconds=self._revoke_deadline,
            )
        if partitions:
            self._metrics.rebalances.labels("revoked").inc()
        await self._committer.commit()
        self._committer.hold()

    async def _finish_before_rebalance(self) -> None:
        """We are draining anyway; only what takes too long is held back from now on."""
        with anyio.move_on_after(self._revoke_deadline):
            await self._pipeline.drained.wait()
        self._pipeline.stop_flushing()
        await self._committer.commit()

    async def _resume(self, partitions: frozenset[TopicPartition]) -> None:
        pipeline, committer = self._pipeline, self._committer
        committed = await self._consumer.committed(partitions) if partitions else {}
        for partition, entry in committed.items():
            self._require_memory(partition, entry)
        starts = await self._begin([p for p, entry in committed.items() if entry is None])
        kept = 0
        for partition in pipeline.partitions - partitions:
            pipeline.stop_partition(partition)
            committer.forget(partition)
            self._forget_metrics(partition)
        for partition in partitions:
            entry = committed.get(partition)
            ledger = pipeline.ledgers.get(partition)
            if ledger is not None and committer.is_ours(partition, entry):
                kept += 1
                if ledger.delivered is not None:
                    self._consumer.seek(partition, ledger.delivered)
            else:
                announcement = self._announced(partition, entry)
                committer.begin(partition, entry, announcement)
                start = entry.offset if entry is not None else starts.get(partition)
                pipeline.start_partition(partition, start, announcement)
                if partition in starts:
                    self._consumer.seek(partition, starts[partition])
        committer.rejoined()
        self._metrics.rebalances.labels("assigned").inc()
        _log.info("assigned", partitions=sorted(map(str, partitions)), kept=kept)
        if starts:
            # At once, so that a restart goes on here, and whoever joins later sees that we have begun.
            await committer.commit()
        pipeline.resume()
        self.assigned_once.set()

    def _require_memory(self, partition: TopicPartition, committed: CommitOffset | None) -> None:
        """Raises `ConsumerError` when the broker has forgotten what we have committed."""
        ours = self._committer.committed(partition)
        if committed is None and ours is not None:
            raise ConsumerError(
                f"{partition}: offset {ours} was committed, and the broker knows nothing of it any more: "
                "was the broker started with another data directory, the topic created anew, or the "
                "group deleted? Where to go on cannot be known: bring the old data back, or start again, to "
                "begin as a new group does (auto_offset_reset)"
            )

    async def _begin(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of partitions of which nothing is committed, where it is known already."""
        partitions = [p for p in partitions if self._pipeline.ledgers.get(p) is None]
        if not partitions:
            return {}
        starts = await self._consumer.beginnings(partitions)
        _log.info(
            "the group has committed nothing of these partitions: reading begins",
            offsets={str(partition): starts.get(partition) for partition in sorted(partitions)},
        )
        return starts

    def _announced(
        self, partition: TopicPartition, committed: CommitOffset | None
    ) -> Announcement | None:
        """The range that may have been written before, if it can be written again as it was."""
        announcement = announced(partition, committed)
        if announcement is not None and not self._pipeline.replays:
            _log.warning(
                "a range that was announced with exactly-once is delivered again, maybe twice: "
                "this strategy delivers in another way",
                partition=str(partition),
                first=announcement.first,
                last=announcement.last,
            )
            return None
        return announcement

    def _forget_metrics(self, partition: TopicPartition) -> None:
        with contextlib.suppress(KeyError):  # nothing was ever fetched from it
            self._metrics.lag.remove(partition.topic, str(partition.partition))
