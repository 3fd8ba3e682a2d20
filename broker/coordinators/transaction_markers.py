"""Writes the commit or abort markers that end transactions."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import structlog

from ..log.producers import Marker, ProducerError, build_marker
from ..log.records import LEADER_EPOCH, parse_header
from ..log.results import LogError
from ..topics.topic import INTERNAL_TOPICS, OFFSETS_TOPIC
from ..turns import in_turns
from .transaction_state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..log.producers import ProducerIdentity, ProducerStates
    from ..storage.group_commit import Flush, GroupCommit
    from ..topics.topic import Partition, TopicPartition
    from ..topics.topics import Topics
    from .offset_store import OffsetStore
    from .transaction_state import Transaction

__all__ = ["OFFSETS_PARTITION", "MarkerWriter"]

OFFSETS_PARTITION: TopicPartition = (OFFSETS_TOPIC, 0)
"""The partition of a transaction that stands for the offsets of all groups: they share one log."""

logger = structlog.get_logger(__name__)


def _unchecked(_: ProducerStates) -> None:
    """Accept every marker: those of this node's coordinator are in order."""


class MarkerWriter:
    """Appends markers to partitions and to the log of committed offsets."""

    def __init__(
        self,
        topics: Topics,
        group_commit: GroupCommit,
        offsets: OffsetStore,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._group_commit = group_commit
        self._offsets = offsets
        self._now_ms = now_ms

    async def write(self, transaction: Transaction, *, again: bool) -> bool:
        """Write the markers of a prepared transaction, as durably as `fsync` requires.

        Args:
            transaction: its state determines commit or abort.
            again: some markers may exist: skip partitions where the transaction is no longer open. If its
                end has raised the epoch, a later one is told from it.

        Returns: whether all are written; failures are logged.
        """
        committed = transaction.state is TransactionState.PREPARE_COMMIT
        marker = Marker(committed, LEADER_EPOCH)
        producer = transaction.producer
        below = producer.epoch if transaction.raised_epoch else None
        partitions = [
            self._topics.partition(*each) for each in transaction.partitions - {OFFSETS_PARTITION}
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
        complete = await self._write_to_partitions(targets, marker, producer)
        later = [] if below is None else [each.epoch >= below for each in self._pending(producer)]
        if OFFSETS_PARTITION in transaction.partitions and not (again and any(later)):
            complete = await self._write_to_groups(marker, producer) and complete
        return complete

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
        for partition in self._topics.partitions:
            for producer in partition.log.producers.open_transactions:
                committed = decide(producer, (partition.topic, partition.index))
                if committed is not None:
                    marker = Marker(committed, LEADER_EPOCH)
                    await self._write_to_partitions([partition], marker, producer)
                    ended[committed] += 1
        for producer in self._offsets.pending_producers:
            committed = decide(producer, OFFSETS_PARTITION)
            if committed is not None:
                await self._write_to_groups(Marker(committed, LEADER_EPOCH), producer)
                ended[committed] += 1
        return ended

    async def write_requested(
        self,
        partitions: Iterable[TopicPartition],
        marker: Marker,
        producer: ProducerIdentity,
        *,
        raises_epoch: bool,
    ) -> dict[TopicPartition, ProducerError | LogError | None]:
        """Write a marker that a client requests (WriteTxnMarkers, KIP-664).

        `raises_epoch`: see `ProducerStates.check_marker`. Returns the error, or None, of each partition that
        exists.
        """

        def check(producers: ProducerStates) -> None:
            producers.check_marker(producer, marker, raises_epoch=raises_epoch)

        outcomes: dict[TopicPartition, ProducerError | LogError | None] = {}
        targets: list[Partition] = []
        for where in partitions:
            partition = self._topics.partition(*where)
            if where == OFFSETS_PARTITION:
                outcomes[where] = await self._end_in_groups(marker, producer, check)
            elif partition is not None and where[0] not in INTERNAL_TOPICS:
                outcomes[where] = None
                targets.append(partition)
        failed = await self._append(targets, marker, producer, check)
        for partition, error in failed.items():
            outcomes[partition.topic, partition.index] = error
        return outcomes

    def _pending(self, producer: ProducerIdentity) -> list[ProducerIdentity]:
        """Return the identities with this producer id that have pending offsets."""
        pending = self._offsets.pending_producers
        return [each for each in pending if each.producer_id == producer.producer_id]

    async def _write_to_partitions(
        self, partitions: Iterable[Partition], marker: Marker, producer: ProducerIdentity
    ) -> bool:
        failed = await self._append(partitions, marker, producer)
        # A ProducerError means that a newer producer already writes: the transaction has ended.
        return not any(
            isinstance(error, LogError) and not partition.closed
            for partition, error in failed.items()
        )

    async def _append(
        self,
        partitions: Iterable[Partition],
        marker: Marker,
        producer: ProducerIdentity,
        check: Callable[[ProducerStates], None] = _unchecked,
    ) -> dict[Partition, ProducerError | LogError]:
        """Append the marker; return the errors. `check` may raise ProducerError."""
        failed: dict[Partition, ProducerError | LogError] = {}
        flushes: dict[Flush, list[Partition]] = {}
        async for partition in in_turns(partitions):
            now_ms = self._now_ms()
            batch = build_marker(marker, producer, timestamp_ms=now_ms)
            try:
                check(partition.log.producers)
                partition.log.append(batch, [parse_header(batch)], now_ms=now_ms)
            except ProducerError as error:
                failed[partition] = error
                continue
            except LogError as error:
                if not partition.closed:
                    logger.error(
                        "cannot write a transaction marker",
                        topic=partition.topic,
                        partition=partition.index,
                        error=str(error),
                    )
                failed[partition] = error
                continue
            flushes.setdefault(self._group_commit.add(partition, len(batch)), []).append(partition)
        for flush, written in flushes.items():
            done = asyncio.Event()
            flush.then(done.set)
            await done.wait()
            for partition in written:
                partition.wake()  # the marker may make earlier records readable
                if partition in flush.failed:
                    failed[partition] = flush.failed[partition]
        return failed

    async def _write_to_groups(self, marker: Marker, producer: ProducerIdentity) -> bool:
        error = await self._end_in_groups(marker, producer)
        if isinstance(error, LogError):
            logger.error("cannot end a transaction in the committed offsets", error=str(error))
        return not isinstance(error, LogError)

    async def _end_in_groups(
        self,
        marker: Marker,
        producer: ProducerIdentity,
        check: Callable[[ProducerStates], None] = _unchecked,
    ) -> ProducerError | LogError | None:
        try:
            check(self._offsets.log.log.producers)
            await self._offsets.end_transaction(producer, marker)
        except (ProducerError, LogError) as error:
            return error
        return None
