"""The segments of one log in order, of which few are open at a time, and searches across them."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from typing import TYPE_CHECKING, Final

from broker.log.compaction_swap import finish_swap
from broker.log.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.log.compaction import Rewritten

__all__ = ["Segments"]

_MAX_OPEN_OLD: Final = 4


class Segments:
    """At least one segment; the last one is active, the only one that is written to."""

    def __init__(
        self, segments: list[Segment], *, must_stay_open: Callable[[Segment], bool]
    ) -> None:
        """Args:
        segments: oldest first; only the active one keeps its file open.
        must_stay_open: whether somebody else still needs a segment's open file.
        """
        self._segments = segments
        self._must_stay_open = must_stay_open
        self._open_old: list[Segment] = []
        for segment, following in itertools.pairwise(segments):
            segment.end_offset = following.base_offset
            segment.release()

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """All of them, oldest first, each fit for use until the next one is taken."""
        return map(self._use, self._segments)

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def oldest(self) -> Segment:
        return self._use(self._segments[0])

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def containing(self, offset: int) -> Segment:
        """The segment with `offset`, which must not be below the first one's base offset."""
        number = bisect.bisect_right(self._segments, offset, key=lambda s: s.base_offset)
        return self._use(self._segments[number - 1])

    def add(self, segment: Segment) -> None:
        """Makes `segment` the active one."""
        old = self.active
        old.end_offset = segment.base_offset
        self._segments.append(segment)
        self._use(old)

    def end_of_oldest(self) -> int:
        """First offset that is not in the oldest of several segments."""
        return self._segments[1].base_offset

    def remove_oldest(self) -> Segment:
        """Takes the oldest of several segments out of the log."""
        segment = self._segments.pop(0)
        if segment in self._open_old:
            self._open_old.remove(segment)
        return segment

    def swap(self, old: Sequence[Segment], new: Rewritten, index_interval_bytes: int) -> None:
        """Puts the compacted form of neighbours, none of them active, in their place.

        Raises OSError: then nobody knows which of the files are there, until the log is opened again.
        """
        base_offset, end_offset = old[0].base_offset, new.group[-1].end_offset
        for segment in old:
            segment.release()
        path = finish_swap(old[0].path.parent, base_offset, end_offset)
        segment = Segment(path, base_offset, new.size, index_interval_bytes)
        segment.end_offset = end_offset
        segment.begin_index(new.index)
        at = self._segments.index(old[0])
        self._segments[at : at + len(old)] = [segment]
        self._open_old = [each for each in self._open_old if each not in old]
        with contextlib.suppress(OSError):  # then it is rebuilt when it is needed
            segment.save_index(end_offset)

    def first_record_since(self, timestamp: int, start_offset: int) -> tuple[int, int] | None:
        """`(offset, timestamp)` of the first record with this timestamp or a later one, or None."""
        for segment in self:
            if segment.max_timestamp >= timestamp:
                found = segment.first_record_since(timestamp, start_offset)
                if found is not None:
                    return found
        return None

    def latest_timestamp(self, start_offset: int) -> int:
        """Latest timestamp of the batches from `start_offset` on, -1 if none has one."""
        # Only the oldest segment can hold batches below the log start.
        latest = max((s.max_timestamp for s in self if s.base_offset >= start_offset), default=-1)
        if self.oldest.base_offset < start_offset and self.oldest.max_timestamp > latest:
            latest = max(latest, self.oldest.latest_timestamp(start_offset))
        return latest

    def release(self) -> None:
        """Closes all files."""
        for segment in self._segments:
            segment.release()
        self._open_old.clear()

    def _use(self, segment: Segment) -> Segment:
        """Keeps `segment` open; closes those that were opened longest ago, if there are many."""
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
            if old is not but and not self._must_stay_open(old):
                old.release()
                self._open_old.remove(old)
