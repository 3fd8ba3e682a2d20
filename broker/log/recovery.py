"""Recovery when a log is opened: its segments then hold a prefix of the batches that were appended."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from .compaction import COMPACTION_FILE
from .durability import CHECKPOINT_FILE, Checkpoint
from .durable_files import DELETED, TEMPORARY, UNSYNCED_FILE
from .results import LogCorrupt
from .segment import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    UNKNOWN_TIMESTAMP,
    Segment,
    SegmentIndex,
    segment_path,
)
from .swap import finish_swaps

if TYPE_CHECKING:
    from pathlib import Path

    from .partition import PartitionLog


logger = structlog.get_logger(__name__)

_LOST: Final = ".lost"
_LEFTOVERS: Final = (TEMPORARY, DELETED)
_MAX_OFFSET: Final = 2**63 - 1


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found and did; see `report_recovery`.

    Attributes:
        scanned_bytes: bytes whose CRCs were checked; 0 after a clean stop.
        truncated_bytes: bytes cut off, from the first bad batch on; 0: nothing was cut.
        truncated_at: offset at which the log ends since the cut, None if nothing was cut.
        reason: the fault of that batch, with file and position; "" if nothing was cut.
        set_aside: files after the cut, renamed to `*.lost`; the broker neither reads nor deletes them.
        lost_durable_records: at least this many records had been on disk and are gone. More than 0 means
            that the disk or a person damaged the log; a crash alone does not.
        lost_checkpoint: why the log start is unknown, so that deleted records may be back; "" if it is
            known.
        damaged: the fault of batches that were kept because they had been on disk before the crash;
            reading them fails. "" if there are none.
    """

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_at: int | None = None
    reason: str = ""
    set_aside: tuple[str, ...] = ()
    lost_durable_records: int = 0
    damaged: str = ""
    lost_checkpoint: str = ""

    @property
    def lost_data(self) -> bool:
        """Whether anything was cut, set aside or is gone.

        A kill in the middle of a write leaves a torn batch, which is cut off; `set_aside` and
        `lost_durable_records` show whether more was lost.
        """
        return bool(self.truncated_bytes or self.set_aside or self.lost_durable_records)


def report_recovery(log: PartitionLog, **labels: object) -> None:
    """Log, with `labels`, the losses and damage that opening `log` found."""
    report = log.recovery
    cut = {
        "truncated_at": report.truncated_at,
        "reason": report.reason,
        "set_aside": report.set_aside,
    }
    if report.lost_durable_records:
        records = report.lost_durable_records
        logger.error("records that were on disk are gone", **labels, records=records, **cut)
    elif report.lost_data:
        logger.warning(
            "the log ended in an incomplete write, which was cut off",
            **labels,
            truncated_bytes=report.truncated_bytes,
            **cut,
        )
    if report.lost_checkpoint:
        logger.error(
            "the log start is unknown: deleted records may be back",
            **labels,
            log_start_offset=log.log_start_offset,
            reason=report.lost_checkpoint,
        )
    if report.damaged:
        message = "batches of the log are damaged: reading them will fail"
        logger.error(message, **labels, reason=report.damaged)


def recover(directory: Path, *, index_interval_bytes: int, clean: bool) -> Recovered:
    """Open the segments in `directory` and scan the batches beyond the recovery point.

    The first batch that is incomplete, damaged or out of place ends the log: it and everything after it
    is cut off. Damage below the recovery point is not cut off: a crash did not cause it, and intact batches
    follow.

    After a failed sync (see `mark_unsynced`) the batches beyond the recovery point are written again; the
    caller syncs them, then removes the mark.

    Args:
        directory: an existing directory.
        index_interval_bytes: for rebuilt indexes.
        clean: False also checks the newest segment's batches below the recovery point.

    Raises:
        OSError: the directory cannot be read or written.
    """
    finish_swaps(directory)
    segments = _find_segments(directory, index_interval_bytes)
    gone = _indexes_without_segment(directory)
    first_offset = segments[0].base_offset if segments else 0
    point, lost_checkpoint = _checkpoint(directory, first_offset, used=clean and bool(segments))
    report = RecoveryReport(lost_checkpoint=lost_checkpoint)
    log = Recovered(segments, point, report, write_again=(directory / UNSYNCED_FILE).exists())
    if segments:
        log.scan(clean=clean)
    end = log.next_offset
    # Retention deletes from the start, so in a closed log an index beyond the end belongs to lost records.
    # After a power loss its segment may never have been on disk.
    durable_end = max([point.recovery_point, *(base_offset + 1 for base_offset in gone if clean)])
    if not segments:
        # Never assign an offset twice.
        log.next_offset = max(durable_end, point.log_start_offset)
        end = point.log_start_offset
        segments.append(Segment.create(directory, log.next_offset, index_interval_bytes))
    # Retention saves the log start before it deletes: a later first segment means that records are lost.
    lost = max(0, first_offset - point.log_start_offset)
    report.lost_durable_records = lost + max(0, durable_end - end)
    if report.truncated_bytes:
        report.truncated_at = log.next_offset
    if point.recovery_point > end:
        # Compaction's progress may refer to records that are gone.
        (directory / COMPACTION_FILE).unlink(missing_ok=True)
    while len(segments) > 1 and segments[1].base_offset <= point.log_start_offset:
        segments.pop(0).delete()  # a crash interrupted the deletion
    log.unsynced = [segment for segment in log.unsynced if segment in segments]
    return log


def _checkpoint(directory: Path, first_offset: int, *, used: bool) -> tuple[Checkpoint, str]:
    """Return the checkpoint; or one at the first offset, and why. `used`: there must be a checkpoint."""
    point, path = Checkpoint.load(directory), directory / CHECKPOINT_FILE
    if point is not None:
        return point, ""
    reason = f"{path} is damaged" if path.exists() else f"{path} is missing" if used else ""
    return Checkpoint(first_offset, first_offset, first_offset, 0), reason


def _find_segments(directory: Path, index_interval_bytes: int) -> list[Segment]:
    """Return the segments, oldest first; delete temporary files that a crash left."""
    segments: list[Segment] = []
    for path in sorted(directory.iterdir()):
        if path.name.endswith(_LEFTOVERS):
            path.unlink()
        elif path.suffix == LOG_SUFFIX and path.stem.isdecimal():
            base_offset = int(path.stem)
            if base_offset <= _MAX_OFFSET and path == segment_path(directory, base_offset):
                size = path.stat().st_size
                segments.append(Segment(path, base_offset, size, index_interval_bytes))
    return segments


def _indexes_without_segment(directory: Path) -> list[int]:
    """Delete the indexes of missing segments; return the base offsets of these segments."""
    found: list[int] = []
    for suffix in INDEX_SUFFIXES:
        for path in directory.glob(f"*{suffix}"):
            if path.stem.isdecimal() and not path.with_suffix(LOG_SUFFIX).exists():
                path.unlink()
                found.append(int(path.stem))
    return found


@dataclass(slots=True)
class Recovered:
    """A log that is ready for appends once `recover` returns it.

    Attributes:
        segments: at least one, oldest first; the last one is active.
        point: the checkpoint.
        report: see `RecoveryReport`.
        write_again: whether the bytes beyond the recovery point must be written again.
        next_offset: offset of the next record.
        unsynced: segments with bytes that may not be on disk yet, or that were cut.
    """

    segments: list[Segment]
    point: Checkpoint
    report: RecoveryReport
    write_again: bool
    next_offset: int = 0
    unsynced: list[Segment] = field(default_factory=list)

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return max(self.point.log_start_offset, self.segments[0].base_offset)

    def scan(self, *, clean: bool) -> None:
        """Index and cut the segments beyond the recovery point; set aside those after the first bad batch."""
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
                break  # a segment before it is missing
            intact = self._scan_segment(segment, position)
            number, position = number + 1, 0
            if not intact:
                break
            if number < len(self.segments):
                segment.save_index(self.next_offset)
                self.segments[number].begin_index()
        if self.next_offset < self.point.log_start_offset:
            number = 0  # all remaining records are below the log start
        self._set_aside(number)

    def _index_durable(self, segment: Segment, position: int, *, verify: bool) -> None:
        """Load the index of the bytes below `position`, or build it from the batches."""
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
                self.report.damaged = str(error)
                segment.index.max_timestamp = UNKNOWN_TIMESTAMP
                segment.index.mark(self.next_offset, position)

    def _scan_segment(self, segment: Segment, position: int) -> bool:
        """Index the intact batches from `position` on; cut off the rest. Return whether nothing was cut."""
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
            self.report.reason = str(error)
        if self.write_again:
            segment.write_again(position)
        self.report.scanned_bytes += segment.size - position
        self.report.truncated_bytes += size - segment.size
        return segment.size == size

    def _set_aside(self, number: int) -> None:
        """Remove the segments from `number` on from the log; delete only empty ones."""
        for segment in self.segments[number:]:
            if segment.size:
                lost = segment.path.with_name(segment.path.name + _LOST)
                segment.path.rename(lost)
                self.report.set_aside += (str(lost),)
            segment.delete()
        del self.segments[number:]
