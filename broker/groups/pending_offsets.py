"""Offsets that open transactions will commit: known, and not yet what a group has committed (KIP-98)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from broker.groups.offset_records import CommittedOffset
    from broker.producers.identity import ProducerIdentity

__all__ = ["OffsetEntry", "Partition", "PendingOffsets"]

Partition = tuple[str, int]
"""Topic and partition."""


class OffsetEntry(NamedTuple):
    """An offset and the log offset after its record: of two for one partition, the later holds."""

    committed: CommittedOffset
    log_end: int


@dataclass(slots=True)
class _Transaction:
    producer: ProducerIdentity
    groups: defaultdict[str, dict[Partition, OffsetEntry]] = field(
        default_factory=lambda: defaultdict(dict)
    )


class PendingOffsets:
    """By producer: each has at most one transaction open."""

    def __init__(self) -> None:
        self._by_producer: dict[int, _Transaction] = {}

    def __iter__(self) -> Iterator[tuple[ProducerIdentity, str, Partition, OffsetEntry]]:
        """All of them, with their producers and groups."""
        for transaction in self._by_producer.values():
            for group_id, entries in transaction.groups.items():
                for partition, entry in entries.items():
                    yield transaction.producer, group_id, partition, entry

    @property
    def producers(self) -> list[ProducerIdentity]:
        """Whose transactions are open."""
        return [transaction.producer for transaction in self._by_producer.values()]

    @property
    def group_ids(self) -> set[str]:
        """The groups that have any."""
        return {group_id for each in self._by_producer.values() for group_id in each.groups}

    def add(
        self, producer: ProducerIdentity, group_id: str, entries: Mapping[Partition, OffsetEntry]
    ) -> None:
        """More offsets of this producer's transaction; newer ones replace older ones."""
        transaction = self._by_producer.get(producer.producer_id)
        if transaction is None:
            transaction = self._by_producer[producer.producer_id] = _Transaction(producer)
        transaction.producer = producer
        transaction.groups[group_id].update(entries)

    def take(self, producer_id: int) -> dict[str, dict[Partition, OffsetEntry]] | None:
        """The offsets of a transaction that ends, by group; None if it has none."""
        transaction = self._by_producer.pop(producer_id, None)
        return None if transaction is None else transaction.groups

    def holds(self, producer_id: int) -> bool:
        """Whether this producer's transaction has any."""
        return producer_id in self._by_producer

    def partitions(self, group_id: str) -> set[Partition]:
        """The partitions of a group whose next offset is open."""
        return {
            partition
            for transaction in self._by_producer.values()
            for partition in transaction.groups.get(group_id, ())
        }

    def discard(self, group_id: str, partition: Partition) -> None:
        """Forget what is pending for a partition, whatever becomes of its transactions."""
        for producer_id, transaction in list(self._by_producer.items()):
            entries = transaction.groups.get(group_id)
            if entries is None or entries.pop(partition, None) is None:
                continue
            if not entries:
                del transaction.groups[group_id]
            if not transaction.groups:
                del self._by_producer[producer_id]
