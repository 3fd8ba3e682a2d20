"""Every setting that a topic may have, by Kafka's names.

Source: https://kafka.apache.org/documentation/#topicconfigs. Settings of tiered storage and those that
Kafka 4 has removed are not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.topics.config_entry import ConfigType

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TOPIC_SETTINGS", "TopicSetting"]


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of topics; it has one of `field`, `fixed` and `unused`.

    Attributes:
        broker_name: the broker's setting that holds for topics without their own, by Kafka's name.
        field: its name in `LogConfig`.
        fixed: the single value that it may have, because another one could not be kept to.
        unused: the default of a setting that may have any value, because on one node all are alike.
    """

    name: str
    type: ConfigType
    documentation: str
    broker_name: str
    field: str = ""
    fixed: str = ""
    unused: str | None = None


_NO_EFFECT: Final = "Accepted, without effect: there is one replica."
_NOT_TIERED: Final = "All records are on this broker's disk."
_NOTHING_DELAYED: Final = "Accepted, without effect: files are not kept back or made in advance."
_BROKERS_FSYNC: Final = "Taken where the broker's --fsync keeps it anyway."

_ALL: Final = (
    TopicSetting(
        "cleanup.policy",
        ConfigType.LIST,
        "What happens to old records: delete (by age and bytes), compact (the latest of each key"
        " stays), or both; nothing where it is empty.",
        "log.cleanup.policy",
        field="cleanup_policy",
    ),
    *(
        TopicSetting(
            f"compression.{codec}.level",
            ConfigType.INT,
            f"How hard to compress what came in another codec, if compression.type is {codec}.",
            f"compression.{codec}.level",
            field=f"compression_{codec}_level",
        )
        for codec in ("gzip", "lz4", "zstd")
    ),
    TopicSetting(
        "compression.type",
        ConfigType.STRING,
        "Codec of stored batches: uncompressed, gzip, snappy, lz4, zstd; producer keeps what the"
        " producer chose.",
        "compression.type",
        field="compression_type",
    ),
    TopicSetting(
        "delete.retention.ms",
        ConfigType.LONG,
        "How long a tombstone is kept after compaction has removed its key's older records.",
        "log.cleaner.delete.retention.ms",
        field="delete_retention_ms",
    ),
    TopicSetting(
        "file.delete.delay.ms",
        ConfigType.LONG,
        _NOTHING_DELAYED,
        "log.segment.delete.delay.ms",
        unused="60000",
    ),
    TopicSetting(
        "flush.messages",
        ConfigType.LONG,
        f"Most records that may be acknowledged before they are on disk. {_BROKERS_FSYNC}",
        "log.flush.interval.messages",
        field="flush_messages",
    ),
    TopicSetting(
        "flush.ms",
        ConfigType.LONG,
        f"Longest time between an acknowledgement and the disk. {_BROKERS_FSYNC}",
        "log.flush.interval.ms",
        field="flush_ms",
    ),
    TopicSetting(
        "follower.replication.throttled.replicas", ConfigType.LIST, _NO_EFFECT, "", unused=""
    ),
    TopicSetting(
        "index.interval.bytes",
        ConfigType.INT,
        "Bytes of log between two index entries.",
        "log.index.interval.bytes",
        field="index_interval_bytes",
    ),
    TopicSetting(
        "leader.replication.throttled.replicas", ConfigType.LIST, _NO_EFFECT, "", unused=""
    ),
    TopicSetting(
        "local.retention.bytes",
        ConfigType.LONG,
        _NOT_TIERED,
        "log.local.retention.bytes",
        fixed="-2",
    ),
    TopicSetting(
        "local.retention.ms", ConfigType.LONG, _NOT_TIERED, "log.local.retention.ms", fixed="-2"
    ),
    TopicSetting(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        "Age at which records are compacted, however little there is to gain.",
        "log.cleaner.max.compaction.lag.ms",
        field="max_compaction_lag_ms",
    ),
    TopicSetting(
        "max.message.bytes",
        ConfigType.INT,
        "Bytes of the largest record batch.",
        "message.max.bytes",
        field="max_message_bytes",
    ),
    TopicSetting(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        "How far a producer's timestamps may be ahead of the broker's clock.",
        "log.message.timestamp.after.max.ms",
        field="message_timestamp_after_max_ms",
    ),
    TopicSetting(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        "How far a producer's timestamps may be behind the broker's clock.",
        "log.message.timestamp.before.max.ms",
        field="message_timestamp_before_max_ms",
    ),
    TopicSetting(
        "message.timestamp.type",
        ConfigType.STRING,
        "Whose clock timestamps are from: CreateTime or LogAppendTime.",
        "log.message.timestamp.type",
        field="message_timestamp_type",
    ),
    TopicSetting(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "Share of bytes that compaction has not seen yet from which on it begins.",
        "log.cleaner.min.cleanable.ratio",
        field="min_cleanable_dirty_ratio",
    ),
    TopicSetting(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "Age before which records are not compacted.",
        "log.cleaner.min.compaction.lag.ms",
        field="min_compaction_lag_ms",
    ),
    TopicSetting(
        "min.insync.replicas",
        ConfigType.INT,
        "There is one replica, and it is in sync.",
        "min.insync.replicas",
        fixed="1",
    ),
    TopicSetting(
        "preallocate", ConfigType.BOOLEAN, _NOTHING_DELAYED, "log.preallocate", unused="false"
    ),
    TopicSetting("remote.log.copy.disable", ConfigType.BOOLEAN, _NOT_TIERED, "", fixed="false"),
    TopicSetting(
        "remote.log.delete.on.disable", ConfigType.BOOLEAN, _NOT_TIERED, "", fixed="false"
    ),
    TopicSetting("remote.storage.enable", ConfigType.BOOLEAN, _NOT_TIERED, "", fixed="false"),
    TopicSetting(
        "retention.bytes",
        ConfigType.LONG,
        "Bytes of one partition beyond which its oldest segments are deleted; -1: no limit.",
        "log.retention.bytes",
        field="retention_bytes",
    ),
    TopicSetting(
        "retention.ms",
        ConfigType.LONG,
        "Age at which segments are deleted; -1: no limit.",
        "log.retention.ms",
        field="retention_ms",
    ),
    TopicSetting(
        "segment.bytes",
        ConfigType.INT,
        "Bytes after which a segment is closed.",
        "log.segment.bytes",
        field="segment_bytes",
    ),
    TopicSetting(
        "segment.index.bytes",
        ConfigType.INT,
        _NOTHING_DELAYED,
        "log.index.size.max.bytes",
        unused="10485760",
    ),
    TopicSetting(
        "segment.jitter.ms", ConfigType.LONG, _NOTHING_DELAYED, "log.roll.jitter.ms", unused="0"
    ),
    TopicSetting(
        "segment.ms",
        ConfigType.LONG,
        "Age at which a segment is closed.",
        "log.roll.ms",
        field="segment_ms",
    ),
    TopicSetting(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        _NO_EFFECT,
        "unclean.leader.election.enable",
        unused="false",
    ),
)

TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {setting.name: setting for setting in _ALL}
