"""Settings of topics, by Kafka's names: what may be set, what it means for the log.

Source: https://kafka.apache.org/documentation/#topicconfigs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from broker.errors import RequestError
from broker.log.config import LogConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from broker.settings import BrokerSettings

__all__ = [
    "TOPIC_SETTINGS",
    "ConfigSource",
    "ConfigType",
    "TopicSetting",
    "default_log_config",
    "log_config",
    "setting_source",
    "setting_value",
]


class ConfigType(IntEnum):
    """Types in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class ConfigSource(IntEnum):
    """Who set a value, in DescribeConfigs and CreateTopics."""

    TOPIC = 1
    BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting that a topic may have.

    `field` is its name in `LogConfig`; a setting without one has a single allowed value, `fixed`,
    because on one node there is nothing to choose.
    """

    name: str
    type: ConfigType
    documentation: str
    field: str = ""
    fixed: str = ""


TOPIC_SETTINGS: Mapping[str, TopicSetting] = {
    setting.name: setting
    for setting in (
        TopicSetting(
            "cleanup.policy",
            ConfigType.STRING,
            "What happens to old segments.",
            field="cleanup_policy",
        ),
        TopicSetting(
            "compression.type",
            ConfigType.STRING,
            "Batches are stored as the producer compressed them.",
            fixed="producer",
        ),
        TopicSetting(
            "index.interval.bytes",
            ConfigType.INT,
            "Bytes of log between two index entries.",
            field="index_interval_bytes",
        ),
        TopicSetting(
            "max.message.bytes",
            ConfigType.INT,
            "Bytes of the largest record batch.",
            field="max_message_bytes",
        ),
        TopicSetting(
            "message.timestamp.type",
            ConfigType.STRING,
            "Whose clock timestamps are from: CreateTime or LogAppendTime.",
            field="message_timestamp_type",
        ),
        TopicSetting(
            "min.insync.replicas",
            ConfigType.INT,
            "There is one replica, and it is in sync.",
            fixed="1",
        ),
        TopicSetting(
            "retention.bytes",
            ConfigType.LONG,
            "Bytes of one partition beyond which its oldest segments are deleted; -1: no limit.",
            field="retention_bytes",
        ),
        TopicSetting(
            "retention.ms",
            ConfigType.LONG,
            "Age at which segments are deleted; -1: no limit.",
            field="retention_ms",
        ),
        TopicSetting(
            "segment.bytes",
            ConfigType.INT,
            "Bytes after which a segment is closed.",
            field="segment_bytes",
        ),
        TopicSetting(
            "segment.ms", ConfigType.LONG, "Age at which a segment is closed.", field="segment_ms"
        ),
    )
}


def default_log_config(settings: BrokerSettings) -> LogConfig:
    """What holds for topics without settings of their own."""

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
        fsync=settings.fsync,
        fsync_interval=settings.fsync_interval,
    )


def log_config(defaults: LogConfig, settings: Iterable[tuple[str, str]]) -> LogConfig:
    """`defaults` with a topic's own settings.

    Raises RequestError (INVALID_CONFIG) that names the first setting that is unknown or out of range.
    """
    values: dict[str, int | str] = {}
    for name, value in settings:
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            known = ", ".join(TOPIC_SETTINGS)
            raise _invalid(f"unknown topic setting {name!r}; there are: {known}")
        if setting.fixed:
            if value != setting.fixed:
                raise _invalid(f"{name} = {value!r}: must be {setting.fixed}")
            continue
        values[setting.field] = (
            value if setting.type == ConfigType.STRING else _integer(name, value)
        )
    try:
        return replace(defaults, **values)  # type: ignore[arg-type]  # LogConfig checks the values
    except ValueError as error:
        message = str(error)
        for setting in TOPIC_SETTINGS.values():
            if setting.field:
                message = message.replace(setting.field, setting.name)
        raise _invalid(message) from None


def setting_value(setting: TopicSetting, config: LogConfig) -> str:
    """The value that holds, as DescribeConfigs shows it."""
    return setting.fixed or str(getattr(config, setting.field))


def setting_source(setting: TopicSetting, settings: Mapping[str, str]) -> ConfigSource:
    """Whether it is one of a topic's own `settings`."""
    return ConfigSource.TOPIC if setting.name in settings else ConfigSource.DEFAULT


def _integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise _invalid(f"{name} = {value!r}: must be a whole number") from None


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_config, message)
