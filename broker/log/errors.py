"""What can go wrong with a partition's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LogCorrupt", "LogError", "LogFailed", "OffsetOutOfRange"]


class LogError(Exception):
    """A partition's log cannot do what was asked."""


class OffsetOutOfRange(LogError):
    """The offset is below the log start or beyond the log end (OFFSET_OUT_OF_RANGE)."""

    def __init__(self, offset: int, log_start_offset: int, next_offset: int) -> None:
        super().__init__(
            f"offset {offset} is out of range: the log holds {log_start_offset} to {next_offset}"
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.next_offset = next_offset


class LogCorrupt(LogError):
    """A file does not hold what was written to it; the operator must act (KAFKA_STORAGE_ERROR)."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} is corrupt at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class LogFailed(LogError):
    """The disk refused a write or a sync (KAFKA_STORAGE_ERROR).

    After a failed write the log is as before the appends since the last flush: producers may try
    again. After a failed sync, or when the rollback failed too, every later append fails until a
    restart, because nobody knows what is on disk.
    """
