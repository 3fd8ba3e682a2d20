"""Examine the files of a log that is not open, without writing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from .compaction import COMPACTION_FILE
from .durability import CHECKPOINT_FILE, Checkpoint
from .durable_files import DELETED, TEMPORARY, UNSYNCED_FILE, read_sealed
from .producers import SNAPSHOT_SUFFIX, ProducerStates
from .records import (
    HEADER_BYTES,
    LEADER_EPOCH,
    BatchError,
    BatchHeader,
    CorruptBatch,
    check_batch,
    parse_header,
)
from .results import LogCorrupt
from .segment import INDEX_SUFFIXES, LOG_SUFFIX, SegmentIndex
from .swap import SWAP, swap_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOST_SUFFIX: Final = ".lost"
"""Of segments that a start has set aside, because they are damaged."""


class FoundBatch(NamedTuple):
    """A batch in a file.

    Attributes:
        position: byte of the file at which it begins.
        header: its header; `header.position` is the one in `data`.
        data: the whole batch.
        problem: why its CRC check failed, "" if it is intact.
    """

    position: int
    header: BatchHeader
    data: memoryview
    problem: str


def found_batches(path: Path) -> Iterator[FoundBatch]:
    """Yield the batches of a segment, including those with a wrong CRC.

    Raises:
        LogCorrupt: a batch is incomplete or has no valid header, so the next one cannot be found.
        OSError: the file cannot be read.
    """
    size, position = path.stat().st_size, 0
    with path.open("rb") as file:
        while position < size:
            start = file.read(HEADER_BYTES)
            try:
                header = parse_header(start)
                if position + header.size > size:
                    raise CorruptBatch(
                        f"a batch of {header.size} bytes is announced, {size - position} are there"
                    )
            except BatchError as error:
                raise LogCorrupt(path, position, str(error)) from None
            data = memoryview(start + file.read(header.size - HEADER_BYTES))
            problem = ""
            try:
                check_batch(data, header)
            except CorruptBatch as error:
                problem = str(error)
            yield FoundBatch(position, header, data, problem)
            position += header.size


_LEFTOVERS: Final = (TEMPORARY, DELETED, SWAP)


class CheckupFinding(NamedTuple):
    """A finding about a file or directory.

    `kind`: for "damage" (lost or unreadable data) the operator must act; a "note" needs no action, the next
    start of the broker repairs it.
    """

    kind: Literal["damage", "note"]
    where: Path
    what: str


@dataclass(slots=True)
class Checkup:
    """Findings, and totals of the checked files."""

    findings: list[CheckupFinding] = field(default_factory=list)
    segments: int = 0
    batches: int = 0
    size_bytes: int = 0

    def damage(self, where: Path, what: str) -> None:
        """Add a finding that the operator must act on."""
        self.findings.append(CheckupFinding("damage", where, what))

    def note(self, where: Path, what: str) -> None:
        """Add a finding that the next start repairs."""
        self.findings.append(CheckupFinding("note", where, what))


@dataclass(slots=True, kw_only=True)
class _LogCheckup:
    """The checkup of one log; see `check_log`. `end_offset` is None if it cannot be determined."""

    into: Checkup
    directory: Path
    clean: bool
    check_batch: Callable[[FoundBatch], str] | None
    point: Checkpoint | None = None
    end_offset: int | None = None

    def run(self) -> None:
        """Check all files of the log."""
        paths = sorted(self.directory.iterdir())
        for path in paths:
            self._check_other_file(path)
        checkpoint = self.directory / CHECKPOINT_FILE
        self.point = Checkpoint.load(self.directory)
        if self.point is None and checkpoint.exists():
            self.into.damage(
                checkpoint, "it is damaged: deleted records come back, and the whole log is scanned"
            )
        segments = _segments(paths)
        self.into.segments += len(segments)
        for base_offset, path in sorted(segments.items()):
            if self.end_offset not in (None, base_offset):
                self.into.damage(
                    path,
                    f"it begins at offset {base_offset}, but the previous segment ends at"
                    f" {self.end_offset}",
                )
            self.end_offset = self._check_segment(path, base_offset)
        if segments and self.clean and not checkpoint.exists():
            self.into.damage(
                checkpoint, "it is missing: deleted records come back, and the whole log is scanned"
            )
        if self.point is not None:
            self._check_bounds(self.point, min(segments, default=None))

    def _check_other_file(self, path: Path) -> None:
        if path.suffix in _LEFTOVERS:
            self.into.note(path, "left by a crash; the next start finishes or deletes it")
        elif path.name == UNSYNCED_FILE:
            self.into.note(
                path,
                "the disk failed to sync; the next start writes the records after the checkpoint again",
            )
        elif path.suffix == LOST_SUFFIX:
            self.into.damage(
                path, "set aside by an earlier start; its records are missing from the log"
            )
        elif path.suffix == SNAPSHOT_SUFFIX or path.name == COMPACTION_FILE:
            try:
                payload = read_sealed(path)
                if path.suffix == SNAPSHOT_SUFFIX and payload is not None:
                    ProducerStates().load(payload)
            except (LogCorrupt, ValueError) as error:
                self.into.note(path, f"cannot be used, will be rebuilt: {error}")
        elif path.suffix in INDEX_SUFFIXES and not path.with_suffix(LOG_SUFFIX).exists():
            self.into.note(path, "an index without its segment; the next start deletes it")

    def _check_bounds(self, point: Checkpoint, first_offset: int | None) -> None:
        if first_offset is None:
            if point.recovery_point > point.log_start_offset:
                self.into.damage(
                    self.directory, f"its segments are missing, up to offset {point.recovery_point}"
                )
            return
        if first_offset > point.log_start_offset:
            self.into.damage(
                self.directory,
                f"it begins at offset {first_offset}, but the checkpoint says {point.log_start_offset}: its"
                " first segments are missing",
            )
        if self.end_offset is not None and self.end_offset < point.recovery_point:
            self.into.damage(
                self.directory,
                f"it ends at offset {self.end_offset}, but was synced up to {point.recovery_point}",
            )

    def _check_segment(self, path: Path, base_offset: int) -> int | None:
        """Check a segment; return its end offset, None if it cannot be determined."""
        size = path.stat().st_size
        self.into.size_bytes += size
        offset = base_offset
        try:
            for batch in found_batches(path):
                problem = batch.problem or _out_of_place(batch.header, offset)
                if problem and self._may_be_torn(base_offset, batch.position):
                    raise LogCorrupt(path, batch.position, problem)
                if not problem and self.check_batch is not None:
                    problem = self.check_batch(batch)
                if problem:
                    first, last = batch.header.base_offset, batch.header.last_offset
                    self.into.damage(
                        path, f"byte {batch.position}, offsets {first} to {last}: {problem}"
                    )
                self.into.batches += 1
                offset = batch.header.next_offset
        except LogCorrupt as error:
            left = size - error.position
            if self._may_be_torn(base_offset, error.position):
                self.into.note(
                    path,
                    f"the last write was interrupted; the next start cuts off {left} bytes from byte"
                    f" {error.position} (offset {offset}) on",
                )
                return offset
            self.into.damage(
                path, f"byte {error.position}: {error.reason}; {left} bytes cannot be read"
            )
            return None
        self._check_index(path, base_offset, size, offset)
        return offset

    def _may_be_torn(self, base_offset: int, position: int) -> bool:
        """Whether a crash may have interrupted the write of these bytes."""
        if self.clean:
            return False
        if self.point is None:
            return True
        return (base_offset, position) >= (self.point.segment, self.point.position)

    def _check_index(self, path: Path, base_offset: int, size: int, end_offset: int) -> None:
        index_path = path.with_suffix(INDEX_SUFFIXES[0])
        if not index_path.exists():
            return
        index = SegmentIndex.load(path, base_offset, log_size=size, next_offset=end_offset)
        if index is None:
            self.into.note(index_path, "outdated; will be rebuilt")
        elif not _leads_to_batches(path, index):
            self.into.damage(
                index_path, "an entry points to no batch; delete the file, it will be rebuilt"
            )


def check_log(
    into: Checkup,
    directory: Path,
    *,
    clean: bool,
    check_batch: Callable[[FoundBatch], str] | None = None,
) -> int | None:
    """Check every batch and its CRC, the offsets, the indexes and the checkpoint of a log.

    Returns the offset at which it ends, None if that cannot be determined.

    Args:
        into: where findings and totals are added.
        directory: the log's.
        clean: whether the log was closed, so that even an incomplete batch at its end is damage.
        check_batch: further check of an intact batch; returns the problem, or "".

    Raises:
        OSError: a file cannot be read.
    """
    checkup = _LogCheckup(into=into, directory=directory, clean=clean, check_batch=check_batch)
    checkup.run()
    return checkup.end_offset


def _segments(paths: list[Path]) -> dict[int, Path]:
    """Return the log's segments by base offset, as after finishing any interrupted swap."""
    segments = {
        int(path.stem): path
        for path in paths
        if path.suffix == LOG_SUFFIX and path.stem.isdecimal()
    }
    for path in paths:
        bounds = swap_bounds(path)
        if bounds is not None:
            segments = {each: segments[each] for each in segments if each not in range(*bounds)}
            segments[bounds[0]] = path
    return segments


def _out_of_place(header: BatchHeader, offset: int) -> str:
    if header.base_offset != offset:
        return f"it should begin at offset {offset}"
    if header.leader_epoch != LEADER_EPOCH:
        return f"leader epoch {header.leader_epoch} instead of {LEADER_EPOCH}"
    return ""


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
