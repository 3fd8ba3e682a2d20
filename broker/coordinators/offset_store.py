"""Committed offsets and group generations, kept in a log: the internal topic `__consumer_offsets`.

The newest record of a key is valid; a tombstone removes it. The log is replayed into memory at the
start, and rewritten when it has grown far beyond its live records.

The records have Kafka's own format, so that its tools can read them. Keys: version 1 is a committed
offset (group, topic, partition), version 2 a classic group. Values have version 3. Source: Kafka's
OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue message definitions. Groups
of KIP-848 have a format of their own, under key version 848, which Kafka's tools skip: a JSON object for
the group (member id null) and for each member.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..log.records import NewRecord
from .groups.group_types import GroupSnapshot, MemberSnapshot
from .state_log import MalformedRecord, RecordReader, encode_string

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ..log.producers import Marker, ProducerIdentity
    from ..log.records import StoredRecord
    from ..topics.topic import TopicPartition
    from .state_log import StateLog

_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_CONSUMER_GROUP_KEY: Final = 848
_OFFSET_VALUE: Final = 3
_GROUP_VALUE: Final = 3
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_OFFSET_AND_EPOCH: Final = struct.Struct(">hqi")
_INT64: Final = struct.Struct(">q")
_ENTRY_BYTES: Final = 400  # of a committed offset in memory, without its metadata


class OffsetKey(NamedTuple):
    """Key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Key of a group's generation."""

    group_id: str


class ConsumerGroupKey(NamedTuple):
    """Key of a group of KIP-848 (member id None), or of one of its members."""

    group_id: str
    member_id: str | None


class CommittedOffset(NamedTuple):
    """The committed offset of one partition.

    `offset` is the next one to consume; `leader_epoch` is -1 if the client sent none; `timestamp` is
    the time of the commit in milliseconds since the epoch.
    """

    offset: int
    leader_epoch: int
    metadata: str
    timestamp: int


class StoredGroup(NamedTuple):
    """A generation, and the time when it became stable or empty (milliseconds since the epoch)."""

    snapshot: GroupSnapshot
    timestamp: int


def encode_offset_key(key: OffsetKey) -> bytes:
    """Encode the key; raises `ValueError` for a name of more than 32,767 bytes."""
    return (
        _INT16.pack(_OFFSET_KEY)
        + encode_string(key.group_id)
        + encode_string(key.topic)
        + _INT32.pack(key.partition)
    )


def encode_group_key(group_id: str) -> bytes:
    """Encode the key; raises `ValueError` for an id of more than 32,767 bytes."""
    return _INT16.pack(_GROUP_KEY) + encode_string(group_id)


def encode_consumer_group_key(key: ConsumerGroupKey) -> bytes:
    """Encode the key; raises `ValueError` for an id of more than 32,767 bytes."""
    head = _INT16.pack(_CONSUMER_GROUP_KEY)
    return head + encode_string(key.group_id) + encode_string(key.member_id)


def decode_consumer_group(data: bytes) -> dict[str, Any]:
    """Decode the value of a group of KIP-848 or of its member; raises `MalformedRecord`."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise MalformedRecord(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedRecord("no JSON object")
    return value


def encode_offset(committed: CommittedOffset) -> bytes:
    """Encode the value; raises `ValueError` for metadata of more than 32,767 bytes."""
    return (
        _OFFSET_AND_EPOCH.pack(_OFFSET_VALUE, committed.offset, committed.leader_epoch)
        + encode_string(committed.metadata)
        + _INT64.pack(committed.timestamp)
    )


def encode_group(group: StoredGroup) -> bytes:
    """Encode the value; raises `ValueError` for a name of more than 32,767 bytes."""
    snapshot = group.snapshot
    parts = [
        _INT16.pack(_GROUP_VALUE),
        encode_string(snapshot.protocol_type),
        _INT32.pack(snapshot.generation),
        encode_string(snapshot.protocol_name),
        encode_string(snapshot.leader_id),
        _INT64.pack(group.timestamp),
        _INT32.pack(len(snapshot.members)),
    ]
    for member in snapshot.members:
        parts += (
            encode_string(member.member_id),
            encode_string(member.instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            _milliseconds(member.rebalance_timeout),
            _milliseconds(member.session_timeout),
            _bytes(member.metadata),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def decode_offsets_key(data: bytes) -> OffsetKey | GroupKey | ConsumerGroupKey:
    """Decode a key; raises `MalformedRecord`."""
    reader = RecordReader(data)
    version = reader.int16()
    if version in (0, _OFFSET_KEY):
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY:
        return GroupKey(reader.string())
    if version == _CONSUMER_GROUP_KEY:
        return ConsumerGroupKey(reader.string(), reader.nullable_string())
    raise MalformedRecord(f"unknown key version {version}")


def decode_offset(data: bytes) -> CommittedOffset:
    """Decode the value of a committed offset; raises `MalformedRecord`."""
    reader = RecordReader(data, version=_OFFSET_VALUE)
    return CommittedOffset(reader.int64(), reader.int32(), reader.string(), reader.int64())


def decode_group(data: bytes) -> StoredGroup:
    """Decode the value of a group; raises `MalformedRecord`."""
    reader = RecordReader(data, version=_GROUP_VALUE)
    protocol_type, generation = reader.string(), reader.int32()
    protocol_name, leader_id = reader.nullable_string(), reader.nullable_string()
    timestamp = reader.int64()
    members = tuple(_decode_member(reader) for _ in range(reader.int32()))
    return StoredGroup(
        GroupSnapshot(generation, protocol_type, protocol_name, leader_id, members), timestamp
    )


def _decode_member(reader: RecordReader) -> MemberSnapshot:
    member_id, instance_id = reader.string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout, session_timeout = reader.int32() / 1000, reader.int32() / 1000
    return MemberSnapshot(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        session_timeout=session_timeout,
        rebalance_timeout=rebalance_timeout,
        metadata=reader.blob(),
        assignment=reader.blob(),
    )


def _bytes(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


def _milliseconds(seconds: float) -> bytes:
    return _INT32.pack(min(round(seconds * 1000), 0x7FFFFFFF))


class OffsetEntry(NamedTuple):
    """A committed offset, and the log offset after its record: the later record wins."""

    committed: CommittedOffset
    log_end: int


def _size(entry: OffsetEntry) -> int:
    return _ENTRY_BYTES + len(entry.committed.metadata)


@dataclass(slots=True)
class _Transaction:
    producer: ProducerIdentity
    groups: defaultdict[str, dict[TopicPartition, OffsetEntry]] = field(
        default_factory=lambda: defaultdict(dict)
    )


class _PendingOffsets:
    """The offsets of open transactions by producer, which has at most one."""

    def __init__(self) -> None:
        self._by_producer: dict[int, _Transaction] = {}

    def __iter__(self) -> Iterator[tuple[ProducerIdentity, str, TopicPartition, OffsetEntry]]:
        """Iterate over all offsets with their producers and groups."""
        for transaction in self._by_producer.values():
            for group_id, entries in transaction.groups.items():
                for partition, entry in entries.items():
                    yield transaction.producer, group_id, partition, entry

    @property
    def producers(self) -> list[ProducerIdentity]:
        """The producers with pending offsets."""
        return [transaction.producer for transaction in self._by_producer.values()]

    @property
    def group_ids(self) -> set[str]:
        """The groups with pending offsets."""
        return {group_id for each in self._by_producer.values() for group_id in each.groups}

    def add(
        self,
        producer: ProducerIdentity,
        group_id: str,
        entries: Mapping[TopicPartition, OffsetEntry],
    ) -> int:
        """Add offsets to the producer's transaction; they replace older ones. Return the bytes added."""
        transaction = self._by_producer.get(producer.producer_id)
        if transaction is None:
            transaction = self._by_producer[producer.producer_id] = _Transaction(producer)
        transaction.producer = producer
        known = transaction.groups[group_id]
        before = sum(_size(known[each]) for each in entries if each in known)
        known.update(entries)
        return sum(map(_size, entries.values())) - before

    def take(self, producer_id: int) -> dict[str, dict[TopicPartition, OffsetEntry]] | None:
        """Remove and return the offsets of a transaction by group; None if it has none."""
        transaction = self._by_producer.pop(producer_id, None)
        return None if transaction is None else transaction.groups

    def holds(self, producer_id: int) -> bool:
        """Whether the producer's transaction has pending offsets."""
        return producer_id in self._by_producer

    def partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of a group with a pending offset."""
        return {
            partition
            for transaction in self._by_producer.values()
            for partition in transaction.groups.get(group_id, ())
        }

    def discard(self, group_id: str, partition: TopicPartition) -> int:
        """Remove the pending offsets of a partition from all transactions; return the bytes removed."""
        removed = 0
        for producer_id, transaction in list(self._by_producer.items()):
            entries = transaction.groups.get(group_id)
            if entries is None or partition not in entries:
                continue
            removed += _size(entries.pop(partition))
            if not entries:
                del transaction.groups[group_id]
            if not transaction.groups:
                del self._by_producer[producer_id]
        return removed


class OffsetStore:
    """The committed offsets and generations of groups, in memory and in a log.

    Changes are in the log's file when a method returns; with the `fsync` setting "always", the `async`
    methods also wait until they are on disk. All raise `LogFailed` when the disk fails; the change must
    not be acknowledged then.

    Offsets of a transaction are records of that transaction. They become committed with its commit
    marker, unless the partition has a newer record by then.
    """

    def __init__(self, log: StateLog) -> None:
        """Load the log, rewrite it if it is too large, and own it from now on.

        Raises LogError, OSError: the log is closed.
        """
        self.log = log
        """Read-only for others."""
        self.offset_bytes = 0
        """The approximate memory, in bytes, of all committed and pending offsets."""
        self._offsets: dict[str, dict[TopicPartition, OffsetEntry]] = {}
        self._groups: dict[str, StoredGroup] = {}
        self._consumer_groups: dict[str, dict[str | None, dict[str, Any]]] = {}
        self._pending = _PendingOffsets()
        log.restore(self._replay, self._append_live_records, end_transaction=self._settle)

    def close(self) -> None:
        """Sync and close the log."""
        self.log.close()

    # -- reading -------------------------------------------------------------------------------

    def group_ids(self) -> set[str]:
        """Return the groups with committed offsets, pending offsets or a generation."""
        stored = self._groups.keys() | self._consumer_groups.keys()
        return self._offsets.keys() | stored | self._pending.group_ids

    def stored_group(self, group_id: str) -> StoredGroup | None:
        """Return the newest stored generation."""
        return self._groups.get(group_id)

    def stored_consumer_group(self, group_id: str) -> dict[str | None, dict[str, Any]] | None:
        """Return the stored group of KIP-848: its members by id, and itself by None."""
        return self._consumer_groups.get(group_id)

    def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets, which may not be on disk yet; see `fetch`."""
        return {
            partition: entry.committed
            for partition, entry in self._offsets.get(group_id, {}).items()
        }

    async def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of `partitions` (None: all) that have one.

        With fsync "always" it waits until they are on disk: a client must not act on an offset that a
        power loss could revert.
        """
        known = self._offsets.get(group_id, {})
        wanted = known.keys() if partitions is None else partitions
        entries = {each: known[each] for each in wanted if each in known}
        await self.log.until_durable(max((entry.log_end for entry in entries.values()), default=0))
        return {partition: entry.committed for partition, entry in entries.items()}

    def growth(self, group_id: str, offsets: Mapping[TopicPartition, tuple[int, int, str]]) -> int:
        """Return by how much commits of (offset, leader epoch, metadata) would raise `offset_bytes`."""
        known = self._offsets.get(group_id, {})
        return sum(
            len(metadata) - len(known[at].committed.metadata)
            if at in known
            else _ENTRY_BYTES + len(metadata)
            for at, (_, _, metadata) in offsets.items()
        )

    def pending(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions with an offset in an open transaction (KIP-447)."""
        return self._pending.partitions(group_id)

    @property
    def pending_producers(self) -> list[ProducerIdentity]:
        """The producers of open transactions with pending offsets."""
        return self._pending.producers

    # -- writing -------------------------------------------------------------------------------

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Store committed offsets; return when they may be acknowledged."""
        entries, end = self._append_offsets(group_id, offsets)
        self._keep(group_id, entries)
        await self.log.until_durable(end)

    async def commit_in_transaction(
        self,
        group_id: str,
        producer: ProducerIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """Store offsets that become committed with the transaction of `producer`."""
        entries, end = self._append_offsets(group_id, offsets, producer)
        self._keep_pending(producer, group_id, entries)
        await self.log.until_durable(end)

    async def end_transaction(self, producer: ProducerIdentity, marker: Marker) -> None:
        """Commit or discard the pending offsets of `producer`, if there are any."""
        if not self._pending.holds(producer.producer_id):
            return
        end = self.log.append_marker(marker, producer)
        self._settle(producer, marker)
        await self.log.until_durable(end)

    def store_group(self, group_id: str, snapshot: GroupSnapshot) -> None:
        """Store a generation, so that its members need not rejoin after a restart."""
        stored = StoredGroup(snapshot, self.log.now_ms())
        self.log.append([NewRecord(encode_group_key(group_id), encode_group(stored))])
        self._groups[group_id] = stored

    def store_consumer_group(
        self, group_id: str, changes: Mapping[str | None, dict[str, Any] | None]
    ) -> int:
        """Store or remove (None) records of a group of KIP-848 as one batch; return the log offset after."""
        records = [
            _consumer_record(ConsumerGroupKey(group_id, each), value)
            for each, value in changes.items()
        ]
        if group_id in self._groups:  # it was a classic group
            records.append(NewRecord(encode_group_key(group_id), None))
        end = self.log.append(records)
        self._groups.pop(group_id, None)
        for member_id, value in changes.items():
            self._apply_consumer_group(ConsumerGroupKey(group_id, member_id), value)
        return end

    def remove_consumer_group(self, group_id: str) -> int:
        """Remove the records of a group of KIP-848, but not its offsets."""
        known = self._consumer_groups.get(group_id, {})
        return self.store_consumer_group(group_id, dict.fromkeys(known)) if known else 0

    def remove_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> int:
        """Remove the offsets of these partitions; return the log offset for `until_durable`."""
        known = self._offsets.get(group_id, {})
        pending = self._pending.partitions(group_id)
        gone = [each for each in partitions if each in known or each in pending]
        end = self.log.append(
            NewRecord(encode_offset_key(OffsetKey(group_id, *partition)), None)
            for partition in gone
        )
        for partition in gone:
            self._forget(group_id, partition)
        return end

    def remove_group(self, group_id: str) -> int:
        """Remove a group and its offsets; return the log offset for `until_durable`."""
        end = self.remove_offsets(group_id, self._partitions(group_id))
        if group_id in self._groups:
            end = self.log.append([NewRecord(encode_group_key(group_id), None)])
            del self._groups[group_id]
        return max(end, self.remove_consumer_group(group_id))

    def remove_topics(self, topics: Collection[str]) -> int:
        """Remove the offsets of deleted topics; return the log offset for `until_durable`."""
        end = 0
        for group_id in self.group_ids():
            gone = [each for each in self._partitions(group_id) if each[0] in topics]
            end = max(end, self.remove_offsets(group_id, gone))
        return end

    async def until_durable(self, log_offset: int) -> None:
        """Wait until a removal may be acknowledged."""
        await self.log.until_durable(log_offset)

    # -- maintenance ---------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Sync when the fsync policy requires it; rewrite the log if it is too large."""
        await self.log.maintain(self._append_live_records)

    def _append_live_records(self) -> None:
        """Append all live records; the newer of two offsets for a partition comes last."""
        self._append_pending(later=False)
        self.log.append_in_batches(
            NewRecord(encode_group_key(group_id), encode_group(stored))
            for group_id, stored in self._groups.items()
        )
        self.log.append_in_batches(
            _consumer_record(ConsumerGroupKey(group_id, member_id), value)
            for group_id, records in self._consumer_groups.items()
            for member_id, value in records.items()
        )
        self.log.append_in_batches(
            _record(group_id, partition, entry.committed)
            for group_id, entries in self._offsets.items()
            for partition, entry in entries.items()
        )
        self._append_pending(later=True)

    def _append_pending(self, *, later: bool) -> None:
        """Append pending offsets that are newer (`later`) or older than the committed one."""
        for producer, group_id, partition, entry in sorted(
            self._pending, key=lambda pending: pending[-1].log_end
        ):
            committed = self._offsets.get(group_id, {}).get(partition)
            if (committed is None or entry.log_end > committed.log_end) == later:
                self.log.append([_record(group_id, partition, entry.committed)], producer)

    def _append_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer: ProducerIdentity | None = None,
    ) -> tuple[dict[TopicPartition, OffsetEntry], int]:
        """Append offsets; return their entries, and the log offset for `until_durable`."""
        records = [_record(group_id, *each) for each in offsets.items()]
        end = self.log.append(records, producer)
        return {partition: OffsetEntry(each, end) for partition, each in offsets.items()}, end

    def _partitions(self, group_id: str) -> set[TopicPartition]:
        return self._offsets.get(group_id, {}).keys() | self._pending.partitions(group_id)

    def _keep(self, group_id: str, entries: Mapping[TopicPartition, OffsetEntry]) -> None:
        if not entries:
            return
        known = self._offsets.setdefault(group_id, {})
        for partition, entry in entries.items():
            before = known.get(partition)
            self.offset_bytes += _size(entry) - (0 if before is None else _size(before))
            known[partition] = entry

    def _keep_pending(
        self,
        producer: ProducerIdentity,
        group_id: str,
        entries: Mapping[TopicPartition, OffsetEntry],
    ) -> None:
        if entries:
            self.offset_bytes += self._pending.add(producer, group_id, entries)

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        self.offset_bytes -= self._pending.discard(group_id, partition)
        known = self._offsets.get(group_id, {})
        entry = known.pop(partition, None)
        if entry is not None:
            self.offset_bytes -= _size(entry)
        if not known:
            self._offsets.pop(group_id, None)

    def _settle(self, producer: ProducerIdentity, marker: Marker) -> None:
        pending = self._pending.take(producer.producer_id) or {}
        for group_id, entries in pending.items():
            self.offset_bytes -= sum(map(_size, entries.values()))
            known = self._offsets.get(group_id, {})
            if marker.committed:
                newer = {
                    partition: entry
                    for partition, entry in entries.items()
                    if partition not in known or known[partition].log_end < entry.log_end
                }
                self._keep(group_id, newer)

    # -- loading -------------------------------------------------------------------------------

    def _replay(self, record: StoredRecord, producer: ProducerIdentity | None) -> None:
        key = decode_offsets_key(record.key or b"")
        if isinstance(key, GroupKey):
            if record.value is None:
                self._groups.pop(key.group_id, None)
            else:
                self._groups[key.group_id] = decode_group(record.value)
            return
        if isinstance(key, ConsumerGroupKey):
            value = None if record.value is None else decode_consumer_group(record.value)
            self._apply_consumer_group(key, value)
            return
        partition = (key.topic, key.partition)
        if record.value is None:
            self._forget(key.group_id, partition)
            return
        entries = {partition: OffsetEntry(decode_offset(record.value), record.offset + 1)}
        if producer is None:
            self._keep(key.group_id, entries)
        else:
            self._keep_pending(producer, key.group_id, entries)

    def _apply_consumer_group(self, key: ConsumerGroupKey, value: dict[str, Any] | None) -> None:
        records = self._consumer_groups.setdefault(key.group_id, {})
        if value is None:
            records.pop(key.member_id, None)
        else:
            records[key.member_id] = value
        if not records:
            del self._consumer_groups[key.group_id]


def _consumer_record(key: ConsumerGroupKey, value: dict[str, Any] | None) -> NewRecord:
    encoded = None if value is None else json.dumps(value, separators=(",", ":")).encode()
    return NewRecord(encode_consumer_group_key(key), encoded)


def _record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> NewRecord:
    return NewRecord(encode_offset_key(OffsetKey(group_id, *partition)), encode_offset(committed))
