"""Results and errors of a partition's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class LogError(Exception):
    """An operation on a partition's log failed."""


class OffsetNotInLog(LogError):
    """The offset is below the log start or beyond the log end (OFFSET_OUT_OF_RANGE)."""

    def __init__(self, offset: int, log_start_offset: int, next_offset: int) -> None:
        super().__init__(
            f"offset {offset} is out of range: the log holds {log_start_offset} to {next_offset}"
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.next_offset = next_offset


class LogCorrupt(LogError):
    """A file differs from what was written to it; the operator must act (KAFKA_STORAGE_ERROR)."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} is corrupt at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason

    def __reduce__(self) -> tuple[type[LogCorrupt], tuple[Path, int, str]]:
        return LogCorrupt, (self.path, self.position, self.reason)  # of another process


class SegmentGone(LogError):
    """A segment was deleted or replaced by its compacted form; read the log again from its segments."""


class LogFailed(LogError):
    """The disk refused a write or a sync (KAFKA_STORAGE_ERROR).

    After a failed write the log is as before the appends since the last flush, and producers may retry.
    After a failed sync, or if the rollback failed too, the content of the disk is unknown and every later
    append fails until a restart.
    """


class Appended(NamedTuple):
    """The offsets of one append's batches, inclusive.

    `log_append_time_ms` is -1 unless the log stamps LogAppendTime. `duplicate`: nothing was written,
    because the producer had sent this batch before; the offsets are those of the stored batch.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class ReadSpan(NamedTuple):
    """The whole batches that `read_into` put into the buffer.

    They take `size` bytes and end before `next_offset`. The first one contains the requested offset, or
    is a later one if that batch has no records. If `size` is 0, the log ends here (`needed_bytes` is 0) or
    the first batch does not fit into the buffer (it takes `needed_bytes`).
    """

    size: int
    first_offset: int
    next_offset: int
    needed_bytes: int = 0


class ReadResult(NamedTuple):
    """Whole batches with the offsets `first_offset` to `next_offset` (exclusive), possibly none.

    `first_offset` is the first batch's, so it may be below the requested offset.
    """

    data: memoryview
    first_offset: int
    next_offset: int
