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
from broker.transactions.types import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from broker.appends import Appends, Flush
    from broker.groups.coordinator import GroupCoordinator
    from broker.producers.states import ProducerIdentity
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

    async def _write_to_partitions(
        self, partitions: Iterable[Partition], marker: Marker, producer: ProducerIdentity
    ) -> bool:
        complete = True
        flushes: dict[Flush, list[Partition]] = {}
        for partition in partitions:
            now_ms = self._now_ms()
            batch = build_marker(marker, producer, timestamp_ms=now_ms)
            try:
                partition.log.append(batch, [parse_header(batch)], now_ms=now_ms)
            except ProducerError:
                # A newer producer writes already, which this transaction's end cannot concern.
                continue
            except LogError as error:
                complete = partition.closed and complete
                _report(partition, error)
                continue
            flushes.setdefault(self._appends.add(partition, len(batch)), []).append(partition)
        for flush, written in flushes.items():
            await _done(flush)
            for partition in written:
                partition.wake()  # records before the marker may be readable now
                if partition in flush.failed and not partition.closed:
                    complete = False
        return complete

    async def _write_to_groups(self, marker: Marker, producer: ProducerIdentity) -> bool:
        try:
            await self._groups.end_transaction(producer, marker)
        except ProducerError:
            return True  # as above
        except LogError as error:
            logger.error("offsets of a transaction could not be settled", error=str(error))
            return False
        return True


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
