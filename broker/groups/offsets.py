"""Committed offsets and group generations, kept in a log: the internal topic `__consumer_offsets`.

The newest record of a key holds; a tombstone removes it. All of it is in memory, the log is what
survives. A log that has grown far beyond its contents is rewritten: every live record is appended
again, then everything before is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.groups.offset_records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from broker.groups.pending_offsets import OffsetEntry, Partition, PendingOffsets
from broker.records import NewRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from broker.membership.types import GroupSnapshot
    from broker.producers.identity import ProducerIdentity
    from broker.producers.markers import Marker
    from broker.records import StoredRecord
    from broker.state_log import StateLog

__all__ = ["OFFSETS_TOPIC", "CommittedOffset", "OffsetStore", "Partition"]

OFFSETS_TOPIC: Final = "__consumer_offsets"


class OffsetStore:
    """What groups committed, in memory and in a log.

    Changes are in the log's file when the method that made them returns; the `async` ones also wait
    until it is on disk when the log's `fsync` setting is "always". All of them raise `LogFailed` when
    the disk fails; then nothing may be acknowledged.

    Offsets that a transaction commits are records of that transaction, and count from its commit
    marker on, unless a later commit for the same partition has come before it.
    """

    def __init__(self, log: StateLog) -> None:
        """Load what the log holds, and rewrite it if it has grown too large; it is the store's now.

        Raises `LogCorrupt`, `LogFailed`: then the log is closed.
        """
        self._log = log
        self._offsets: dict[str, dict[Partition, OffsetEntry]] = {}
        self._groups: dict[str, StoredGroup] = {}
        self._pending = PendingOffsets()
        log.restore(self._replay, self._append_live_records, end_transaction=self._settle)

    def close(self) -> None:
        """Sync and close the log."""
        self._log.close()

    @property
    def log(self) -> StateLog:
        """Where it is kept; to be looked at only."""
        return self._log

    # -- reading -------------------------------------------------------------------------------

    def group_ids(self) -> set[str]:
        """Groups that have offsets, pending ones included, or a generation."""
        return self._offsets.keys() | self._groups.keys() | self._pending.group_ids

    def stored_group(self, group_id: str) -> StoredGroup | None:
        """The newest generation that was stored."""
        return self._groups.get(group_id)

    def committed(self, group_id: str) -> dict[Partition, CommittedOffset]:
        """What a group committed, also what may not be on disk yet: see `fetch`."""
        return {
            partition: entry.committed
            for partition, entry in self._offsets.get(group_id, {}).items()
        }

    async def fetch(
        self, group_id: str, partitions: Iterable[Partition] | None
    ) -> dict[Partition, CommittedOffset]:
        """What a group committed for `partitions` (None: all); those without are left out.

        Nobody may act on an offset that a power loss could take back: under fsync "always" this
        waits until what it returns is on disk.
        """
        known = self._offsets.get(group_id, {})
        wanted = known.keys() if partitions is None else partitions
        entries = {each: known[each] for each in wanted if each in known}
        await self._log.until_durable(max((entry.log_end for entry in entries.values()), default=0))
        return {partition: entry.committed for partition, entry in entries.items()}

    def pending(self, group_id: str) -> set[Partition]:
        """The partitions whose next offset depends on a transaction that is open (KIP-447)."""
        return self._pending.partitions(group_id)

    @property
    def pending_producers(self) -> list[ProducerIdentity]:
        """The producers of these transactions."""
        return self._pending.producers

    # -- writing -------------------------------------------------------------------------------

    async def commit(self, group_id: str, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Store what a group committed; returns when it may be acknowledged."""
        entries = self._append_offsets(group_id, offsets)
        if entries:
            self._offsets.setdefault(group_id, {}).update(entries)
        await self._make_durable(entries)

    async def commit_in_transaction(
        self,
        group_id: str,
        producer: ProducerIdentity,
        offsets: Mapping[Partition, CommittedOffset],
    ) -> None:
        """Store what a group will have committed when the transaction of `producer` commits."""
        entries = self._append_offsets(group_id, offsets, producer)
        if entries:
            self._pending.add(producer, group_id, entries)
        await self._make_durable(entries)

    async def end_transaction(self, producer: ProducerIdentity, marker: Marker) -> None:
        """Settle the offsets that are pending for `producer`; no effect if there are none."""
        if not self._pending.holds(producer.producer_id):
            return
        end = self._log.append_marker(marker, producer)
        self._settle(producer, marker)
        await self._log.until_durable(end)

    def store_group(self, group_id: str, snapshot: GroupSnapshot) -> None:
        """Store a generation, so that its members can go on after a restart."""
        stored = StoredGroup(snapshot, self._log.now_ms())
        self._log.append([NewRecord(encode_group_key(group_id), encode_group(stored))])
        self._groups[group_id] = stored

    def remove_offsets(self, group_id: str, partitions: Collection[Partition]) -> int:
        """Forget what a group committed for these partitions; returns the log offset to wait for."""
        known = self._offsets.get(group_id, {})
        pending = self._pending.partitions(group_id)
        gone = [each for each in partitions if each in known or each in pending]
        end = self._log.append(
            NewRecord(encode_offset_key(OffsetKey(group_id, *partition)), None)
            for partition in gone
        )
        for partition in gone:
            self._forget(group_id, partition)
        return end

    def remove_group(self, group_id: str) -> int:
        """Forget a group and all that it committed; returns the log offset to wait for."""
        end = self.remove_offsets(group_id, self._partitions(group_id))
        if group_id in self._groups:
            end = self._log.append([NewRecord(encode_group_key(group_id), None)])
            del self._groups[group_id]
        return end

    def remove_topics(self, topics: Collection[str]) -> int:
        """Forget all that was committed for deleted topics; returns the log offset to wait for."""
        end = 0
        for group_id in self.group_ids():
            gone = [each for each in self._partitions(group_id) if each[0] in topics]
            end = max(end, self.remove_offsets(group_id, gone))
        return end

    async def until_durable(self, log_offset: int) -> None:
        """Wait until a removal may be acknowledged."""
        await self._log.until_durable(log_offset)

    # -- maintenance ---------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Sync when the fsync policy says so, rewrite when the log is too large."""
        await self._log.maintain(self._append_live_records)

    @property
    def should_rewrite(self) -> bool:
        """Whether most of the log is history."""
        return self._log.should_rewrite

    def _append_live_records(self) -> None:
        """In an order in which of two offsets for one partition the later one comes later."""
        self._append_pending(later=False)
        self._log.append_in_batches(
            NewRecord(encode_group_key(group_id), encode_group(stored))
            for group_id, stored in self._groups.items()
        )
        self._log.append_in_batches(
            _record(group_id, partition, entry.committed)
            for group_id, entries in self._offsets.items()
            for partition, entry in entries.items()
        )
        self._append_pending(later=True)

    def _append_pending(self, *, later: bool) -> None:
        """Those that are later than what is committed for their partition, or all others."""
        for producer, group_id, partition, entry in sorted(
            self._pending, key=lambda pending: pending[-1].log_end
        ):
            committed = self._offsets.get(group_id, {}).get(partition)
            if (committed is None or entry.log_end > committed.log_end) == later:
                self._log.append([_record(group_id, partition, entry.committed)], producer)

    def _append_offsets(
        self,
        group_id: str,
        offsets: Mapping[Partition, CommittedOffset],
        producer: ProducerIdentity | None = None,
    ) -> dict[Partition, OffsetEntry]:
        records = [_record(group_id, *each) for each in offsets.items()]
        end = self._log.append(records, producer)
        return {partition: OffsetEntry(each, end) for partition, each in offsets.items()}

    async def _make_durable(self, entries: Mapping[Partition, OffsetEntry]) -> None:
        ends = (entry.log_end for entry in entries.values())
        await self._log.until_durable(max(ends, default=0))

    def _partitions(self, group_id: str) -> set[Partition]:
        return self._offsets.get(group_id, {}).keys() | self._pending.partitions(group_id)

    def _forget(self, group_id: str, partition: Partition) -> None:
        self._pending.discard(group_id, partition)
        known = self._offsets.get(group_id, {})
        known.pop(partition, None)
        if not known:
            self._offsets.pop(group_id, None)

    def _settle(self, producer: ProducerIdentity, marker: Marker) -> None:
        pending = self._pending.take(producer.producer_id) or {}
        if not marker.committed:
            return
        for group_id, entries in pending.items():
            known = self._offsets.setdefault(group_id, {})
            for partition, entry in entries.items():
                before = known.get(partition)
                if before is None or before.log_end < entry.log_end:
                    known[partition] = entry

    # -- loading -------------------------------------------------------------------------------

    def _replay(self, record: StoredRecord, producer: ProducerIdentity | None) -> None:
        key = decode_key(record.key or b"")
        if isinstance(key, GroupKey):
            if record.value is None:
                self._groups.pop(key.group_id, None)
            else:
                self._groups[key.group_id] = decode_group(record.value)
            return
        partition = (key.topic, key.partition)
        if record.value is None:
            self._forget(key.group_id, partition)
            return
        entries = {partition: OffsetEntry(decode_offset(record.value), record.offset + 1)}
        if producer is None:
            self._offsets.setdefault(key.group_id, {}).update(entries)
        else:
            self._pending.add(producer, key.group_id, entries)


def _record(group_id: str, partition: Partition, committed: CommittedOffset) -> NewRecord:
    return NewRecord(encode_offset_key(OffsetKey(group_id, *partition)), encode_offset(committed))
