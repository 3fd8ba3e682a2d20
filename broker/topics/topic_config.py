"""Settings of topics: names, types and documentation, their values for the log, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ..log.log_config import LogConfig
from .setting_values import ConfigType, check_value, invalid, parse_value, shown_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..settings import BrokerSettings


class ConfigSource(IntEnum):
    """The origin of a value, in DescribeConfigs and CreateTopics."""

    TOPIC = 1
    BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Synonym(NamedTuple):
    """A value of a setting, and where it is set; earlier synonyms override later ones (KIP-226)."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or of the broker; the first of `synonyms` is the effective one."""

    name: str
    type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]
    read_only: bool

    @property
    def listed(self) -> Iterable[Synonym]:
        """The synonyms that Kafka lists: some built-in values have no name there."""
        hidden = self.name in _UNLISTED_DEFAULTS
        return (each for each in self.synonyms if not hidden or each.source != ConfigSource.DEFAULT)

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of topics; exactly one of `field`, `fixed` and `unused` is set.

    Attributes:
        broker_name: Kafka's name of the broker setting that is the default for topics.
        field: its name in `LogConfig`.
        fixed: the only value that is accepted, because the broker cannot honour another one.
        unused: default of a setting that accepts any value and has no effect on one node.
    """

    name: str
    type: ConfigType
    broker_name: str
    documentation: str
    field: str = ""
    fixed: str = ""
    unused: str | None = None


_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = ConfigType


_BROKERS_FSYNC: Final = "Accepted if the broker's --fsync is at least as strict."

_APPLIED: Final = {
    "cleanup.policy": (_LIST, "log.cleanup.policy"),
    "compression.gzip.level": (_INT, "compression.gzip.level"),
    "compression.lz4.level": (_INT, "compression.lz4.level"),
    "compression.zstd.level": (_INT, "compression.zstd.level"),
    "compression.type": (_STRING, "compression.type"),
    "delete.retention.ms": (_LONG, "log.cleaner.delete.retention.ms"),
    "flush.messages": (_LONG, "log.flush.interval.messages"),
    "flush.ms": (_LONG, "log.flush.interval.ms"),
    "index.interval.bytes": (_INT, "log.index.interval.bytes"),
    "max.compaction.lag.ms": (_LONG, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": (_INT, "message.max.bytes"),
    "message.timestamp.after.max.ms": (_LONG, "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": (_LONG, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": (_STRING, "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": (_DOUBLE, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": (_LONG, "log.cleaner.min.compaction.lag.ms"),
    "retention.bytes": (_LONG, "log.retention.bytes"),
    "retention.ms": (_LONG, "log.retention.ms"),
    "segment.bytes": (_INT, "log.segment.bytes"),
    "segment.ms": (_LONG, "log.roll.ms"),
}
"""Settings of the log: type, and the broker setting that is the default for topics."""
_DOCUMENTATION: Final = {
    "cleanup.policy": "delete (old segments, by age and bytes), compact (keep the latest record of each key),"
    " or both; empty: keep everything.",
    **{
        f"compression.{codec}.level": "Level for recompressing batches of another codec, if compression.type"
        f" is {codec}."
        for codec in ("gzip", "lz4", "zstd")
    },
    "compression.type": "Codec of stored batches: uncompressed, gzip, snappy, lz4, zstd; producer keeps the"
    " producer's.",
    "delete.retention.ms": "Time that a tombstone is kept after compaction has removed its key's older"
    " records.",
    "flush.messages": "Maximum number of acknowledged records that are not on disk. "
    + _BROKERS_FSYNC,
    "flush.ms": "Maximum time between an acknowledgement and the disk. " + _BROKERS_FSYNC,
    "index.interval.bytes": "Bytes of log between two index entries.",
    "max.compaction.lag.ms": "Age at which records are compacted even if little is gained.",
    "max.message.bytes": "Bytes of the largest record batch.",
    "message.timestamp.after.max.ms": "How far a producer's timestamps may be ahead of the broker's clock.",
    "message.timestamp.before.max.ms": "How far a producer's timestamps may be behind the broker's clock.",
    "message.timestamp.type": "Clock of the timestamps: CreateTime (the producer's) or LogAppendTime (the"
    " broker's).",
    "min.cleanable.dirty.ratio": "Share of uncompacted bytes from which on a log is compacted, 0 to 1.",
    "min.compaction.lag.ms": "Age before which records are not compacted.",
    "retention.bytes": "Bytes of one partition beyond which its oldest segments are deleted; -1: no limit.",
    "retention.ms": "Age at which segments are deleted; -1: no limit.",
    "segment.bytes": "Bytes after which a segment is closed.",
    "segment.ms": "Age at which a segment is closed.",
}
_FIXED: Final = {
    "local.retention.bytes": (_LONG, "log.local.retention.bytes", "-2"),
    "local.retention.ms": (_LONG, "log.local.retention.ms", "-2"),
    "min.insync.replicas": (_INT, "min.insync.replicas", "1"),
    "remote.log.copy.disable": (_BOOLEAN, "", "false"),
    "remote.log.delete.on.disable": (_BOOLEAN, "", "false"),
    "remote.storage.enable": (_BOOLEAN, "", "false"),
}
_UNUSED: Final = {
    "file.delete.delay.ms": (_LONG, "log.segment.delete.delay.ms", "60000"),
    "follower.replication.throttled.replicas": (_LIST, "", ""),
    "leader.replication.throttled.replicas": (_LIST, "", ""),
    "preallocate": (_BOOLEAN, "log.preallocate", "false"),
    "segment.index.bytes": (_INT, "log.index.size.max.bytes", "10485760"),
    "segment.jitter.ms": (_LONG, "log.roll.jitter.ms", "0"),
    "unclean.leader.election.enable": (_BOOLEAN, "unclean.leader.election.enable", "false"),
}


def _settings() -> Iterable[TopicSetting]:
    for name, (kind, broker_name) in _APPLIED.items():
        field = name.replace(".", "_")
        yield TopicSetting(name, kind, broker_name, _DOCUMENTATION[name], field=field)
    for name, (kind, broker_name, value) in _FIXED.items():
        documentation = "Has only this value on one node."
        yield TopicSetting(name, kind, broker_name, documentation, fixed=value)
    for name, (kind, broker_name, value) in _UNUSED.items():
        documentation = "Accepted, without effect on one node."
        yield TopicSetting(name, kind, broker_name, documentation, unused=value)


TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {
    setting.name: setting for setting in sorted(_settings(), key=lambda each: each.name)
}

INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
"""Overrides segment.bytes without its minimum, for tests; described only for topics that have it."""

_HIDDEN: Final[Mapping[str, TopicSetting]] = {
    INTERNAL_SEGMENT_BYTES: TopicSetting(
        INTERNAL_SEGMENT_BYTES,
        ConfigType.INT,
        "",
        "Bytes after which a segment is closed, without the minimum of segment.bytes; for tests.",
        field="segment_bytes",
    )
}
_UNLISTED_DEFAULTS: Final = {
    "flush.ms",
    "follower.replication.throttled.replicas",
    INTERNAL_SEGMENT_BYTES,
    "leader.replication.throttled.replicas",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.ms",
    "segment.jitter.ms",
    "segment.ms",
}
"""Settings whose built-in value is no synonym, as Apache Kafka 4.3.1 answers."""


def default_log_config(settings: BrokerSettings) -> LogConfig:
    """Return the configuration of a topic without settings of its own."""

    def milliseconds(seconds: float) -> int:
        return round(seconds * 1000)

    retention = settings.retention_seconds
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=milliseconds(settings.segment_seconds),
        retention_bytes=-1 if settings.retention_bytes is None else settings.retention_bytes,
        retention_ms=-1 if retention is None else milliseconds(retention),
        max_message_bytes=settings.message_max_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        producer_id_expiration_ms=milliseconds(settings.producer_id_expiration_seconds),
        fsync=settings.fsync,
        fsync_interval=settings.fsync_interval,
    )


class Defaults(NamedTuple):
    """Configuration of a topic without settings of its own: with this broker's settings, and built in."""

    brokers: LogConfig
    built_in: LogConfig

    @classmethod
    def of(cls, settings: BrokerSettings) -> Defaults:
        """Return the defaults of a broker with these settings."""
        built_in = type(settings)(data_dir=settings.data_dir)
        return cls(default_log_config(settings), default_log_config(built_in))


def checked_log_config(defaults: LogConfig, settings: Mapping[str, str]) -> LogConfig:
    """Return `defaults` with the settings of a request applied, as Kafka accepts them.

    Raises RequestError (INVALID_CONFIG) as `log_config`, and for values that only a stored topic may have,
    from an earlier release.
    """
    found = [(_setting(name), text) for name, text in settings.items()]
    for setting, text in found:
        check_value(setting.name, parse_value(setting.name, setting.type, text))
    return log_config(defaults, settings.items())


def log_config(defaults: LogConfig, settings: Iterable[tuple[str, str]]) -> LogConfig:
    """Return `defaults` with a topic's own settings applied.

    Raises RequestError (INVALID_CONFIG) for the first setting that is unknown or out of range.
    """
    values: dict[str, object] = {}
    internal: object = None
    for name, text in settings:
        setting = _setting(name)
        value = parse_value(name, setting.type, text)
        if setting.fixed and shown_value(value) != setting.fixed:
            raise invalid(f"{name} = {text!r}: must be {setting.fixed}")
        if setting.field:
            values[setting.field] = value
        if name == INTERNAL_SEGMENT_BYTES:
            internal = value
    if internal is not None:
        values["segment_bytes"] = internal
    try:
        return replace(defaults, **values)  # type: ignore[arg-type]  # LogConfig checks the values
    except ValueError as error:
        message = str(error)
        for setting in TOPIC_SETTINGS.values():
            if setting.field:
                message = message.replace(setting.field, setting.name)
        raise invalid(message) from None


def describe_topic_config(own: Mapping[str, str], defaults: Defaults) -> list[ConfigEntry]:
    """Return all settings of a topic whose own settings are `own`."""
    return [
        ConfigEntry(
            setting.name,
            setting.type,
            setting.documentation,
            tuple(_synonyms(setting, own, defaults)),
            read_only=bool(setting.fixed),
        )
        for setting in (*TOPIC_SETTINGS.values(), *_HIDDEN.values())
        if setting.name in TOPIC_SETTINGS or setting.name in own
    ]


def _setting(name: str) -> TopicSetting:
    """Return a setting. Raises RequestError in Kafka's words, on which clients match."""
    setting = TOPIC_SETTINGS.get(name) or _HIDDEN.get(name)
    if setting is None:
        raise invalid(f"Unknown topic config name: {name}")
    return setting


def _synonyms(
    setting: TopicSetting, own: Mapping[str, str], defaults: Defaults
) -> Iterable[Synonym]:
    if setting.name in own:
        value = parse_value(setting.name, setting.type, own[setting.name])
        yield Synonym(setting.name, shown_value(value), ConfigSource.TOPIC)
    name = setting.broker_name or setting.name
    brokers, built_in = (_default(setting, each) for each in defaults)
    if brokers != built_in:
        yield Synonym(name, brokers, ConfigSource.BROKER)
    yield Synonym(name, built_in, ConfigSource.DEFAULT)


def _default(setting: TopicSetting, config: LogConfig) -> str:
    if setting.field:
        return str(getattr(config, setting.field))
    return setting.fixed if setting.unused is None else setting.unused
