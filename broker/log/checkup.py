"""Examines the directory of a log that nobody has open. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from broker.log.checkpoint import CHECKPOINT_FILE, Checkpoint
from broker.log.compaction_state import COMPACTION_FILE
from broker.log.compaction_swap import SWAP, swap_bounds
from broker.log.errors import LogCorrupt
from broker.log.files import DELETED, TEMPORARY, UNSYNCED_FILE, read_sealed
from broker.log.index import INDEX_SUFFIXES, SegmentIndex
from broker.log.inspection import found_batches
from broker.log.segment import LOG_SUFFIX
from broker.producers.states import ProducerStates
from broker.records import HEADER_BYTES, LEADER_EPOCH, BatchError, parse_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from broker.log.inspection import FoundBatch

__all__ = ["Finding", "LogCheckup", "check_log"]

_SNAPSHOT: Final = ".snapshot"
_LEFTOVERS: Final = (TEMPORARY, DELETED, SWAP)
_DIGITS: Final = 20


class Finding(NamedTuple):
    """What was found, and where.

    `kind`: "damage" is lost or will be missed, the operator must act; a "note" is what the next start
    of the broker puts right by itself.
    """

    kind: Literal["damage", "note"]
    where: Path
    what: str


@dataclass(slots=True)
class LogCheckup:
    """What is in a log, and what is wrong with it; `end_offset` is None if nobody can tell."""

    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    batches: int = 0
    size_bytes: int = 0
    end_offset: int | None = None

    def damage(self, where: Path, what: str) -> None:
        self.findings.append(Finding("damage", where, what))

    def note(self, where: Path, what: str) -> None:
        self.findings.append(Finding("note", where, what))


def check_log(
    directory: Path, *, clean: bool, check_batch: Callable[[FoundBatch], str] | None = None
) -> LogCheckup:
    """Reads all of a log: every batch and its CRC, the offsets, the indexes, the checkpoint.

    Args:
        directory: the log's.
        clean: it was closed in an orderly way, so that not even its end may be incomplete.
        check_batch: says what else is wrong with an intact batch, "" if nothing is.

    Raises:
        OSError: a file cannot be read.
    """
    checkup = LogCheckup()
    paths = sorted(directory.iterdir())
    segments = _segments(paths)
    _check_other_files(checkup, paths)
    point = _checkpoint(checkup, directory)
    checker = _SegmentChecker(checkup, point, clean=clean, check_batch=check_batch)
    ends = {path: checker.check(path) for path in segments}
    for path, following in pairwise(segments):
        end, base_offset = ends[path], _base_offset(following)
        if end is not None and end != base_offset:
            checkup.damage(
                following,
                f"it begins with offset {base_offset}, but the segment before it ends at {end}",
            )
    checkup.segments = len(segments)
    if segments:
        checkup.end_offset = ends[segments[-1]]
        _check_start(checkup, directory, _base_offset(segments[0]), point, clean=clean)
    _check_end(checkup, directory, point)
    return checkup


def _segments(paths: list[Path]) -> list[Path]:
    """Those that the log will have; the one of a swap that a crash has left half done counts."""
    segments = {
        _base_offset(path): path
        for path in paths
        if path.suffix == LOG_SUFFIX and path.stem.isdecimal()
    }
    for path in paths:
        bounds = swap_bounds(path)
        if bounds is not None:
            for base_offset in [each for each in segments if each in range(*bounds)]:
                del segments[base_offset]
            segments[bounds[0]] = path
    return [path for _, path in sorted(segments.items())]


def _check_other_files(checkup: LogCheckup, paths: list[Path]) -> None:
    for path in paths:
        if path.suffix in _LEFTOVERS:
            checkup.note(path, "left by a crash; the next start finishes what it was for")
        elif path.name == UNSYNCED_FILE:
            checkup.note(
                path, "the disk failed to sync; the next start writes again what it may lack"
            )
        elif path.suffix == ".lost":
            checkup.damage(
                path, "set aside by an earlier start: its records are missing in the log"
            )
        elif path.suffix == _SNAPSHOT or path.name == COMPACTION_FILE:
            _check_sealed(checkup, path)
        elif path.suffix in INDEX_SUFFIXES and not path.with_suffix(LOG_SUFFIX).exists():
            checkup.note(path, "an index without its segment; the next start deletes it")


def _check_sealed(checkup: LogCheckup, path: Path) -> None:
    try:
        payload = read_sealed(path)
        if path.suffix == _SNAPSHOT and payload is not None:
            ProducerStates().load(payload)
    except (LogCorrupt, ValueError) as error:
        checkup.note(path, f"cannot be used, it will be made anew: {error}")


def _checkpoint(checkup: LogCheckup, directory: Path) -> Checkpoint | None:
    path = directory / CHECKPOINT_FILE
    point = Checkpoint.load(directory)
    if point is None and path.exists():
        checkup.damage(
            path, "it is damaged: deleted records come back, and all of the log is scanned"
        )
    return point


def _check_start(
    checkup: LogCheckup,
    directory: Path,
    first_offset: int,
    point: Checkpoint | None,
    *,
    clean: bool,
) -> None:
    path = directory / CHECKPOINT_FILE
    if point is not None and first_offset > point.log_start_offset:
        checkup.damage(
            directory,
            f"it begins with offset {first_offset}, but with {point.log_start_offset} when something was"
            " last deleted: its first segments are missing",
        )
    elif clean and not path.exists():
        checkup.damage(
            path, "it is missing: deleted records come back, and all of the log is scanned"
        )


def _check_end(checkup: LogCheckup, directory: Path, point: Checkpoint | None) -> None:
    end = checkup.end_offset
    if point is None or (end is None and checkup.segments):
        return
    if not checkup.segments and point.recovery_point > point.log_start_offset:
        checkup.damage(
            directory, f"its segments are gone, with offsets up to {point.recovery_point}"
        )
    elif end is not None and end < point.recovery_point:
        checkup.damage(
            directory, f"it ends at offset {end}, but {point.recovery_point} was on disk already"
        )


class _SegmentChecker:
    """Examines one segment after the other."""

    def __init__(
        self,
        checkup: LogCheckup,
        point: Checkpoint | None,
        *,
        clean: bool,
        check_batch: Callable[[FoundBatch], str] | None,
    ) -> None:
        self._checkup = checkup
        self._point = point
        self._clean = clean
        self._check_batch = check_batch

    def check(self, path: Path) -> int | None:
        """The offset at which the segment ends, None if nobody can tell."""
        checkup, base_offset = self._checkup, _base_offset(path)
        size = path.stat().st_size
        checkup.size_bytes += size
        offset = base_offset
        try:
            for batch in found_batches(path):
                problem = batch.problem or self._out_of_place(batch, offset)
                if problem and self._may_be_torn(path, batch.position):
                    return self._torn(path, batch.position, size, offset)
                if not problem and self._check_batch is not None:
                    problem = self._check_batch(batch)
                if problem:
                    first, last = batch.header.base_offset, batch.header.last_offset
                    checkup.damage(
                        path, f"byte {batch.position}, offsets {first} to {last}: {problem}"
                    )
                checkup.batches += 1
                offset = batch.header.next_offset
        except LogCorrupt as error:
            if self._may_be_torn(path, error.position):
                return self._torn(path, error.position, size, offset)
            lost = size - error.position
            checkup.damage(
                path, f"byte {error.position}: {error.reason}; {lost} bytes cannot be read"
            )
            return None
        self._check_index(path, size, offset)
        return offset

    def _out_of_place(self, batch: FoundBatch, offset: int) -> str:
        if batch.header.base_offset != offset:
            return f"it should begin with offset {offset}"
        if batch.header.leader_epoch != LEADER_EPOCH:
            return f"leader epoch {batch.header.leader_epoch} instead of {LEADER_EPOCH}"
        return ""

    def _may_be_torn(self, path: Path, position: int) -> bool:
        """Whether this was being written when the broker or the machine died."""
        if self._clean:
            return False
        point, base_offset = self._point, _base_offset(path)
        if point is None or base_offset > point.segment:
            return True
        return base_offset == point.segment and position >= point.position

    def _torn(self, path: Path, position: int, size: int, end_offset: int) -> int:
        self._checkup.note(
            path,
            f"the broker died while it wrote: the next start cuts off {size - position} bytes from"
            f" byte {position} (offset {end_offset}) on",
        )
        return end_offset

    def _check_index(self, path: Path, size: int, end_offset: int) -> None:
        if not path.with_suffix(INDEX_SUFFIXES[0]).exists():
            return
        base_offset = _base_offset(path)
        index = SegmentIndex.load(path, base_offset, log_size=size, next_offset=end_offset)
        if index is None:
            self._checkup.note(path.with_suffix(INDEX_SUFFIXES[0]), "outdated; it is made anew")
            return
        if not _leads_to_batches(path, index):
            self._checkup.damage(
                path.with_suffix(INDEX_SUFFIXES[0]),
                "it points to where no batch begins; delete it, it will be made anew",
            )


def _base_offset(path: Path) -> int:
    """Of a segment, also of one that is to take the place of others."""
    return int(path.name[:_DIGITS])


def _leads_to_batches(path: Path, index: SegmentIndex) -> bool:
    with path.open("rb") as file:
        for offset, position in index.entries():
            file.seek(position)
            try:
                if parse_header(file.read(HEADER_BYTES)).base_offset != offset:
                    return False
            except BatchError:
                return False
    return True
