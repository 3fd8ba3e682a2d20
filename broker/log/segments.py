"""The segment files of one log: which are open, and reads and searches across them."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from typing import TYPE_CHECKING, Final

from .records import HEADER_BYTES, has_records
from .results import OffsetNotInLog, ReadSpan
from .segment import Segment, segment_path
from .swap import swap_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .compaction import Rewritten
    from .disk_work import DiskWork
    from .recovery import Recovered


_MAX_OPEN_OLD: Final = 4


class Segments:
    """The segments of one log, at least one; only the last one, the active one, is written to.

    The active segment's file is always open; of the others, only a few.

    Attributes:
        directory: the log's.
        log_start_offset: first offset that may be read; the oldest segment may begin below.
    """

    def __init__(
        self, directory: Path, recovered: Recovered, *, must_stay_open: Callable[[Segment], bool]
    ) -> None:
        """`must_stay_open`: whether a segment's file is still needed for a sync."""
        self.directory = directory
        self.log_start_offset = recovered.log_start_offset
        self._segments = recovered.segments
        self._must_stay_open = must_stay_open
        self._open_old: list[Segment] = []
        self._swapping: Segment | None = None  # its file has no final name yet
        for segment, following in itertools.pairwise(self._segments):
            segment.end_offset = following.base_offset
            segment.release()

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """Yield the segments, oldest first; use each one before taking the next."""
        return map(self._use, self._segments)

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def oldest(self) -> Segment:
        return self._use(self._segments[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of all segment files, without indexes."""
        return sum(segment.size for segment in self._segments)

    def read_into(self, offset: int, end_offset: int, buffer: memoryview) -> ReadSpan:
        """Read batches of a log that ends at `end_offset`; see `PartitionLog.read_into`."""
        if not self.log_start_offset <= offset <= end_offset:
            raise OffsetNotInLog(offset, self.log_start_offset, end_offset)
        if offset == end_offset:
            return ReadSpan(0, offset, offset)
        while True:
            segment = self._containing(offset)
            span = segment.read_into(offset, buffer)
            if span.needed_bytes == HEADER_BYTES:
                offset = segment.batch_at(offset).next_offset
            elif span.size and not has_records(buffer[: span.size]):
                offset = span.next_offset
            else:
                return span
            # Some clients stop, or ask for the same offset again, when a response has batches but no records.
            if offset == end_offset:
                return span

    def search(self, timestamp_ms: int, most_bytes: int) -> DiskWork[tuple[int, int] | None]:
        """Find `(offset, timestamp)` of the first record with this timestamp or a later one, or None."""
        for segment in self._above_log_start():
            if self._use(segment).max_timestamp >= timestamp_ms:
                found = yield from segment.search(timestamp_ms, self.log_start_offset, most_bytes)
                if found is not None:
                    return found
        return None

    def finding_latest(self, most_bytes: int) -> DiskWork[int]:
        """Find the latest timestamp of the records, -1 if none has one."""
        start = self.log_start_offset
        # Only the oldest of them can have batches below the log start.
        latest = max((s.max_timestamp for s in self if s.base_offset >= start), default=-1)
        oldest = self._above_log_start()[0]
        if oldest.base_offset < start and oldest.max_timestamp > latest:
            latest = max(latest, (yield from oldest.finding_latest(start, most_bytes)))
        return latest

    def _above_log_start(self) -> list[Segment]:
        """Return the segments with records above the log start; the others are being deleted."""
        start = self.log_start_offset
        return [s for s in self._segments if s.end_offset is None or s.end_offset > start]

    def add(self, segment: Segment) -> None:
        """Make `segment` the active one."""
        old = self.active
        old.end_offset = segment.base_offset
        self._segments.append(segment)
        self._use(old)

    def remove_oldest(self) -> Segment:
        """Remove the oldest of several segments from the log."""
        segment = self._segments.pop(0)
        if segment in self._open_old:
            self._open_old.remove(segment)
        segment.leave()
        return segment

    def swap(self, old: Sequence[Segment], new: Rewritten, index_interval_bytes: int) -> Segment:
        """Read the committed swap file in place of neighbours, none of them active; return its segment.

        Its file stays open until `finish_swap`, because its name changes. Raises OSError.
        """
        base_offset, end_offset = old[0].base_offset, new.group[-1].end_offset
        path = swap_path(self.directory, base_offset, end_offset)
        segment = Segment(path, base_offset, new.size, index_interval_bytes)
        segment.end_offset = end_offset
        segment.begin_index(new.index)
        segment.open()
        for each in old:
            each.leave()
        at = self._segments.index(old[0])
        self._segments[at : at + len(old)] = [segment]
        self._open_old = [each for each in self._open_old if each not in old]
        self._swapping = segment
        return segment

    def finish_swap(self, segment: Segment) -> None:
        """Note that the file of a segment from `swap` has its final name."""
        self._swapping = None
        segment.path = segment_path(self.directory, segment.base_offset)
        end_offset = segment.end_offset
        if end_offset is not None:
            with contextlib.suppress(OSError):  # the index is rebuilt when it is next needed
                segment.save_index(end_offset)
        self._use(segment)

    def release(self) -> None:
        """Close all files."""
        for segment in self._segments:
            segment.release()
        self._open_old.clear()

    def _containing(self, offset: int) -> Segment:
        active = self._segments[-1]
        if offset >= active.base_offset:
            return active
        number = bisect.bisect_right(self._segments, offset, key=lambda s: s.base_offset)
        return self._use(self._segments[number - 1])

    def _use(self, segment: Segment) -> Segment:
        """Return `segment` after noting its use; close the files that were opened longest ago."""
        if segment is self.active:
            return segment
        if segment not in self._open_old:
            self._open_old.append(segment)
        if len(self._open_old) > _MAX_OPEN_OLD:
            self._close_some(but=segment)
        return segment

    def _close_some(self, *, but: Segment) -> None:
        for old in list(self._open_old):
            if len(self._open_old) <= _MAX_OPEN_OLD:
                break
            if old is not but and old is not self._swapping and not self._must_stay_open(old):
                old.release()
                self._open_old.remove(old)
