"""Log compaction: keep only the latest record of each key (cleanup.policy=compact).

A pass reads the closed segments of a log twice: first those that no pass has read, to learn the latest
offset of each key; then all of them, to leave out records that a later one replaces. It never touches the
active segment or records of an open transaction. `plan_compaction` runs in the event loop. A `Compaction`
runs in a thread, or for large logs in a process (`compaction_process.py`), on files that nothing else writes;
`PartitionLog.replacement` then swaps its result in.

- A tombstone (a record without a value) stays for `delete.retention.ms` after its key's older records are
  gone, so that consumers that are behind see the deletion.
- Records of aborted transactions go. Markers stay: consumers need them to recognise an aborted transaction.
- A record without a key goes, because no later record could replace it.
- A batch that cannot be decoded stays as it is.
"""

from __future__ import annotations

import bisect
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from .durable_files import read_sealed, write_sealed
from .log_config import NO_TIME_LIMIT
from .records import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchError,
    BatchHeader,
    encode_batch,
    parse_header,
    read_records,
    with_codec,
)
from .results import LogCorrupt
from .segment import Segment, SegmentIndex
from .swap import swap_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .log_config import LogConfig
    from .partition import PartitionLog
    from .producers import AbortedTransaction
    from .records import StoredRecord

COMPACTION_FILE: Final = "compaction"
MAX_KEYS: Final = 1_000_000
"""Keys after which a pass reads no further batch, about 200 bytes each; the next pass goes on there."""
_DIGEST_BYTES: Final = 16
_MAGIC: Final = 2
_NO_LIMIT: Final = 2**31 - 1
_MAX_DELTA: Final = 2**31 - 1


class Horizon(msgspec.Struct, frozen=True):
    """One pass of compaction.

    Attributes:
        end_offset: the pass was the first to read the records below this, from the previous pass's
            `end_offset` on.
        since_ms: time of the pass; the older records of their keys are gone since then.
        tombstones: number of its tombstones that are still in the log.
    """

    end_offset: int
    since_ms: int
    tombstones: int


class CompactionState(msgspec.Struct, frozen=True):
    """Progress of earlier passes; the file `compaction` in the log's directory.

    Attributes:
        clean_to: every key below this offset has one record below it.
        horizons: the passes with tombstones, ordered by offset.
    """

    clean_to: int = 0
    horizons: tuple[Horizon, ...] = ()

    @classmethod
    def load(cls, directory: Path) -> CompactionState:
        """Return the state of the log in `directory`; the initial one if the file is missing or damaged."""
        try:
            payload = read_sealed(directory / COMPACTION_FILE)
            return cls() if payload is None else msgspec.json.decode(payload, type=cls)
        except (LogCorrupt, msgspec.MsgspecError):
            return cls()

    def save(self, directory: Path) -> None:
        """Replace the file durably. Raises OSError."""
        write_sealed(directory / COMPACTION_FILE, msgspec.json.encode(self), durable=True)

    def expired_tombstones_end(self, now_ms: int, retention_ms: int) -> int:
        """Return the offset below which tombstones have been visible for `retention_ms`; 0: none have."""
        return max(
            (each.end_offset for each in self.horizons if each.since_ms + retention_ms <= now_ms),
            default=0,
        )

    def after_pass(self, clean_to: int, tombstones: Sequence[int], now_ms: int) -> CompactionState:
        """Return the state after a pass that left tombstones at these offsets (ascending)."""
        counted, first = [], 0
        for horizon in (*self.horizons, Horizon(clean_to, now_ms, 0)):
            last = bisect.bisect_left(tombstones, horizon.end_offset)
            if last > first:
                counted.append(Horizon(horizon.end_offset, horizon.since_ms, last - first))
            first = max(first, last)
        return CompactionState(clean_to, tuple(counted))


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is complete: offsets `base_offset` to `end_offset` (exclusive)."""

    path: Path
    base_offset: int
    end_offset: int
    size: int


Group = tuple[ClosedSegment, ...]
"""Neighbouring segments that become one."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The work of one pass.

    Attributes:
        directory: the log's.
        segments: the closed segments that may be compacted, oldest first.
        log_start_offset: records below are already deleted.
        state: progress of earlier passes.
        tombstones_end: tombstones below this offset go.
        aborted: the aborted transactions in these segments.
        producers: ids of producers that may still send: their last sequence must be kept.
        config: the log's settings.
    """

    directory: Path
    segments: Sequence[ClosedSegment]
    log_start_offset: int
    state: CompactionState
    tombstones_end: int
    aborted: Sequence[AbortedTransaction]
    producers: frozenset[int]
    config: LogConfig

    @property
    def groups(self) -> Iterator[Group]:
        """Yield the segments, joined as long as a group does not exceed `segment_bytes`."""
        group: list[ClosedSegment] = []
        for segment in self.segments:
            if group and sum(s.size for s in group) + segment.size > self.config.segment_bytes:
                yield tuple(group)
                group = []
            group.append(segment)
        if group:
            yield tuple(group)


def plan_compaction(log: PartitionLog, now_ms: int) -> CompactionPlan | None:
    """Return the pass that the log needs now (milliseconds since the epoch), None if it needs none.

    A pass is due when the share of unread bytes exceeds `min.cleanable.dirty.ratio`, when an unread record
    is older than `max.compaction.lag.ms`, or when a tombstone is older than `delete.retention.ms`.
    """
    state = CompactionState.load(log.directory)
    segments, overdue = _compactable(log, state.clean_to, now_ms)
    if not segments:
        return None
    config = log.config
    new_bytes = sum(each.size for each in segments if each.end_offset > state.clean_to)
    ratio = new_bytes / sum(each.size for each in segments)
    tombstones_end = state.expired_tombstones_end(now_ms, config.delete_retention_ms)
    if ratio <= config.min_cleanable_dirty_ratio and not overdue and not tombstones_end:
        return None
    start, end = segments[0].base_offset, segments[-1].end_offset
    return CompactionPlan(
        directory=log.directory,
        segments=tuple(segments),
        log_start_offset=log.log_start_offset,
        state=state,
        tombstones_end=tombstones_end,
        aborted=tuple(log.producers.aborted.between(start, end)),
        producers=frozenset(log.producers.ids),
        config=config,
    )


def _compactable(log: PartitionLog, clean_to: int, now_ms: int) -> tuple[list[ClosedSegment], bool]:
    """Return the segments that a pass may rewrite, and whether one is overdue because of its age."""
    config = log.config
    found: list[ClosedSegment] = []
    overdue = False
    for segment in log.segments():
        end = segment.end_offset
        if end is None or end > log.last_stable_offset:
            break  # the active segment, or records of an open transaction
        lag = config.min_compaction_lag_ms
        if lag and segment.newest_ms() > now_ms - lag:
            break
        first_new = end > clean_to and (not found or found[-1].end_offset <= clean_to)
        if first_new and config.max_compaction_lag_ms < NO_TIME_LIMIT:
            overdue = segment.first_timestamp(now_ms) < now_ms - config.max_compaction_lag_ms
        found.append(ClosedSegment(segment.path, segment.base_offset, end, segment.size))
    return found, overdue


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The compacted form of a group, written to `swap_source` and synced."""

    group: Group
    index: SegmentIndex
    size: int


class Stopped(Exception):
    """The pass was asked to stop, because the broker stops or the log is deleted. Nothing has changed."""


class Compaction:
    """One pass over a log; all methods read files and belong into a thread or a process.

    Calls: `read_keys` once, then `rewrite` for each of `CompactionPlan.groups` in order.

    Attributes:
        clean_to: offset at which the next pass begins to read keys.
        tombstones: ascending offsets of the tombstones left in the rewritten groups.
    """

    def __init__(
        self,
        plan: CompactionPlan,
        *,
        max_keys: int = MAX_KEYS,
        stopped: Callable[[], bool] = lambda: False,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Before each batch `beat` is called, and `stopped`: True ends the pass."""
        self.plan = plan
        self.clean_to = plan.state.clean_to
        self.tombstones: list[int] = []
        self._max_keys = max_keys
        self._stopped = stopped
        self._beat = beat
        self._latest: dict[bytes, int] = {}
        self._last_of_producer: dict[int, int] = {}
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for each in plan.aborted:
            ranges = self._aborted.setdefault(each.producer_id, [])
            ranges.append((each.first_offset, each.last_offset))

    def read_keys(self) -> None:
        """Learn the latest offset of each key in the records that no pass has read.

        Raises:
            Stopped: `stopped` returned True.
            LogCorrupt: a segment is damaged.
            OSError: the disk failed.
        """
        for segment in self.plan.segments:
            new = segment.end_offset > self.plan.state.clean_to
            if new or self.plan.producers:
                for header, data in self._batches(segment, content=new):
                    self._learn(header, data)

    def _learn(self, header: BatchHeader, data: memoryview) -> None:
        if header.producer_id in self.plan.producers and not header.is_control:
            self._last_of_producer[header.producer_id] = header.base_offset
        if header.next_offset <= self.clean_to or len(self._latest) >= self._max_keys:
            return
        if not header.is_control and not self._is_aborted(header):
            for record in self._records(data) or ():
                if record.key is not None:
                    self._latest[_digest(record.key)] = record.offset
        self.clean_to = header.next_offset

    def rewrite(self, group: Group) -> Rewritten | None:
        """Write the compacted group to `swap_source` and sync it; None if nothing would change.

        Raises the same errors as `read_keys`.
        """
        if len(group) == 1 and group[0].base_offset >= self.clean_to:
            return None  # `read_keys` stopped before it, at `max_keys`
        path = swap_source(self.plan.directory, group[0].base_offset)
        try:
            with path.open("wb") as file:
                interval = self.plan.config.index_interval_bytes
                writer = _SegmentWriter(file.write, group[0].base_offset, interval)
                changed = len(group) > 1
                for segment in group:
                    for header, data in self._batches(segment):
                        changed |= self._keep(header, data, writer)
                writer.fill_gap(group[-1].end_offset)
                if changed:
                    file.flush()
                    newest = group[-1].path.stat()
                    os.utime(file.fileno(), ns=(newest.st_atime_ns, newest.st_mtime_ns))
                    os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        if not changed:
            path.unlink()
            return None
        return Rewritten(group, writer.index, writer.size)

    def _keep(self, header: BatchHeader, data: memoryview, writer: _SegmentWriter) -> bool:
        """Write the records of a batch that stay; return whether any were left out."""
        untouched = header.is_control or header.base_offset >= self.clean_to
        records = None if untouched else self._records(data)
        if records is None:
            writer.write(data)
            return False
        counts = not self._is_aborted(header)
        kept = [record for record in records if counts and self._stays(record)]
        self.tombstones += (record.offset for record in kept if record.value is None)
        if kept and len(kept) == len(records):
            writer.write(data)
            return False
        if kept:
            writer.write(with_records(header, kept))
        elif self._last_of_producer.get(header.producer_id) == header.base_offset:
            writer.write(without_records(header))
            return bool(records)
        elif header.producer_id < 0 and not records:
            return False  # from an earlier pass; the writer fills the gap again
        return True

    def _stays(self, record: StoredRecord) -> bool:
        if record.offset < self.plan.log_start_offset or record.key is None:
            return False
        if record.value is None and record.offset < self.plan.tombstones_end:
            return False
        return self._latest.get(_digest(record.key), -1) <= record.offset

    def _records(self, batch: memoryview) -> list[StoredRecord] | None:
        """Return the records of one batch; None if a client produced a batch that cannot be decoded."""
        try:
            most_bytes = self.plan.config.max_uncompressed_bytes
            return read_records(batch, parse_header(batch), most_bytes)
        except BatchError:
            return None

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            first <= header.base_offset <= last
            for first, last in self._aborted.get(header.producer_id, ())
        )

    def _batches(
        self, segment: ClosedSegment, *, content: bool = True
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield each header with its whole batch, or with nothing if not `content`."""
        opened = Segment(segment.path, segment.base_offset, segment.size, 0)
        opened.end_offset = segment.end_offset
        try:
            for header in opened.batches(0, segment.base_offset, verify=content):
                self._beat()
                if self._stopped():
                    raise Stopped
                yield header, opened.batch_bytes(header) if content else memoryview(b"")
        finally:
            opened.release()


class _SegmentWriter:
    """Write batches in order, and fill gaps between their offsets with empty batches."""

    def __init__(
        self, write: Callable[[bytearray | memoryview], object], base_offset: int, interval: int
    ) -> None:
        self.index = SegmentIndex(base_offset)
        self.size = 0
        self._write = write
        self._next_offset = base_offset
        self._interval = interval

    def write(self, batch: bytearray | memoryview) -> None:
        """Write a batch, after filling the gap before it."""
        header = parse_header(batch)
        self.fill_gap(header.base_offset)
        self._put(header, batch)

    def fill_gap(self, end_offset: int) -> None:
        """Write empty batches up to `end_offset` (exclusive)."""
        for batch in empty_batches(self._next_offset, end_offset):
            self._put(parse_header(batch), batch)

    def _put(self, header: BatchHeader, batch: bytearray | memoryview) -> None:
        timestamp = NO_TIMESTAMP if header.is_control else header.max_timestamp
        self.index.add(header.base_offset, self.size, timestamp, self._interval)
        self._write(batch)
        self.size += header.size
        self._next_offset = header.next_offset


def _digest(key: bytes) -> bytes:
    """Return 16 bytes instead of the key, to save memory; a collision is practically impossible."""
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


def with_records(header: BatchHeader, records: Sequence[StoredRecord]) -> bytearray:
    """Return the batch with only these of its records (at least one), in its own codec."""
    from .aiokafka_parts import DefaultRecordBatchBuilder

    base = records[0].timestamp
    builder = DefaultRecordBatchBuilder(_MAGIC, 0, False, NO_PRODUCER_ID, -1, -1, _NO_LIMIT)  # noqa: FBT003
    for record in records:
        builder.append(
            record.offset - header.base_offset,
            _difference(record.timestamp, base),
            record.key,
            record.value,
            list(record.headers),
        )
    body = memoryview(builder.build())[HEADER_BYTES:]
    fewer = msgspec.structs.replace(
        header,
        record_count=len(records),
        base_timestamp=base,
        max_timestamp=(
            header.max_timestamp
            if header.timestamp_type
            else max(record.timestamp for record in records)
        ),
    )
    return encode_batch(fewer, body)


def _difference(timestamp: int, base: int) -> int:
    """Return the difference that a batch stores: a reader adds it to the base in 64 bits, with overflow."""
    return (timestamp - base + 2**63) % 2**64 - 2**63


def without_records(header: BatchHeader) -> bytearray:
    """Return the batch without records; its header keeps the producer's epoch and sequence."""
    empty = msgspec.structs.replace(
        with_codec(header, 0),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return encode_batch(empty, b"")


def empty_batches(first_offset: int, next_offset: int) -> Iterator[bytearray]:
    """Yield batches without records for the offsets `first_offset` to `next_offset` (exclusive)."""
    while first_offset < next_offset:
        delta = min(next_offset - 1 - first_offset, _MAX_DELTA)
        header = BatchHeader(base_offset=first_offset, last_offset_delta=delta)
        yield encode_batch(header, b"")
        first_offset += delta + 1
