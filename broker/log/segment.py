"""One file of a log: consecutive record batches as they came, and their sparse index."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from broker.log.errors import LogCorrupt
from broker.log.index import INDEX_SUFFIXES, UNKNOWN_TIMESTAMP, SegmentIndex
from broker.log.results import Span
from broker.records import (
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
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from broker.records import BatchHeader

__all__ = ["LOG_SUFFIX", "Segment", "segment_path"]

LOG_SUFFIX: Final = ".log"
_SCAN_BYTES: Final = 1024 * 1024
_SEEK_BYTES: Final = 64 * 1024
_MAX_BUFFERS: Final = 1024  # IOV_MAX of Linux
_MAX_ENDS: Final = 64


def segment_path(directory: Path, base_offset: int) -> Path:
    """The file of the segment whose first offset is `base_offset`, named as Kafka does."""
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


class Segment:
    """One file of a log; opened, and its index loaded, when first used.

    Attributes:
        base_offset: offset of the first record.
        size: bytes that hold batches; the file may be longer after a failed write.
        end_offset: base offset of the next segment, which must follow; None for the active one.
        verified_from: position from which on this process has seen intact batches; reads below
            check CRCs, because the disk may have changed since.
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
        self._max_timestamp: int | None = None
        # Where earlier reads ended: a consumer goes on there, and needs no search.
        self._ends: dict[int, int] = {}

    @classmethod
    def create(cls, directory: Path, base_offset: int, index_interval_bytes: int) -> Segment:
        """A new, empty segment; raises FileExistsError if there is one."""
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
            self._index = self._rebuilt_index()
        return self._index

    @property
    def max_timestamp(self) -> int:
        """Latest timestamp of a complete segment, kept when its index is dropped."""
        if self._max_timestamp is None or self._index is not None:
            self._max_timestamp = self.index.max_timestamp
        return self._max_timestamp

    @property
    def descriptor(self) -> int:
        """The open file."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def add_to_index(self, header: BatchHeader, offset: int, position: int, timestamp: int) -> None:
        """Takes note of a batch by the offset, position and timestamp it has in the file."""
        if header.is_control:
            timestamp = NO_TIMESTAMP  # nobody looks for a marker
        self.index.add(offset, position, timestamp, self._index_interval_bytes)

    def add_stored_to_index(self, header: BatchHeader) -> None:
        """Takes note of a batch that `batches` found in the file."""
        self.add_to_index(header, header.base_offset, header.position, header.max_timestamp)

    def begin_index(self, index: SegmentIndex | None = None) -> None:
        """Replaces the index by this or an empty one, for a scan that adds every further batch."""
        self._index = index or SegmentIndex(self.base_offset)

    def forget_index(self) -> None:
        """The index is built anew from the file when it is next needed."""
        self._index = None

    def save_index(self, next_offset: int) -> None:
        """Writes the index files; the segment ends before `next_offset`."""
        self.index.save(self.path, log_size=self.size, next_offset=next_offset)

    def write(self, buffers: Sequence[memoryview | bytearray], size: int) -> None:
        """Appends `size` bytes with as few system calls as possible; raises OSError.

        After an error the segment is as before: `size` has not moved.
        """
        written, left = 0, list(buffers)
        while written < size:
            count = os.pwritev(self.descriptor, left[:_MAX_BUFFERS], self.size + written)
            written += count
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if count:
                left[0] = memoryview(left[0])[count:]
        self.size += size

    def truncate(self, size: int) -> None:
        """Cuts the file and removes the index files; what is indexed stays in memory."""
        os.ftruncate(self.descriptor, size)
        self.size = size
        self._ends.clear()
        for suffix in INDEX_SUFFIXES:
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def write_again(self, position: int) -> None:
        """Writes what is there from `position` on once more, so that a sync writes it to the disk."""
        buffer = memoryview(bytearray(_SCAN_BYTES))
        while position < self.size:
            count = self._pread(buffer, position)
            left = buffer[:count]
            while left:
                written = os.pwrite(self.descriptor, left, position)
                left, position = left[written:], position + written

    def batches(self, position: int, offset: int, *, verify: bool = False) -> Iterator[BatchHeader]:
        """The headers, with their file positions, from the batch at `position` to the end.

        Args:
            position: where a batch begins.
            offset: its base offset; every batch must begin where the one before it ends.
            verify: whether to read the whole batches and check their CRCs.

        Raises:
            LogCorrupt: there is no such batch, or not all of it, or the file ends too early; the
                batches before were yielded.
        """
        buffer = memoryview(bytearray(_SCAN_BYTES if verify else _SEEK_BYTES))
        start = filled = 0
        while position < self.size:
            try:
                if position + HEADER_BYTES > start + filled:
                    start, filled = position, self._pread(buffer, position)
                header = parse_header(buffer[:filled], position - start)
                self._check_stored(header, position, offset)
                if verify:
                    if header.end > filled:
                        start, filled = position, self._pread(buffer, position)
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

    def read_into(self, offset: int, buffer: memoryview) -> Span:
        """Whole batches from the one that contains `offset` on; see `PartitionLog.read_into`."""
        position = self._ends.get(offset)
        first_offset = offset
        if position is None:
            header = self.batch_at(offset)
            first_offset, position = header.base_offset, header.position
        elif position == self.size:
            raise self._ends_before(offset)
        filled = self._pread(buffer, position)
        at, next_offset = 0, first_offset
        try:
            while at + HEADER_BYTES <= filled:
                header = parse_header(buffer[:filled], at)
                self._check_stored(header, position + at, next_offset)
                if header.end > filled:
                    break
                if position + at < self.verified_from:
                    check_batch(buffer[:filled], header)
                at, next_offset = header.end, header.next_offset
        except BatchError as error:
            if not at:
                raise LogCorrupt(self.path, position + at, str(error)) from None
            # What came before is intact; the next read begins here and is told.
        if not at:
            verify = position < self.verified_from
            header = next(self.batches(position, first_offset, verify=verify))
            return Span(0, first_offset, first_offset, header.size)
        if len(self._ends) >= _MAX_ENDS:
            self._ends.clear()
        self._ends[next_offset] = position + at
        return Span(at, first_offset, next_offset)

    def batch_at(self, offset: int) -> BatchHeader:
        """The header of the batch that contains `offset`; raises `LogCorrupt` if there is none."""
        base_offset, position = self.index.position_before(offset)
        for header in self.batches(position, base_offset):
            if header.last_offset >= offset:
                return header
        raise self._ends_before(offset)

    def first_record_since(self, timestamp: int, start_offset: int) -> tuple[int, int] | None:
        """`(offset, timestamp)` of the first record from `start_offset` on with this timestamp or
        a later one; None if there is none."""
        offset = max(self.index.offset_before(timestamp), start_offset)
        base_offset, position = self.index.position_before(offset)
        for header in self.batches(position, base_offset, verify=True):
            if header.max_timestamp < timestamp or header.is_control:
                continue
            for record in self._records(header, start_offset):
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        return None

    def latest_timestamp(self, start_offset: int) -> int:
        """Latest timestamp of the records from `start_offset` on, -1 if none has one."""
        latest = NO_TIMESTAMP
        base_offset, position = self.index.position_before(start_offset)
        for header in self.batches(position, base_offset, verify=True):
            if header.max_timestamp <= latest or header.is_control:
                continue
            if header.base_offset >= start_offset:
                latest = header.max_timestamp
            else:
                times = (record.timestamp for record in self._records(header, start_offset))
                latest = max(times, default=latest)
        return latest

    def batch_bytes(self, header: BatchHeader) -> memoryview:
        """The whole batch of a header that `batches` found. Raises `LogCorrupt`."""
        data = memoryview(bytearray(header.size))
        self._pread(data, header.position)
        return data

    def first_timestamp(self, now_ms: int) -> int:
        """When the first batch was made; `now_ms` if nobody knows or it is in the future."""
        with contextlib.suppress(LogCorrupt):
            for header in self.batches(0, self.base_offset):
                return header.max_timestamp if 0 <= header.max_timestamp <= now_ms else now_ms
        return now_ms

    def newest_ms(self) -> int:
        """When the newest record was made, as far as known, or the file written."""
        if 0 <= self.max_timestamp < UNKNOWN_TIMESTAMP:
            return self.max_timestamp
        return int(self.path.stat().st_mtime * 1000)

    def release(self) -> None:
        """Closes the file and forgets the index until they are needed again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._index = None

    def delete(self) -> None:
        """Removes the files."""
        self.release()
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def _rebuilt_index(self) -> SegmentIndex:
        index, next_offset = SegmentIndex(self.base_offset), self.base_offset
        try:
            for header in self.batches(0, self.base_offset):
                index.add(
                    header.base_offset,
                    header.position,
                    NO_TIMESTAMP if header.is_control else header.max_timestamp,
                    self._index_interval_bytes,
                )
                next_offset = header.next_offset
        except LogCorrupt:
            # It ends here. Whoever reads on, or looks for timestamps, comes upon the damage.
            index.max_timestamp = UNKNOWN_TIMESTAMP
            return index
        with contextlib.suppress(OSError):  # then the next start rebuilds it again
            index.save(self.path, log_size=self.size, next_offset=next_offset)
        return index

    def _ends_before(self, offset: int) -> LogCorrupt:
        return LogCorrupt(self.path, self.size, f"the file ends before offset {offset}")

    def _pread(self, buffer: memoryview, position: int) -> int:
        wanted = min(len(buffer), self.size - position)
        count = os.preadv(self.descriptor, [buffer[:wanted]], position)
        if count < wanted:
            raise LogCorrupt(self.path, position + count, f"it should have {self.size} bytes")
        return count

    def _records(self, header: BatchHeader, start_offset: int) -> list[StoredRecord]:
        """The records from `start_offset` on of a batch whose CRC was checked."""
        if header.last_offset < start_offset:
            return []
        data = self.batch_bytes(header)
        try:
            records = read_records(data, msgspec.structs.replace(header, position=0))
        except BatchError:
            # Its CRC is right: a client sent it so. Its header tells where it begins, and its time.
            first_offset = max(header.base_offset, start_offset)
            return [StoredRecord(first_offset, header.max_timestamp, None, None, ())]
        return [record for record in records if record.offset >= start_offset]

    def _check_in_pieces(self, header: BatchHeader, position: int, buffer: memoryview) -> None:
        """Checks the CRC of a batch larger than `buffer`: a damaged length must not cost memory."""
        crc, at, end = 0, position + CRC_START, position + header.size
        while at < end:
            count = self._pread(buffer[: end - at], at)
            crc = crc32c(buffer[:count], crc)
            at += count
        if crc != header.crc:
            raise CorruptBatch(f"its CRC is {crc:#010x}, the header says {header.crc:#010x}")

    def _check_stored(self, header: BatchHeader, position: int, offset: int) -> None:
        """The CRC does not cover these fields, so they are compared with what must be there."""
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
