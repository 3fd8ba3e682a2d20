"""Writes the commit or abort markers that end transactions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from ..log.producers import Marker, ProducerError, build_marker
from ..log.records import LEADER_EPOCH, parse_header
from ..log.results import LogError, LogFailed
from ..topics.topic import OFFSETS_TOPIC
from ..turns import in_turns
from .transaction_state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..log.producers import ProducerIdentity
    from ..storage.group_commit import Flush, GroupCommit
    from ..topics.topic import Partition, TopicPartition
    from ..topics.topics import Topics
    from .offset_store import OffsetStore
    from .transaction_state import TransactionalId

OFFSETS_PARTITION: TopicPartition = (OFFSETS_TOPIC, 0)
"""The partition of a transaction that stands for the offsets of all groups: they share one log."""

logger = structlog.get_logger(__name__)


@dataclass(eq=False)
class MarkerWriter:
    """Appends markers to partitions and to the log of committed offsets."""

    topics: Topics
    group_commit: GroupCommit
    offsets: OffsetStore
    now_ms: Callable[[], int]

    async def write(self, transaction: TransactionalId, *, again: bool) -> None:
        """Write the markers of a prepared transaction, as durably as `fsync` requires.

        Args:
            transaction: its state determines commit or abort.
            again: some markers may exist: skip partitions where the transaction is no longer open. If its
                end has raised the epoch, a later one is told from it.

        Raises:
            LogError: some could not be written; the message names the first partition.
        """
        committed = transaction.state is TransactionState.PREPARE_COMMIT
        marker = Marker(committed, LEADER_EPOCH)
        producer = transaction.producer
        below = producer.epoch if transaction.raised_epoch else None
        partitions = [
            self.topics.partition(*each) for each in transaction.partitions - {OFFSETS_PARTITION}
        ]
        targets = [
            each
            for each in partitions
            if each is not None  # its topic was deleted
            and (
                not again
                or each.log.producers.has_open_transaction(producer.producer_id, below=below)
            )
        ]
        failed = await self._append(targets, marker, producer)
        later = [] if below is None else [each.epoch >= below for each in self._pending(producer)]
        if OFFSETS_PARTITION in transaction.partitions and not (again and any(later)):
            await self.offsets.end_transaction(producer, marker)
        if failed:
            more = f", and {len(failed) - 1} more" if failed[1:] else ""
            raise LogFailed(f"a marker could not be written to {failed[0]}{more}")

    async def end_hanging(
        self, decide: Callable[[ProducerIdentity, TopicPartition], bool | None]
    ) -> Counter[bool]:
        """End open transactions; without this, they would block read_committed consumers forever.

        Args:
            decide: whether to commit the producer's transaction in a partition (True), to abort it
                (False), or to leave it open (None).

        Returns: how many were committed and aborted, counted per partition.
        """
        ended: Counter[bool] = Counter()
        for partition in self.topics.partitions:
            for producer in partition.log.producers.open_transactions:
                committed = decide(producer, (partition.topic, partition.index))
                if committed is not None:
                    marker = Marker(committed, LEADER_EPOCH)
                    for failure in await self._append([partition], marker, producer):
                        logger.error("cannot end an open transaction", error=failure)
                    ended[committed] += 1
        for producer in self.offsets.pending_producers:
            committed = decide(producer, OFFSETS_PARTITION)
            if committed is not None:
                marker = Marker(committed, LEADER_EPOCH)
                try:
                    await self.offsets.end_transaction(producer, marker)
                except LogError as error:
                    logger.error("cannot end an open transaction", error=str(error))
                ended[committed] += 1
        return ended

    def _pending(self, producer: ProducerIdentity) -> list[ProducerIdentity]:
        """Return the identities with this producer id that have pending offsets."""
        pending = self.offsets.pending_producers
        return [each for each in pending if each.producer_id == producer.producer_id]

    async def _append(
        self, partitions: Iterable[Partition], marker: Marker, producer: ProducerIdentity
    ) -> list[str]:
        """Append the marker; return where it could not be written, with the reasons."""
        failed: dict[Partition, LogError] = {}
        flushes: dict[Flush, list[Partition]] = {}
        async for partition in in_turns(partitions):
            now_ms = self.now_ms()
            batch = build_marker(marker, producer, timestamp_ms=now_ms)
            try:
                partition.log.append(batch, [parse_header(batch)], now_ms=now_ms)
            except ProducerError:
                continue  # a newer producer already writes: the transaction has ended
            except LogError as error:
                failed[partition] = error
                continue
            flushes.setdefault(self.group_commit.add(partition, len(batch)), []).append(partition)
        for flush, written in flushes.items():
            await flush.wait()
            for partition in written:
                partition.wake()  # the marker may make earlier records readable
                if partition in flush.failed:
                    failed[partition] = flush.failed[partition]
        return [
            f"{partition.topic}-{partition.index}: {error}"
            for partition, error in failed.items()
            if not partition.closed
        ]
