"""What a partition's log answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Appended", "Cleanings", "DeletedSegment", "ReadResult", "RecoveryReport", "Span"]


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the batches of one append are (offsets inclusive).

    `log_append_time_ms` is -1 unless the log stamps LogAppendTime. `duplicate`: nothing was written,
    the producer had sent this batch before; the offsets are those of the first time.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """What `read_into` put into the buffer: whole batches.

    `size` bytes, from the batch that contains the requested offset, or a later one where that has no
    records, up to `next_offset` (exclusive).
    `size == 0`: the log ends here (`needed_bytes == 0`), or the buffer cannot hold the first batch,
    which takes `needed_bytes`.
    """

    size: int
    first_offset: int
    next_offset: int
    needed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Whole batches with the offsets `first_offset` to `next_offset` (exclusive), maybe none.

    `first_offset` may be below the requested offset: it is that of the first batch.
    """

    data: memoryview
    first_offset: int
    next_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment that retention removed: offsets `base_offset` to `next_offset` (exclusive)."""

    base_offset: int
    next_offset: int
    size_bytes: int


class Cleanings(NamedTuple):
    """How many times a log was made smaller since it is open, and the bytes that this freed."""

    number: int = 0
    freed_bytes: int = 0

    def and_one(self, freed_bytes: int) -> Cleanings:
        """One more."""
        return Cleanings(self.number + 1, self.freed_bytes + freed_bytes)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a log found and did; the caller logs it.

    Attributes:
        scanned_bytes: bytes whose CRCs were checked; 0 after a clean stop.
        truncated_bytes: bytes cut off from the first bad batch on; 0: nothing was cut.
        truncated_at: offset at which the log ends since then, None if nothing was cut.
        reason: what was wrong with that batch, with file and position; "" if nothing was cut.
        set_aside: files after the cut, renamed to `*.lost`: nobody reads them, nothing deletes them.
        lost_durable_records: records, at least, that had been on disk and are gone. More than 0 means
            that the disk or a person damaged the log; a crash alone does not.
        lost_checkpoint: why nobody knows where the log started: records that had been deleted may be
            back. "" if it is known.
        damaged: what is wrong with batches that were kept because they had been on disk before the
            crash; reading them fails. "" if nothing is.
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
        """Whether something was cut, set aside or is gone.

        A kill in the middle of a write leaves a torn batch, which is cut. More than that is told by
        `set_aside` and `lost_durable_records`.
        """
        return bool(self.truncated_bytes or self.set_aside or self.lost_durable_records)
