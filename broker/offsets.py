"""Committed offsets and group generations, kept in a log: the internal topic `__consumer_offsets`.

The newest record of a key holds; a tombstone removes it. All of it is in memory, the log is what
survives. A log that has grown far beyond its contents is rewritten: every live record is appended
again, then everything before is deleted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import structlog

from broker.log.partition import PartitionLog
from broker.offset_records import (
    CommittedOffset,
    GroupKey,
    MalformedRecord,
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
from broker.records import NewRecord, build_batch, parse_header, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from broker.log.config import LogConfig
    from broker.membership.types import GroupSnapshot

__all__ = ["OFFSETS_TOPIC", "CommittedOffset", "OffsetStore", "Partition"]

OFFSETS_TOPIC: Final = "__consumer_offsets"
_READ_BYTES: Final = 1024 * 1024
_RECORDS_PER_BATCH: Final = 1000
_REWRITE_FACTOR: Final = 4

Partition = tuple[str, int]
"""Topic and partition."""

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A committed offset and the log offset after its record."""

    committed: CommittedOffset
    log_end: int


class OffsetStore:
    """What groups committed, in memory and in a log.

    Changes are in the log's file when the method that made them returns; the `async` ones also wait
    until it is on disk when the log's `fsync` setting is "always". All of them raise `LogFailed` when
    the disk fails; then nothing may be acknowledged.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        rewrite_bytes: int = 8 * 1024 * 1024,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take over an open log without reading it; use `open`."""
        self._log = log
        self._rewrite_bytes = rewrite_bytes
        self._live_bytes = 0
        self._now = now
        self._offsets: dict[str, dict[Partition, _Entry]] = {}
        self._groups: dict[str, StoredGroup] = {}
        self._syncing = anyio.Lock()

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        clean: bool,
        rewrite_bytes: int = 8 * 1024 * 1024,
        now: Callable[[], float] = time.time,
    ) -> OffsetStore:
        """Open or create the log in `directory`, load it, and rewrite it if it has grown too large.

        `config` is the broker's for topics; retention does not apply here. `clean` is False after a
        kill or a power loss. The log is rewritten beyond `rewrite_bytes` and four times its live
        contents. Raises `LogCorrupt`, `LogFailed`, OSError.
        """
        config = replace(config, retention_ms=-1, retention_bytes=-1)
        store = cls(
            PartitionLog.open(directory, config, clean=clean), rewrite_bytes=rewrite_bytes, now=now
        )
        try:
            store._load()
            if store.should_rewrite:
                start = store._append_live_records()
                store._log.fsync()
                store._log.truncate_start(start)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Sync and close the log."""
        self._log.close()

    # -- reading -------------------------------------------------------------------------------

    def group_ids(self) -> set[str]:
        """Groups that have offsets or a generation."""
        return self._offsets.keys() | self._groups.keys()

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
        await self._make_durable(max((entry.log_end for entry in entries.values()), default=0))
        return {partition: entry.committed for partition, entry in entries.items()}

    # -- writing -------------------------------------------------------------------------------

    async def commit(self, group_id: str, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Store what a group committed; returns when it may be acknowledged."""
        if not offsets:
            return
        end = self._append(
            NewRecord(encode_offset_key(OffsetKey(group_id, *partition)), encode_offset(committed))
            for partition, committed in offsets.items()
        )
        self._offsets.setdefault(group_id, {}).update(
            (partition, _Entry(committed, end)) for partition, committed in offsets.items()
        )
        await self._make_durable(end)

    def store_group(self, group_id: str, snapshot: GroupSnapshot) -> None:
        """Store a generation, so that its members can go on after a restart."""
        stored = StoredGroup(snapshot, self._now_ms())
        self._append([NewRecord(encode_group_key(group_id), encode_group(stored))])
        self._groups[group_id] = stored

    def remove_offsets(self, group_id: str, partitions: Collection[Partition]) -> int:
        """Forget what a group committed for these partitions; returns the log offset to wait for."""
        known = self._offsets.get(group_id, {})
        gone = [each for each in partitions if each in known]
        if not gone:
            return 0
        end = self._append(
            NewRecord(encode_offset_key(OffsetKey(group_id, *partition)), None)
            for partition in gone
        )
        for partition in gone:
            del known[partition]
        if not known:
            del self._offsets[group_id]
        return end

    def remove_group(self, group_id: str) -> int:
        """Forget a group and all that it committed; returns the log offset to wait for."""
        end = self.remove_offsets(group_id, tuple(self._offsets.get(group_id, ())))
        if group_id in self._groups:
            end = self._append([NewRecord(encode_group_key(group_id), None)])
            del self._groups[group_id]
        return end

    def remove_topics(self, topics: Collection[str]) -> int:
        """Forget all that was committed for deleted topics; returns the log offset to wait for."""
        end = 0
        for group_id in tuple(self._offsets):
            gone = [each for each in self._offsets[group_id] if each[0] in topics]
            end = max(end, self.remove_offsets(group_id, gone))
        return end

    async def until_durable(self, log_offset: int) -> None:
        """Wait until a removal may be acknowledged."""
        await self._make_durable(log_offset)

    # -- maintenance ---------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Sync when the fsync policy says so, rewrite when the log is too large."""
        if self._log.fsync_due:
            await self._sync()
        if self.should_rewrite:
            start = self._append_live_records()
            await self._sync()
            self._log.truncate_start(start)

    @property
    def should_rewrite(self) -> bool:
        """Whether most of the log is history."""
        live = self._live_bytes * _REWRITE_FACTOR
        return self._log.size_bytes > max(self._rewrite_bytes, live)

    def _append_live_records(self) -> int:
        """Append all that is live to a new segment; the log before the returned offset is history."""
        self._log.roll()
        start = self._log.next_offset
        before = self._log.size_bytes
        live = self._live_records()
        while chunk := list(islice(live, _RECORDS_PER_BATCH)):
            self._append(chunk)
        self._live_bytes = self._log.size_bytes - before
        return start

    def _live_records(self) -> Iterator[NewRecord]:
        for group_id, stored in self._groups.items():
            yield NewRecord(encode_group_key(group_id), encode_group(stored))
        for group_id, entries in self._offsets.items():
            for partition, entry in entries.items():
                key = encode_offset_key(OffsetKey(group_id, *partition))
                yield NewRecord(key, encode_offset(entry.committed))

    def _append(self, records: Iterable[NewRecord]) -> int:
        """Write one batch; returns the log offset after it."""
        now = self._now_ms()
        batch = build_batch(record._replace(timestamp=now) for record in records)
        self._log.append(batch, [parse_header(batch)], now_ms=now)
        self._log.flush_pending()
        return self._log.next_offset

    async def _make_durable(self, log_offset: int) -> None:
        if self._log.config.fsync != "always":
            return
        while self._log.durable_offset < log_offset:
            await self._sync()

    async def _sync(self) -> None:
        """Sync in a thread; who comes meanwhile shares the next one."""
        target = self._log.next_offset
        async with self._syncing:
            if self._log.durable_offset < target:
                await anyio.to_thread.run_sync(self._log.fsync)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    # -- loading -------------------------------------------------------------------------------

    def _load(self) -> None:
        at, unreadable = self._log.log_start_offset, 0
        while at < self._log.next_offset:
            span = self._log.read(at, _READ_BYTES, min_one=True)
            position = 0
            while position < len(span.data):
                header = parse_header(span.data, position)
                for record in read_records(span.data, header):
                    unreadable += not self._replay(record.key, record.value, record.offset + 1)
                position = header.end
            at = span.next_offset
        if unreadable:
            logger.warning(
                "offsets_records_skipped", records=unreadable, directory=str(self._log.directory)
            )

    def _replay(self, key: bytes | None, value: bytes | None, log_end: int) -> bool:
        """Apply one record; false if a newer version must have written it."""
        try:
            decoded = decode_key(key or b"")
            if isinstance(decoded, GroupKey):
                self._replay_group(decoded.group_id, value)
            else:
                self._replay_offset(decoded, value, log_end)
        except MalformedRecord:
            return False
        return True

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            self._groups.pop(group_id, None)
        else:
            self._groups[group_id] = decode_group(value)

    def _replay_offset(self, key: OffsetKey, value: bytes | None, log_end: int) -> None:
        entries = self._offsets.setdefault(key.group_id, {})
        if value is None:
            entries.pop((key.topic, key.partition), None)
        else:
            entries[key.topic, key.partition] = _Entry(decode_offset(value), log_end)
        if not entries:
            del self._offsets[key.group_id]
