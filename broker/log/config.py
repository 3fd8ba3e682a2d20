"""Settings of one partition's log, by the names of Kafka's topic settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["DEFAULT_RETENTION_MS", "CleanupPolicy", "FsyncPolicy", "LogConfig", "TimestampType"]

TimestampType = Literal["CreateTime", "LogAppendTime"]
CleanupPolicy = Literal["delete"]
FsyncPolicy = Literal["always", "interval", "os"]

DEFAULT_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
_MAX_SEGMENT_BYTES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one partition's log.

    Args:
        segment_bytes: a segment is rolled before it would exceed this (a larger batch gets a
            segment of its own).
        segment_ms: a segment is rolled when it spans this many milliseconds.
        retention_bytes: the oldest segments go while the others hold at least this much; -1: never.
        retention_ms: segments go when their newest record is older than this, by the records'
            timestamps; -1: never.
        max_message_bytes: largest batch that is accepted, in bytes.
        index_interval_bytes: bytes of log between two index entries.
        message_timestamp_type: whose clock the records' timestamps are from.
        cleanup_policy: what retention does with old segments.
        fsync: when an acknowledged record is on disk: "always" before the acknowledgement,
            "interval" within `fsync_interval` seconds, "os" when the operating system likes.
        fsync_interval: seconds between two syncs under "interval".

    Raises:
        ValueError: a setting is out of its range; the message names it.
    """

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = DEFAULT_RETENTION_MS
    retention_bytes: int = -1
    retention_ms: int = DEFAULT_RETENTION_MS
    max_message_bytes: int = 1_048_588
    index_interval_bytes: int = 4096
    message_timestamp_type: TimestampType = "CreateTime"
    cleanup_policy: CleanupPolicy = "delete"
    fsync: FsyncPolicy = "interval"
    fsync_interval: float = 1.0

    def __post_init__(self) -> None:
        bounds = {
            "segment_bytes": (1, _MAX_SEGMENT_BYTES),
            "segment_ms": (1, None),
            "retention_bytes": (-1, None),
            "retention_ms": (-1, None),
            "max_message_bytes": (0, _MAX_SEGMENT_BYTES),
            "index_interval_bytes": (0, None),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                limit = f"at least {low}" if high is None else f"{low} to {high}"
                raise ValueError(f"{name} = {value}: must be {limit}")
        if self.fsync_interval <= 0:
            raise ValueError(f"fsync_interval = {self.fsync_interval}: must be more than 0 seconds")
        choices = {
            "message_timestamp_type": ("CreateTime", "LogAppendTime"),
            "cleanup_policy": ("delete",),
            "fsync": ("always", "interval", "os"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r}: must be one of {', '.join(allowed)}"
                )
