"""Settings of one partition's log, by the names of Kafka's topic settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "DEFAULT_RETENTION_MS",
    "NO_TIME_LIMIT",
    "CompressionType",
    "FsyncPolicy",
    "LogConfig",
    "TimestampType",
]

TimestampType = Literal["CreateTime", "LogAppendTime"]
CompressionType = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
FsyncPolicy = Literal["always", "interval", "os"]

DEFAULT_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
NO_TIME_LIMIT: Final = 2**63 - 1
_MAX_INT: Final = 2**31 - 1
_CLEANUP_POLICIES: Final = frozenset({"compact", "delete"})
_CHOICES: Final = {
    "compression_type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "message_timestamp_type": ("CreateTime", "LogAppendTime"),
    "fsync": ("always", "interval", "os"),
}
_ANY_GZIP_LEVEL: Final = -1  # the library's default
_BOUNDS: Final = {
    "segment_bytes": (1, _MAX_INT),
    "segment_ms": (1, NO_TIME_LIMIT),
    "retention_bytes": (-1, NO_TIME_LIMIT),
    "retention_ms": (-1, NO_TIME_LIMIT),
    "delete_retention_ms": (0, NO_TIME_LIMIT),
    "min_compaction_lag_ms": (0, NO_TIME_LIMIT),
    "max_compaction_lag_ms": (1, NO_TIME_LIMIT),
    "min_cleanable_dirty_ratio": (0, 1),
    "max_message_bytes": (0, _MAX_INT),
    "message_timestamp_before_max_ms": (0, NO_TIME_LIMIT),
    "message_timestamp_after_max_ms": (0, NO_TIME_LIMIT),
    "index_interval_bytes": (0, _MAX_INT),
    "compression_gzip_level": (_ANY_GZIP_LEVEL, 9),
    "compression_lz4_level": (1, 17),
    "compression_zstd_level": (-131_072, 22),
    "flush_messages": (1, NO_TIME_LIMIT),
    "flush_ms": (0, NO_TIME_LIMIT),
    "producer_id_expiration_ms": (1, NO_TIME_LIMIT),
}


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
        cleanup_policy: "delete" (old segments go), "compact" (only the latest record of each key
            stays), or both, separated by a comma; empty: everything is kept (KIP-1161).
        delete_retention_ms: how long a tombstone is kept once its key's older records are gone.
        min_compaction_lag_ms: a record stays as it is for at least this long.
        max_compaction_lag_ms: after this long a record is compacted however little there is to gain.
        min_cleanable_dirty_ratio: share of the bytes that compaction has not seen from which on it
            begins, 0 to 1.
        compression_type: codec of stored batches; "producer" keeps what the producer chose.
        compression_gzip_level: how hard to compress what came in another codec, 1 to 9; -1: as usual.
        compression_lz4_level: the same of lz4, 1 to 17.
        compression_zstd_level: the same of zstd, -131072 to 22.
        max_message_bytes: largest batch that is accepted, in bytes.
        message_timestamp_type: whose clock the records' timestamps are from.
        message_timestamp_before_max_ms: how far a producer's timestamps may be behind this clock.
        message_timestamp_after_max_ms: how far they may be ahead of it: an hour, as with Kafka 4
            (KIP-937), so that microseconds taken for milliseconds are noticed.
        index_interval_bytes: bytes of log between two index entries.
        producer_id_expiration_ms: how long a producer that has sent nothing is remembered, so that
            what it sends twice is written once.
        fsync: when an acknowledged record is on disk: "always" before the acknowledgement,
            "interval" within `fsync_interval` seconds, "os" when the operating system likes.
        fsync_interval: seconds between two syncs under "interval".
        flush_messages: most records that may be acknowledged before they are on disk.
        flush_ms: longest time that a record may be acknowledged and not on disk. Both ask nothing of
            their own: they are taken where `fsync` keeps them anyway.

    Raises:
        ValueError: a setting is out of its range; the message names it.
    """

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = DEFAULT_RETENTION_MS
    retention_bytes: int = -1
    retention_ms: int = DEFAULT_RETENTION_MS
    cleanup_policy: str = "delete"
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_TIME_LIMIT
    min_cleanable_dirty_ratio: float = 0.5
    compression_type: CompressionType = "producer"
    compression_gzip_level: int = _ANY_GZIP_LEVEL
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    max_message_bytes: int = 1_048_588
    message_timestamp_type: TimestampType = "CreateTime"
    message_timestamp_before_max_ms: int = NO_TIME_LIMIT
    message_timestamp_after_max_ms: int = 3600 * 1000
    index_interval_bytes: int = 4096
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    fsync: FsyncPolicy = "interval"
    fsync_interval: float = 1.0
    flush_messages: int = NO_TIME_LIMIT
    flush_ms: int = NO_TIME_LIMIT

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                limit = f"at least {low}" if high == NO_TIME_LIMIT else f"{low} to {high}"
                raise ValueError(f"{name} = {value}: must be {limit}")
        if not self.compression_gzip_level:
            raise ValueError("compression_gzip_level = 0: must be -1, or 1 to 9")
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ValueError(
                f"min_compaction_lag_ms = {self.min_compaction_lag_ms}: must be at most"
                f" max_compaction_lag_ms ({self.max_compaction_lag_ms})"
            )
        if self.fsync_interval <= 0:
            raise ValueError(f"fsync_interval = {self.fsync_interval}: must be more than 0 seconds")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r}: must be one of {', '.join(allowed)}"
                )
        policies = {each.strip() for each in self.cleanup_policy.split(",")}
        if policies != {""} and not policies <= _CLEANUP_POLICIES:
            raise ValueError(
                f"cleanup_policy = {self.cleanup_policy!r}: must be delete, compact, both, or empty"
            )
        self._check_syncs()

    def _check_syncs(self) -> None:
        if self.fsync == "always":
            return
        if self.flush_messages < NO_TIME_LIMIT:
            raise ValueError(
                f"flush_messages = {self.flush_messages}: is kept by brokers with --fsync always"
            )
        kept = self.fsync_interval * 1000 if self.fsync == "interval" else NO_TIME_LIMIT
        if self.flush_ms < kept:
            raise ValueError(
                f"flush_ms = {self.flush_ms}: is kept by brokers with a shorter --fsync-interval,"
                " or with --fsync always"
            )

    @property
    def compression_level(self) -> int | None:
        """Of the codec of stored batches; None where there is none, or the usual one is meant."""
        match self.compression_type:
            case "gzip":
                level = self.compression_gzip_level
                return None if level == _ANY_GZIP_LEVEL else level
            case "lz4":
                return self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether only the latest record of each key is kept."""
        return "compact" in self.cleanup_policy
