"""Finds the segments of a log, and makes sure that they hold a prefix of what was appended."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.log.checkpoint import CHECKPOINT_FILE, Checkpoint
from broker.log.compaction_state import COMPACTION_FILE
from broker.log.compaction_swap import finish_swaps
from broker.log.errors import LogCorrupt
from broker.log.files import DELETED, TEMPORARY, UNSYNCED_FILE
from broker.log.index import INDEX_SUFFIXES, UNKNOWN_TIMESTAMP, SegmentIndex
from broker.log.results import RecoveryReport
from broker.log.segment import LOG_SUFFIX, Segment, segment_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Recovered", "recover"]

_LOST: Final = ".lost"
_LEFTOVERS: Final = (TEMPORARY, DELETED)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log that can be appended to.

    Attributes:
        segments: at least one, oldest first; the last one is active.
        log_start_offset: first offset that may be read.
        next_offset: offset of the next record.
        unsynced: segments with bytes that may not be on disk yet, or that were cut.
        report: what was found and done.
    """

    segments: list[Segment]
    log_start_offset: int
    next_offset: int
    unsynced: list[Segment]
    report: RecoveryReport


def recover(directory: Path, *, index_interval_bytes: int, clean: bool) -> Recovered:
    """Opens the segments in `directory` and scans what lies beyond the recovery point.

    The first batch that is incomplete, damaged or out of place ends the log: it is cut off, with all
    that follows. What the checkpoint calls durable is not cut for damage inside: that is not the
    trace of a crash, and intact batches follow it.

    Args:
        directory: an existing directory.
        index_interval_bytes: for indexes that are rebuilt.
        clean: False checks all of the newest durable segment, not only what lies beyond.

    After a failed sync (see `mark_unsynced`) all that lies beyond is written again; the caller syncs it,
    then removes the mark.

    Raises:
        OSError: the directory cannot be read or written.
    """
    finish_swaps(directory)
    segments = _find_segments(directory, index_interval_bytes)
    gone = _indexes_without_segment(directory)
    first_offset = segments[0].base_offset if segments else 0
    point, lost_checkpoint = _checkpoint(directory, first_offset, used=clean and bool(segments))
    scan = _Scan(segments, point, write_again=(directory / UNSYNCED_FILE).exists())
    if segments:
        scan.run(clean=clean)
    end = scan.next_offset
    # Retention deletes from the start: an index beyond the end is what is left of lost records, if the
    # log was closed; a power loss may leave the index of a segment that never was on disk.
    durable_end = max([point.recovery_point, *(base_offset + 1 for base_offset in gone if clean)])
    # Where it starts is noted before anything is deleted.
    lost = max(0, first_offset - point.log_start_offset)
    if not segments:
        # Offsets that were handed out once are never handed out again.
        scan.next_offset = max(durable_end, point.log_start_offset)
        end = point.log_start_offset
        segments.append(Segment.create(directory, scan.next_offset, index_interval_bytes))
    if point.recovery_point > end:
        # What compaction knows may be of records that are gone.
        (directory / COMPACTION_FILE).unlink(missing_ok=True)
    while len(segments) > 1 and segments[1].base_offset <= point.log_start_offset:
        segments.pop(0).delete()  # a crash came in between
    return Recovered(
        segments=segments,
        log_start_offset=max(point.log_start_offset, segments[0].base_offset),
        next_offset=scan.next_offset,
        unsynced=[segment for segment in scan.unsynced if segment in segments],
        report=RecoveryReport(
            scanned_bytes=scan.scanned_bytes,
            truncated_bytes=scan.truncated_bytes,
            truncated_at=scan.next_offset if scan.truncated_bytes else None,
            reason=scan.reason,
            set_aside=tuple(scan.set_aside),
            lost_durable_records=lost + max(0, durable_end - end),
            damaged=scan.damaged,
            lost_checkpoint=lost_checkpoint,
        ),
    )


def _checkpoint(directory: Path, first_offset: int, *, used: bool) -> tuple[Checkpoint, str]:
    """The log's checkpoint, or one that says nothing, and then why; `used`: there must be one."""
    point, path = Checkpoint.load(directory), directory / CHECKPOINT_FILE
    if point is not None:
        return point, ""
    reason = f"{path} is damaged" if path.exists() else f"{path} is missing" if used else ""
    return Checkpoint(first_offset, first_offset, first_offset, 0), reason


def _find_segments(directory: Path, index_interval_bytes: int) -> list[Segment]:
    """The segments by their names, oldest first; removes what a crash left half done."""
    segments: list[Segment] = []
    for path in sorted(directory.iterdir()):
        if path.name.endswith(_LEFTOVERS):
            path.unlink()
        elif path.suffix == LOG_SUFFIX and path.stem.isdecimal():
            base_offset = int(path.stem)
            if path == segment_path(directory, base_offset):
                size = path.stat().st_size
                segments.append(Segment(path, base_offset, size, index_interval_bytes))
    return segments


def _indexes_without_segment(directory: Path) -> list[int]:
    """Removes the indexes whose segment is missing; the base offsets of those segments."""
    found: list[int] = []
    for suffix in INDEX_SUFFIXES:
        for path in directory.glob(f"*{suffix}"):
            if path.stem.isdecimal() and not path.with_suffix(LOG_SUFFIX).exists():
                path.unlink()
                found.append(int(path.stem))
    return found


@dataclass(slots=True)
class _Scan:
    """One pass over the segments beyond the recovery point; removes from `segments` what is lost."""

    segments: list[Segment]
    point: Checkpoint
    write_again: bool
    next_offset: int = 0
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    reason: str = ""
    damaged: str = ""
    set_aside: list[str] = field(default_factory=list)
    unsynced: list[Segment] = field(default_factory=list)

    def run(self, *, clean: bool) -> None:
        bases = [segment.base_offset for segment in self.segments]
        number = max(0, bisect.bisect_right(bases, self.point.recovery_point) - 1)
        first = self.segments[number]
        position, self.next_offset = 0, first.base_offset
        if first.base_offset == self.point.segment and first.size >= self.point.position:
            position, self.next_offset = self.point.position, self.point.recovery_point
            self._index_durable(first, position, verify=not clean)
        else:
            first.begin_index()
        while number < len(self.segments):
            segment = self.segments[number]
            if position == 0 and segment.base_offset != self.next_offset:
                break  # there is a hole before it
            intact = self._scan(segment, position)
            number, position = number + 1, 0
            if not intact:
                break
            if number < len(self.segments):
                segment.save_index(self.next_offset)
                self.segments[number].begin_index()
        if self.next_offset < self.point.log_start_offset:
            number = 0  # nothing of what is left may be read
        self._set_aside(number)

    def _index_durable(self, segment: Segment, position: int, *, verify: bool) -> None:
        """The index of the bytes below `position`, loaded or built from the batches themselves."""
        index = None
        if not verify:
            index = SegmentIndex.load(
                segment.path, segment.base_offset, log_size=position, next_offset=self.next_offset
            )
        segment.begin_index(index)
        if index is not None:
            return
        try:
            for header in segment.batches(0, segment.base_offset, verify=verify):
                if header.position >= position:
                    break
                segment.add_stored_to_index(header)
        except LogCorrupt as error:
            if error.position < position:
                self.damaged = str(error)
                segment.index.max_timestamp = UNKNOWN_TIMESTAMP
                segment.index.mark(self.next_offset, position)

    def _scan(self, segment: Segment, position: int) -> bool:
        """Indexes the intact batches from `position` on and cuts off the rest, if there is any."""
        size = segment.size
        if size == position:
            return True
        self.unsynced.append(segment)
        segment.verified_from = position
        try:
            for header in segment.batches(position, self.next_offset, verify=True):
                segment.add_stored_to_index(header)
                self.next_offset = header.next_offset
        except LogCorrupt as error:
            segment.truncate(error.position)
            self.reason = str(error)
        if self.write_again:
            segment.write_again(position)
        self.scanned_bytes += segment.size - position
        self.truncated_bytes += size - segment.size
        return segment.size == size

    def _set_aside(self, number: int) -> None:
        """Takes the segments from `number` on out of the log; only empty ones are deleted."""
        for segment in self.segments[number:]:
            if segment.size:
                lost = segment.path.with_name(segment.path.name + _LOST)
                segment.path.rename(lost)
                self.set_aside.append(str(lost))
            segment.delete()
        del self.segments[number:]
