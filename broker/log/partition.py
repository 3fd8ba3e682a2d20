"""The log of one partition: segments of record batches, appended, read, expired and recovered.

Everything but `fsync` is called from one thread, the event loop's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from broker.log.config import LogConfig
    from broker.producers import ProducerStates
    from broker.records import BatchHeader

__all__ = [
    "Appended",
    "DeletedSegment",
    "PartitionLog",
    "ReadResult",
    "RecoveryReport",
    "Span",
]


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

    `size` bytes, from the batch that contains the requested offset up to `next_offset` (exclusive).
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


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a log found and did; the caller logs it.

    Attributes:
        scanned_bytes: bytes whose CRCs were checked; 0 after a clean stop.
        truncated_bytes: bytes cut off at the first bad batch; 0: nothing was lost.
        truncated_at: offset at which the log ends since the cut, None if nothing was cut.
        reason: what was wrong with the first bad batch, with file and position.
        set_aside: segments after the cut, renamed to `*.lost` so that nobody reads them.
        lost_durable_records: offsets that were known to be on disk, but are not there any more; more
            than 0 means that the disk or a person damaged the log, not a crash.
        rebuilt_indexes: segments whose index files were missing or damaged.
    """

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_at: int | None = None
    reason: str = ""
    set_aside: tuple[str, ...] = ()
    lost_durable_records: int = 0
    rebuilt_indexes: int = 0

    @property
    def lost_data(self) -> bool:
        """Whether bytes were cut off or records are missing (a torn last write counts)."""
        return bool(self.truncated_bytes or self.set_aside or self.lost_durable_records)


class PartitionLog:
    """The log of one partition.

    Offsets are contiguous from `log_start_offset` (inclusive) to `next_offset` (exclusive).
    """

    @classmethod
    def open(cls, directory: Path, config: LogConfig, *, clean: bool) -> PartitionLog:
        """Opens or creates the log in `directory`, and recovers it unless it was closed cleanly.

        Args:
            directory: one directory per partition; created if missing.
            config: see `LogConfig`; may change later by `update_config`.
            clean: False forces the scan from the recovery point, as after a kill or a power loss.

        Raises:
            LogCorrupt: the log cannot be opened without hiding a loss.
            OSError: the directory cannot be read or written.
        """
        raise NotImplementedError

    directory: Path
    config: LogConfig
    recovery: RecoveryReport
    producers: ProducerStates

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        raise NotImplementedError

    @property
    def next_offset(self) -> int:
        """Offset of the next record to be appended: the log end offset."""
        raise NotImplementedError

    @property
    def high_watermark(self) -> int:
        """Offsets below are visible to consumers; on a single node the log end offset."""
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> int:
        """Offsets below belong to no open transaction; the high watermark without transactions."""
        raise NotImplementedError

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk, and the checkpoint file says so."""
        raise NotImplementedError

    @property
    def durable_offset(self) -> int:
        """Everything below has been synced to disk; acks under fsync "always" wait for this."""
        raise NotImplementedError

    @property
    def dirty(self) -> bool:
        """Whether there are appended batches that `fsync` has not yet made durable."""
        raise NotImplementedError

    @property
    def fsync_due(self) -> bool:
        """Whether a periodic task should call `fsync` now, by the policy.

        Under "os" only rolled segments are synced, so that recovery after a crash stays short.
        """
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        raise NotImplementedError

    def append(
        self, data: memoryview | bytearray, batches: Sequence[BatchHeader], *, now_ms: int
    ) -> Appended:
        """Appends checked batches, all or none, and assigns their offsets.

        `data` is patched in place and kept by reference until `flush_pending`: the caller must not
        change it before. Reads see the batches at once; they survive a kill of this process after
        `flush_pending`, a power loss when `durable_offset` has passed them.

        Args:
            data: nothing but the batches.
            batches: what `split_batches(data)` returned; one only, if it has a producer id.
            now_ms: milliseconds since the epoch, for LogAppendTime and rolling.

        Raises:
            ProducerError: sequence or epoch are wrong; nothing was appended.
            InvalidBatch: several batches with a producer id in one append.
            LogFailed: the disk failed.
        """
        raise NotImplementedError

    def flush_pending(self) -> None:
        """Writes what `append` collected with one system call; call it before acknowledging.

        Raises:
            LogFailed: nothing that was appended since the last call may be acknowledged.
        """
        raise NotImplementedError

    def read_into(self, offset: int, buffer: memoryview) -> Span:
        """Fills `buffer` with whole batches from the one that contains `offset` on.

        May stop early (at the end of a segment). Raises `OffsetOutOfRange`, `LogCorrupt`.
        """
        raise NotImplementedError

    def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Like `read_into` with a buffer of its own; `min_one`: a whole batch even beyond the limit."""
        raise NotImplementedError

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """`(offset, timestamp)` of the first record with this timestamp or a later one, or None."""
        raise NotImplementedError

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """`(offset, timestamp)` of the first record with the greatest timestamp, or None."""
        raise NotImplementedError

    def truncate_start(self, offset: int) -> None:
        """Deletes the records below `offset` for good (DeleteRecords).

        No effect at or below the log start. Raises `OffsetOutOfRange` beyond the log end.
        """
        raise NotImplementedError

    def apply_retention(self, now_ms: int) -> list[DeletedSegment]:
        """Deletes whole segments, oldest first, by age and bytes, and forgets idle producers."""
        raise NotImplementedError

    def roll(self) -> None:
        """Begins a new segment; no effect if the active one is empty."""
        raise NotImplementedError

    def update_config(self, config: LogConfig) -> None:
        """Settings for everything that is done from now on."""
        raise NotImplementedError

    def fsync(self) -> int:
        """Syncs what was flushed before the call; returns the new `durable_offset`.

        May run in another thread while this one appends. Raises `LogFailed`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Flushes, syncs, and marks the log as cleanly closed. Twice is fine."""
        raise NotImplementedError

    def delete(self) -> None:
        """Closes the log and removes its directory."""
        raise NotImplementedError
