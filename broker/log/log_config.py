"""Settings of one partition's log, named after Kafka's topic settings; defaults shared with the broker's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

TimestampType = Literal["CreateTime", "LogAppendTime"]
CompressionType = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
FsyncPolicy = Literal["always", "interval", "os"]

# Defaults of the settings that `BrokerSettings` has too.
DEFAULT_SEGMENT_MS: Final = 7 * 24 * 3600 * 1000
DEFAULT_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096
DEFAULT_PRODUCER_EXPIRATION_MS: Final = 24 * 3600 * 1000
DEFAULT_FSYNC: Final[FsyncPolicy] = "interval"
DEFAULT_FSYNC_INTERVAL: Final = 1.0  # seconds
NO_TIME_LIMIT: Final = 2**63 - 1
_MAX_INT: Final = 2**31 - 1
_UNCOMPRESSED_FACTOR: Final = 16
_CLEANUP_POLICIES: Final = frozenset({"compact", "delete"})
_CHOICES: Final = {
    "compression_type": get_args(CompressionType),
    "message_timestamp_type": get_args(TimestampType),
    "fsync": get_args(FsyncPolicy),
}
_ANY_GZIP_LEVEL: Final = -1  # the library's default
BOUNDS: Final = {
    "segment_bytes": (1, _MAX_INT),
    "segment_ms": (1, NO_TIME_LIMIT),
    "retention_bytes": (-NO_TIME_LIMIT - 1, NO_TIME_LIMIT),
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
"""Least and greatest value of each number."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one partition's log. `kmr.broker.topics.topic_config` documents those that are not here.

    Args:
        segment_bytes: size at which a segment is rolled; a larger batch gets a segment of its own.
        retention_bytes: the oldest segments are deleted while the others have at least this size; below 0:
            never.
        cleanup_policy: "delete" (old segments), "compact" (keep the latest record of each key), or both,
            separated by a comma; empty: keep everything (KIP-1161).
        compression_gzip_level: 1 to 9; -1: the default.
        compression_lz4_level: 1 to 17.
        compression_zstd_level: -131072 to 22.
        message_timestamp_after_max_ms: how far a producer's timestamps may be ahead of the broker's clock:
            an hour, as in Kafka 4 (KIP-937), so that timestamps in microseconds are noticed.
        producer_id_expiration_ms: time that an idle producer is remembered, to recognise its duplicates.
        fsync: when an acknowledged record is synced to disk: "always" before the acknowledgement,
            "interval" within `fsync_interval` seconds, "os" when the operating system does.
        fsync_interval: seconds between two syncs under "interval".
        flush_messages, flush_ms: cause no syncs: they are accepted if `fsync` is at least as strict.

    Raises:
        ValueError: a setting is out of its range; the message names it.
    """

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = DEFAULT_SEGMENT_MS
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
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    message_timestamp_type: TimestampType = "CreateTime"
    message_timestamp_before_max_ms: int = NO_TIME_LIMIT
    message_timestamp_after_max_ms: int = 3600 * 1000
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    producer_id_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS
    fsync: FsyncPolicy = DEFAULT_FSYNC
    fsync_interval: float = DEFAULT_FSYNC_INTERVAL
    flush_messages: int = NO_TIME_LIMIT
    flush_ms: int = NO_TIME_LIMIT

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
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
                f"flush_messages = {self.flush_messages}: needs a broker with --fsync always"
            )
        kept = self.fsync_interval * 1000 if self.fsync == "interval" else NO_TIME_LIMIT
        if self.flush_ms < kept:
            raise ValueError(
                f"flush_ms = {self.flush_ms}: needs a broker with a shorter --fsync-interval, or with"
                " --fsync always"
            )

    @property
    def compression_level(self) -> int | None:
        """Level for the codec of stored batches; None: the codec's default, or it has no levels."""
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
    def max_uncompressed_bytes(self) -> int:
        """Most bytes that the records of one batch may take without compression where they are read."""
        return _UNCOMPRESSED_FACTOR * max(self.max_message_bytes, DEFAULT_MAX_MESSAGE_BYTES)

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether compaction keeps only the latest record of each key."""
        return "compact" in self.cleanup_policy
