"""One file of a log: consecutive record batches, and their sparse index.

The index leads from offsets and timestamps to the position at which a read begins. Its two files, `.index`
and `.timeindex`, are written when the segment is complete or the log is closed. They can be rebuilt from the
segment, so a missing, damaged or outdated one does no harm.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from crc32c import crc32c

from .durable_files import read_sealed, write_sealed
from .records import (
    CRC_START,
    HEADER_BYTES,
    LEADER_EPOCH,
    NO_TIMESTAMP,
    BatchError,
    CorruptBatch,
    StoredRecord,
    check_batch,
    parse_header,
    read_records,
    whole_batches,
)
from .results import LogCorrupt, ReadSpan, SegmentGone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .disk_work import DiskWork
    from .records import BatchHeader


LOG_SUFFIX: Final = ".log"
INDEX_SUFFIXES: Final = (".index", ".timeindex")
UNKNOWN_TIMESTAMP: Final = 2**63 - 1
"""Latest timestamp of a damaged segment, whose unreadable part may have any timestamp."""
_ENTRY: Final = struct.Struct(">qq")
_SEGMENT: Final = struct.Struct(">qqq")  # base offset, next offset, bytes of the indexed segment
_SCAN_BYTES: Final = 1024 * 1024
_SEEK_BYTES: Final = 64 * 1024
_MAX_BUFFERS: Final = 1024  # IOV_MAX of Linux
_MAX_ENDS: Final = 64


def segment_path(directory: Path, base_offset: int) -> Path:
    """Return the file of the segment whose first offset is `base_offset`, named as in Kafka."""
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


class _SparseTable:
    """Pairs of integers whose first element strictly increases; 16 bytes each."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def append(self, key: int, value: int) -> None:
        self.data += _ENTRY.pack(key, value)

    def cut(self, size: int) -> None:
        """Remove the pairs after the first `size` bytes."""
        del self.data[size:]

    def floor(self, key: int) -> tuple[int, int] | None:
        """Return the pair with the greatest first element that is not above `key`."""
        count = len(self.data) // _ENTRY.size
        at = bisect.bisect_right(range(count), key, key=lambda i: self._pair(i)[0])
        return self._pair(at - 1) if at else None

    def last(self) -> tuple[int, int] | None:
        return self._pair(len(self.data) // _ENTRY.size - 1) if self.data else None

    def pairs(self) -> list[tuple[int, int]]:
        return [self._pair(at) for at in range(len(self.data) // _ENTRY.size)]

    def _pair(self, index: int) -> tuple[int, int]:
        key, value = _ENTRY.unpack_from(self.data, index * _ENTRY.size)
        return key, value


IndexEnd: TypeAlias = tuple[int, int, int, int, int]
"""A state of an index, to which `SegmentIndex.cut` returns it."""


class SegmentIndex:
    """Entries every few kilobytes of a segment: offset -> position, and timestamp -> offset.

    An entry `(timestamp, offset)` says that no batch before `offset` has a later timestamp.
    """

    def __init__(self, base_offset: int, offsets: bytes = b"", times: bytes = b"") -> None:
        self._base_offset = base_offset
        self._offsets = _SparseTable(offsets)
        self._times = _SparseTable(times)
        last_offset, last_time = self._offsets.last(), self._times.last()
        self._indexed_position = last_offset[1] if last_offset else 0
        self._indexed_timestamp = last_time[0] if last_time else -1
        self.max_timestamp = self._indexed_timestamp
        """Latest timestamp of the segment's batches, -1 if none has one."""

    def add(self, offset: int, position: int, timestamp: int, interval_bytes: int) -> None:
        """Note the next batch; `timestamp` is its latest."""
        if position - self._indexed_position > interval_bytes:
            self.mark(offset, position)
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    def mark(self, offset: int, position: int) -> None:
        """Add an entry: the batch at `position` begins with `offset`."""
        self._offsets.append(offset, position)
        self._indexed_position = position
        self._add_time(offset)

    def end(self) -> IndexEnd:
        """Return the state after the batches that were added so far."""
        return (
            len(self._offsets.data),
            len(self._times.data),
            self._indexed_position,
            self._indexed_timestamp,
            self.max_timestamp,
        )

    def cut(self, end: IndexEnd) -> None:
        """Forget the batches that were added since `end`."""
        offsets, times, self._indexed_position, self._indexed_timestamp, self.max_timestamp = end
        self._offsets.cut(offsets)
        self._times.cut(times)

    def entries(self) -> list[tuple[int, int]]:
        """Return `(offset, position)` of all entries."""
        return self._offsets.pairs()

    def position_before(self, offset: int) -> tuple[int, int]:
        """Return `(offset, position)` of the last entry that does not begin after `offset`."""
        return self._offsets.floor(offset) or (self._base_offset, 0)

    def offset_before(self, timestamp: int) -> int:
        """Return an offset before which no record has this timestamp or a later one."""
        entry = self._times.floor(timestamp - 1)
        return entry[1] if entry else self._base_offset

    def save(self, log_path: Path, *, log_size: int, next_offset: int) -> None:
        """Write both files; the segment has `log_size` bytes and ends before `next_offset`."""
        self._add_time(next_offset)
        segment = _SEGMENT.pack(self._base_offset, next_offset, log_size)
        for suffix, table in zip(INDEX_SUFFIXES, (self._offsets, self._times), strict=True):
            write_sealed(log_path.with_suffix(suffix), segment + table.data, durable=False)

    @classmethod
    def load(
        cls, log_path: Path, base_offset: int, *, log_size: int, next_offset: int
    ) -> SegmentIndex | None:
        """Return the saved index, None unless it belongs to a segment of exactly this size and end."""
        tables, segment = [], _SEGMENT.pack(base_offset, next_offset, log_size)
        for suffix in INDEX_SUFFIXES:
            try:
                payload = read_sealed(log_path.with_suffix(suffix))
            except LogCorrupt:
                return None
            if payload is None or not payload.startswith(segment):
                return None
            tables.append(payload[_SEGMENT.size :])
        return cls(base_offset, *tables)

    def _add_time(self, offset: int) -> None:
        if self.max_timestamp > self._indexed_timestamp:
            self._times.append(self.max_timestamp, offset)
            self._indexed_timestamp = self.max_timestamp


class Segment:
    """One file of a log; its file is opened and its index loaded at the first use.

    Attributes:
        base_offset: offset of the first record.
        size: bytes that hold batches; the file may be longer after a failed write.
        end_offset: base offset of the next segment; None for the active one.
        verified_from: this process has written or checked the batches from this position on. Reads below
            check CRCs, because the disk may have lost data since.
    """

    def __init__(self, path: Path, base_offset: int, size: int, index_interval_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size = size
        self.end_offset: int | None = None
        self.verified_from = size
        self._index_interval_bytes = index_interval_bytes
        self._index: SegmentIndex | None = None
        self._descriptor: int | None = None
        self._is_gone = False  # another segment may have the path
        self._max_timestamp: int | None = None
        # Positions at which reads ended, by offset: a consumer continues there without a search.
        self._ends: dict[int, int] = {}

    @classmethod
    def create(cls, directory: Path, base_offset: int, index_interval_bytes: int) -> Segment:
        """Create an empty segment; raises FileExistsError if its file exists."""
        path = segment_path(directory, base_offset)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        segment = cls(path, base_offset, 0, index_interval_bytes)
        segment._descriptor = descriptor
        segment._index = SegmentIndex(base_offset)
        return segment

    @property
    def index(self) -> SegmentIndex:
        """The sparse index, loaded or rebuilt at its first use."""
        if self._index is None and self.end_offset is not None:
            self._index = SegmentIndex.load(
                self.path, self.base_offset, log_size=self.size, next_offset=self.end_offset
            )
        if self._index is None:
            self._index = SegmentIndex(self.base_offset)
            self._rebuild_index(self._index)
        return self._index

    @property
    def max_timestamp(self) -> int:
        """Latest timestamp of a complete segment, kept when its index is dropped."""
        if self._max_timestamp is None or self._index is not None:
            self._max_timestamp = self.index.max_timestamp
        return self._max_timestamp

    @property
    def descriptor(self) -> int:
        """Descriptor of the open file."""
        if self._descriptor is None:
            if self._is_gone:
                raise SegmentGone(f"{self.path}: it was deleted or replaced")
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def open(self) -> None:
        """Open the file now, under the name that it has now."""
        self._descriptor = self.descriptor

    def add_stored_to_index(self, header: BatchHeader) -> None:
        """Index a batch that `batches` has yielded."""
        # Searches by timestamp skip markers.
        timestamp = NO_TIMESTAMP if header.is_control else header.max_timestamp
        interval = self._index_interval_bytes
        self.index.add(header.base_offset, header.position, timestamp, interval)

    def begin_index(self, index: SegmentIndex | None = None) -> None:
        """Replace the index by `index` or an empty one, before a scan that adds every further batch."""
        self._index = index or SegmentIndex(self.base_offset)

    def save_index(self, next_offset: int) -> None:
        """Write the index files; the segment ends before `next_offset`."""
        self.index.save(self.path, log_size=self.size, next_offset=next_offset)

    def write(self, buffers: Sequence[memoryview | bytearray], size: int) -> None:
        """Append `size` bytes with as few system calls as possible; raises OSError.

        After an error `self.size` has not moved, so the segment is as before.
        """
        written = os.pwritev(self.descriptor, buffers[:_MAX_BUFFERS], self.size)
        if written < size:
            self._write_rest(list(buffers), size, written)
        self.size += size

    def _write_rest(self, left: list[memoryview | bytearray], size: int, count: int) -> None:
        """Write what a first system call, which wrote `count` bytes, has left."""
        written = count
        while written < size:
            while count >= len(left[0]):
                count -= len(left.pop(0))
            left[0] = memoryview(left[0])[count:]
            count = os.pwritev(self.descriptor, left[:_MAX_BUFFERS], self.size + written)
            written += count

    def truncate(self, size: int) -> None:
        """Cut the file and delete the index files; the index in memory stays."""
        os.ftruncate(self.descriptor, size)
        self.size = size
        self._ends.clear()
        for suffix in INDEX_SUFFIXES:
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def write_again(self, position: int) -> None:
        """Write the bytes from `position` on again, so that the next sync writes them to the disk."""
        buffer = memoryview(bytearray(_SCAN_BYTES))
        while position < self.size:
            count = self.fill(buffer, position)
            left = buffer[:count]
            while left:
                written = os.pwrite(self.descriptor, left, position)
                left, position = left[written:], position + written

    def batches(self, position: int, offset: int, *, verify: bool = False) -> Iterator[BatchHeader]:
        """Yield the headers, with their file positions, from the batch at `position` to the end.

        Args:
            position: byte at which a batch begins.
            offset: its base offset; each batch must begin at the end offset of the previous one.
            verify: whether to read the whole batches and check their CRCs.

        Raises:
            LogCorrupt: a batch is missing or incomplete, or the file ends too early; the batches before
                were yielded.
        """
        buffer = memoryview(bytearray(_SCAN_BYTES if verify else _SEEK_BYTES))
        start = filled = 0
        while position < self.size:
            try:
                if position + HEADER_BYTES > start + filled:
                    start, filled = position, self.fill(buffer, position)
                header = parse_header(buffer[:filled], position - start)
                self._check_stored(header, position, offset)
                if verify:
                    if header.end > filled:
                        start, filled = position, self.fill(buffer, position)
                        header = parse_header(buffer[:filled])
                    if header.end > filled:
                        self._check_in_pieces(header, position, buffer)
                        filled = 0
                    else:
                        check_batch(buffer[:filled], header)
            except BatchError as error:
                raise LogCorrupt(self.path, position, str(error)) from None
            yield msgspec.structs.replace(header, position=position)
            offset = header.next_offset
            position += header.size
        if self.end_offset is not None and offset != self.end_offset:
            raise self._ends_before(offset)

    def read_into(self, offset: int, buffer: memoryview) -> ReadSpan:
        """Read whole batches, from the one that contains `offset` on; see `PartitionLog.read_into`."""
        position = self._ends.get(offset)
        first_offset = offset
        if position is None:
            header = self.batch_at(offset)
            first_offset, position = header.base_offset, header.position
        elif position == self.size:
            raise self._ends_before(offset)
        filled = self.fill(buffer, position)
        data, at, next_offset = buffer[:filled], 0, first_offset
        if position >= self.verified_from:
            at, next_offset = whole_batches(data, first_offset)
        try:
            while at + HEADER_BYTES <= filled:
                header = parse_header(data, at)
                self._check_stored(header, position + at, next_offset)
                if header.end > filled:
                    break
                if position + at < self.verified_from:
                    check_batch(data, header)
                at, next_offset = header.end, header.next_offset
        except BatchError as error:
            if not at:
                raise LogCorrupt(self.path, position + at, str(error)) from None
            # The batches before are intact: return them. The next read begins here and raises.
        if not at:
            verify = position < self.verified_from
            header = next(self.batches(position, first_offset, verify=verify))
            return ReadSpan(0, first_offset, first_offset, header.size)
        if len(self._ends) >= _MAX_ENDS:
            self._ends.clear()
        self._ends[next_offset] = position + at
        return ReadSpan(at, first_offset, next_offset)

    def fill(self, buffer: memoryview, position: int) -> int:
        """Read up to the end of the segment; return how many bytes. Raises `LogCorrupt`, OSError."""
        wanted = min(len(buffer), self.size - position)
        count = os.preadv(self.descriptor, [buffer[:wanted]], position)
        if count < wanted:
            raise LogCorrupt(self.path, position + count, f"it should have {self.size} bytes")
        return count

    def batch_at(self, offset: int) -> BatchHeader:
        """Return the header of the batch that contains `offset`; raises `LogCorrupt` if there is none."""
        base_offset, position = self.index.position_before(offset)
        for header in self.batches(position, base_offset):
            if header.last_offset >= offset:
                return header
        raise self._ends_before(offset)

    def search(
        self, timestamp: int, start_offset: int, most_bytes: int
    ) -> DiskWork[tuple[int, int] | None]:
        """Find `(offset, timestamp)` of the first record from `start_offset` on with this timestamp or a
        later one; None if there is none. The slow parts decompress batches of up to `most_bytes`."""
        offset = max(self.index.offset_before(timestamp), start_offset)
        base_offset, position = self.index.position_before(offset)
        for header in self.batches(position, base_offset, verify=True):
            if header.max_timestamp < timestamp or header.is_control:
                continue
            records: list[StoredRecord] = []
            data = self.batch_bytes(header)
            yield partial(_read_from, data, header, start_offset, most_bytes, records)
            for record in records:
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        return None

    def finding_latest(self, start_offset: int, most_bytes: int) -> DiskWork[int]:
        """Find the latest timestamp of the records from `start_offset` on, -1 if none has one."""
        latest = NO_TIMESTAMP
        base_offset, position = self.index.position_before(start_offset)
        for header in self.batches(position, base_offset, verify=True):
            if header.max_timestamp <= latest or header.is_control:
                continue
            if header.base_offset >= start_offset:
                latest = header.max_timestamp
            else:
                records: list[StoredRecord] = []
                data = self.batch_bytes(header)
                yield partial(_read_from, data, header, start_offset, most_bytes, records)
                latest = max((record.timestamp for record in records), default=latest)
        return latest

    def batch_bytes(self, header: BatchHeader) -> memoryview:
        """Return the whole batch of a header that `batches` has yielded. Raises `LogCorrupt`."""
        data = memoryview(bytearray(header.size))
        self.fill(data, header.position)
        return data

    def first_timestamp(self, now_ms: int) -> int:
        """Return the first batch's latest timestamp; `now_ms` if it has none or a future one."""
        with contextlib.suppress(LogCorrupt):
            for header in self.batches(0, self.base_offset):
                return header.max_timestamp if 0 <= header.max_timestamp <= now_ms else now_ms
        return now_ms

    def newest_ms(self) -> int:
        """Return the latest timestamp; the file's modification time if no record has one."""
        if 0 <= self.max_timestamp < UNKNOWN_TIMESTAMP:
            return self.max_timestamp
        return int(self.path.stat().st_mtime * 1000)

    def release(self) -> None:
        """Close the file and drop the index, until they are needed again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._index = None

    def leave(self) -> None:
        """Close the file for good: the segment is no part of its log any more."""
        self.release()
        self._is_gone = True

    def delete(self) -> None:
        """Delete the files. Raises OSError; another call goes on."""
        self.release()
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def _rebuild_index(self, index: SegmentIndex) -> None:
        next_offset = self.base_offset
        try:
            for header in self.batches(0, self.base_offset):
                self.add_stored_to_index(header)
                next_offset = header.next_offset
        except LogCorrupt:
            # The index ends here. A read beyond it, or any search by timestamp, raises at the damage.
            index.max_timestamp = UNKNOWN_TIMESTAMP
            return
        with contextlib.suppress(OSError):  # the next start rebuilds it again
            self.save_index(next_offset)

    def _ends_before(self, offset: int) -> LogCorrupt:
        return LogCorrupt(self.path, self.size, f"the file ends before offset {offset}")

    def _check_in_pieces(self, header: BatchHeader, position: int, buffer: memoryview) -> None:
        """Check the CRC of a batch larger than `buffer`: a damaged length must not cost memory."""
        crc, at, end = 0, position + CRC_START, position + header.size
        while at < end:
            count = self.fill(buffer[: end - at], at)
            crc = crc32c(buffer[:count], crc)
            at += count
        if crc != header.crc:
            raise CorruptBatch(f"its CRC is {crc:#010x}, the header says {header.crc:#010x}")

    def _check_stored(self, header: BatchHeader, position: int, offset: int) -> None:
        """Check the fields that the CRC does not cover."""
        if header.base_offset != offset:
            raise CorruptBatch(
                f"a batch begins with offset {header.base_offset} instead of {offset}"
            )
        if header.leader_epoch != LEADER_EPOCH:
            raise CorruptBatch(f"leader epoch {header.leader_epoch} instead of {LEADER_EPOCH}")
        if position + header.size > self.size:
            raise CorruptBatch(
                f"a batch of {header.size} bytes is announced, {self.size - position} are there"
            )


def _read_from(
    batch: memoryview,
    header: BatchHeader,
    start_offset: int,
    most_bytes: int,
    records: list[StoredRecord],
) -> None:
    """Add the records from `start_offset` on of a batch whose CRC was checked."""
    if header.last_offset < start_offset:
        return
    try:
        found = read_records(batch, msgspec.structs.replace(header, position=0), most_bytes)
    except BatchError:
        # The CRC is right, so a client produced it like this. The header has its offset and timestamp.
        first_offset = max(header.base_offset, start_offset)
        found = [StoredRecord(first_offset, header.max_timestamp, None, None, ())]
    records += [record for record in found if record.offset >= start_offset]
