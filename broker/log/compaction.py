"""Log compaction: of each key only the latest record stays (cleanup.policy=compact).

A pass reads the closed segments of a log twice: first those that no pass has seen, to learn the latest
offset of each key; then all of them, to leave out what has a later record. It never touches the active
segment, nor anything that belongs to an open transaction. A `Plan` is made in the event loop; everything
else here works on files that nobody writes to, in a thread, and changes nothing: `PartitionLog` puts the
result in place.

A tombstone (a record without a value) stays for `delete.retention.ms` after its key's older records are
gone, so that consumers which are behind learn of the deletion. Records of aborted transactions go; markers
stay, because consumers need them to tell what was aborted. A record without a key goes: nobody could ever
replace it. What cannot be decoded stays as it is.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.log.compaction_batches import empty_batches, with_records, without_records
from broker.log.compaction_swap import swap_source
from broker.log.index import SegmentIndex
from broker.log.segment import Segment
from broker.records import NO_TIMESTAMP, BatchError, parse_header, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from broker.log.compaction_state import CompactionState
    from broker.producers.aborted import AbortedTransaction
    from broker.records import BatchHeader, StoredRecord

__all__ = ["ClosedSegment", "Compaction", "Group", "Plan", "Rewritten", "Stopped"]

MAX_KEYS: Final = 1_000_000
"""Keys that a pass remembers, about 150 bytes each; what comes after them is left to the next pass."""
_DIGEST_BYTES: Final = 16


class Stopped(Exception):
    """The broker stops, or the log is being deleted: the pass ends, and nothing has changed."""


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is no longer written to: offsets `base_offset` to `end_offset` (exclusive)."""

    path: Path
    base_offset: int
    end_offset: int
    size: int


Group = tuple[ClosedSegment, ...]
"""Neighbours that become one segment."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass works on.

    Attributes:
        directory: the log's.
        segments: all closed ones from the oldest on that may be compacted.
        log_start_offset: records below are deleted already.
        state: what earlier passes have done.
        tombstones_end: tombstones below this offset go.
        aborted: the transactions in these segments whose records do not count.
        producers: ids of those that may still send: their last sequence must not be forgotten.
        segment_bytes: how large the new segments may be.
        index_interval_bytes: for their indexes.
    """

    directory: Path
    segments: Sequence[ClosedSegment]
    log_start_offset: int
    state: CompactionState
    tombstones_end: int
    aborted: Sequence[AbortedTransaction]
    producers: frozenset[int]
    segment_bytes: int
    index_interval_bytes: int

    @property
    def groups(self) -> Iterator[Group]:
        """The segments, put together while they do not exceed the size of one."""
        group: list[ClosedSegment] = []
        for segment in self.segments:
            if group and sum(s.size for s in group) + segment.size > self.segment_bytes:
                yield tuple(group)
                group = []
            group.append(segment)
        if group:
            yield tuple(group)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A group in its new form, written to `swap_source` and synced."""

    group: Group
    index: SegmentIndex
    size: int


class Compaction:
    """One pass; all of it may take long, and runs in a thread."""

    def __init__(
        self, plan: Plan, *, max_keys: int = MAX_KEYS, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """`stopped` is asked before each batch."""
        self.plan = plan
        self.clean_to = plan.state.clean_to
        """Where the next pass begins."""
        self.tombstones: list[int] = []
        """Offsets of those that are left in the groups that were rewritten, ascending."""
        self._max_keys = max_keys
        self._stopped = stopped
        self._latest: dict[bytes, int] = {}
        self._last_of_producer: dict[int, int] = {}
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for each in plan.aborted:
            ranges = self._aborted.setdefault(each.producer_id, [])
            ranges.append((each.first_offset, each.last_offset))

    def read_keys(self) -> None:
        """Learns the latest offset of each key that no pass has seen.

        Raises:
            Stopped: the pass is to end.
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
            for record in _records(data) or ():
                if record.key is not None:
                    self._latest[_digest(record.key)] = record.offset
        self.clean_to = header.next_offset

    def rewrite(self, group: Group) -> Rewritten | None:
        """Writes what stays of a group to `swap_source`, synced; None if nothing would change.

        Groups are given in their order. Raises as `read_keys`.
        """
        if len(group) == 1 and group[0].base_offset >= self.clean_to:
            return None  # this pass has not come so far
        path = swap_source(self.plan.directory, group[0].base_offset)
        try:
            with path.open("wb") as file:
                writer = _Writer(file.write, group[0].base_offset, self.plan.index_interval_bytes)
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

    def _keep(self, header: BatchHeader, data: memoryview, writer: _Writer) -> bool:
        """Writes what stays of a batch; whether that is less than there was."""
        if header.is_control or header.base_offset >= self.clean_to:
            writer.write(data)
            return False
        records = _records(data)
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
            return False  # a run of offsets without records, as the writer makes them
        return True

    def _stays(self, record: StoredRecord) -> bool:
        if record.offset < self.plan.log_start_offset or record.key is None:
            return False
        if record.value is None and record.offset < self.plan.tombstones_end:
            return False
        return self._latest.get(_digest(record.key), -1) <= record.offset

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            first <= header.base_offset <= last
            for first, last in self._aborted.get(header.producer_id, ())
        )

    def _batches(
        self, segment: ClosedSegment, *, content: bool = True
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Each batch with its header; without its `content` where only headers are looked at."""
        opened = Segment(segment.path, segment.base_offset, segment.size, 0)
        opened.end_offset = segment.end_offset
        try:
            for header in opened.batches(0, segment.base_offset, verify=content):
                if self._stopped():
                    raise Stopped
                yield header, opened.batch_bytes(header) if content else memoryview(b"")
        finally:
            opened.release()


class _Writer:
    """Writes batches one after another, with batches without records in the gaps."""

    def __init__(
        self, write: Callable[[bytearray | memoryview], object], base_offset: int, interval: int
    ) -> None:
        self.index = SegmentIndex(base_offset)
        self.size = 0
        self._write = write
        self._next_offset = base_offset
        self._interval = interval

    def write(self, batch: bytearray | memoryview) -> None:
        header = parse_header(batch)
        self.fill_gap(header.base_offset)
        self._put(header, batch)

    def fill_gap(self, end_offset: int) -> None:
        for batch in empty_batches(self._next_offset, end_offset):
            self._put(parse_header(batch), batch)

    def _put(self, header: BatchHeader, batch: bytearray | memoryview) -> None:
        timestamp = NO_TIMESTAMP if header.is_control else header.max_timestamp
        self.index.add(header.base_offset, self.size, timestamp, self._interval)
        self._write(batch)
        self.size += header.size
        self._next_offset = header.next_offset


def _records(batch: memoryview) -> list[StoredRecord] | None:
    """Those of one batch; None if a client has sent what nobody can decode."""
    try:
        return read_records(batch, parse_header(batch))
    except BatchError:
        return None


def _digest(key: bytes) -> bytes:
    """Keys of any length take little room; two with the same digest are not to be expected."""
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
