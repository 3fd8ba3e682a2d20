"""Tells the partitions of a transaction how it ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from broker.groups.offsets import OFFSETS_TOPIC
from broker.log.errors import LogError
from broker.producers.markers import Marker, build_marker
from broker.producers.states import ProducerError
from broker.records import LEADER_EPOCH, parse_header
from broker.topics.names import INTERNAL_TOPICS
from broker.transactions.types import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from broker.appends import Appends, Flush
    from broker.groups.coordinator import GroupCoordinator
    from broker.producers.identity import ProducerIdentity
    from broker.topics.partition import Partition
    from broker.topics.topics import Topics
    from broker.transactions.types import TopicPartition, Transaction

__all__ = ["OFFSETS_PARTITION", "MarkerWriter"]

OFFSETS_PARTITION: TopicPartition = (OFFSETS_TOPIC, 0)
"""What stands in a transaction for the offsets of all groups, which are in one log."""

logger = structlog.get_logger(__name__)


class MarkerWriter:
    """Appends markers to partitions and to the groups' offsets."""

    def __init__(
        self,
        topics: Topics,
        appends: Appends,
        groups: GroupCoordinator,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._appends = appends
        self._groups = groups
        self._now_ms = now_ms

    async def write(self, transaction: Transaction, *, again: bool) -> bool:
        """Write the markers of a prepared transaction, as durably as the fsync setting asks for.

        Args:
            transaction: its state says whether it commits or aborts.
            again: some may have been written before: partitions that no longer have this transaction
                open are left out.

        Returns: whether all are written; a reason that they are not has been logged.
        """
        committed = transaction.state is TransactionState.PREPARE_COMMIT
        marker = Marker(committed, LEADER_EPOCH)
        producer = transaction.producer
        partitions = [
            self._topics.partition(*each) for each in transaction.partitions - {OFFSETS_PARTITION}
        ]
        targets = [
            each
            for each in partitions
            if each is not None  # its topic was deleted
            and (not again or each.log.producers.has_open_transaction(producer.producer_id))
        ]
        complete = await self._write_to_partitions(targets, marker, producer)
        if OFFSETS_PARTITION in transaction.partitions:
            complete = await self._write_to_groups(marker, producer) and complete
        return complete

    async def abort_unknown(self, known: Mapping[int, Collection[TopicPartition]]) -> int:
        """Abort what is open and not `known`; returns how many times a partition had such a thing.

        Nobody would ever end it: consumers of committed records would wait for ever.

        Args:
            known: the partitions of the transaction that each producer id has open.
        """
        aborted = 0
        marker = Marker(committed=False, coordinator_epoch=LEADER_EPOCH)
        for partition in self._topics.partitions:
            for producer in partition.log.producers.open_transactions:
                where = (partition.topic, partition.index)
                if where not in known.get(producer.producer_id, ()):
                    await self._write_to_partitions([partition], marker, producer)
                    aborted += 1
        for producer in self._groups.pending_producers():
            if OFFSETS_PARTITION not in known.get(producer.producer_id, ()):
                await self._write_to_groups(marker, producer)
                aborted += 1
        return aborted

    async def end_in(
        self, partitions: Iterable[TopicPartition], marker: Marker, producer: ProducerIdentity
    ) -> dict[TopicPartition, ProducerError | LogError | None]:
        """Write a marker that somebody else than the coordinator decided on; see the APIs.

        Returns how it went for each partition that there is.
        """
        outcomes: dict[TopicPartition, ProducerError | LogError | None] = {}
        targets: list[Partition] = []
        for where in partitions:
            partition = self._topics.partition(*where)
            if where == OFFSETS_PARTITION:
                outcomes[where] = await self._end_in_groups(marker, producer)
            elif partition is not None and where[0] not in INTERNAL_TOPICS:
                outcomes[where] = None
                targets.append(partition)
        failed = await self._append(targets, marker, producer, checked=True)
        for partition, error in failed.items():
            outcomes[partition.topic, partition.index] = error
        return outcomes

    async def _write_to_partitions(
        self, partitions: Iterable[Partition], marker: Marker, producer: ProducerIdentity
    ) -> bool:
        failed = await self._append(partitions, marker, producer)
        # A newer producer that writes already is none that this transaction's end could concern.
        return not any(
            isinstance(error, LogError) and not partition.closed
            for partition, error in failed.items()
        )

    async def _append(
        self,
        partitions: Iterable[Partition],
        marker: Marker,
        producer: ProducerIdentity,
        *,
        checked: bool = False,
    ) -> dict[Partition, ProducerError | LogError]:
        """Returns what went wrong. `checked`: the marker's coordinator may be an old one."""
        failed: dict[Partition, ProducerError | LogError] = {}
        flushes: dict[Flush, list[Partition]] = {}
        for partition in partitions:
            now_ms = self._now_ms()
            batch = build_marker(marker, producer, timestamp_ms=now_ms)
            try:
                if checked:
                    partition.log.producers.check_coordinator(
                        producer.producer_id, marker.coordinator_epoch
                    )
                partition.log.append(batch, [parse_header(batch)], now_ms=now_ms)
            except ProducerError as error:
                failed[partition] = error
                continue
            except LogError as error:
                _report(partition, error)
                failed[partition] = error
                continue
            flushes.setdefault(self._appends.add(partition, len(batch)), []).append(partition)
        for flush, written in flushes.items():
            await _done(flush)
            for partition in written:
                partition.wake()  # records before the marker may be readable now
                if partition in flush.failed:
                    failed[partition] = flush.failed[partition]
        return failed

    async def _write_to_groups(self, marker: Marker, producer: ProducerIdentity) -> bool:
        error = await self._end_in_groups(marker, producer)
        if isinstance(error, LogError):
            logger.error("offsets of a transaction could not be settled", error=str(error))
        return not isinstance(error, LogError)

    async def _end_in_groups(
        self, marker: Marker, producer: ProducerIdentity
    ) -> ProducerError | LogError | None:
        try:
            await self._groups.end_transaction(producer, marker)
        except (ProducerError, LogError) as error:
            return error
        return None


async def _done(flush: Flush) -> None:
    written = asyncio.Event()
    flush.then(written.set)
    await written.wait()


def _report(partition: Partition, error: LogError) -> None:
    if not partition.closed:
        logger.error(
            "a transaction marker could not be written",
            topic=partition.topic,
            partition=partition.index,
            error=str(error),
        )
