"""Settings of topics: what their values mean for the log, how they are changed and shown."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from broker.errors import RequestError
from broker.log.config import LogConfig
from broker.topics.config_entry import ConfigEntry, ConfigSource, ConfigType, Synonym
from broker.topics.settings import TOPIC_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from broker.settings import BrokerSettings
    from broker.topics.settings import TopicSetting

__all__ = ["Defaults", "default_log_config", "describe_topic_config", "log_config"]

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_LIMITS = {ConfigType.INT: 2**31, ConfigType.LONG: 2**63}


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
        producer_id_expiration_ms=milliseconds(settings.producer_id_expiration_seconds),
        fsync=settings.fsync,
        fsync_interval=settings.fsync_interval,
    )


class Defaults(NamedTuple):
    """What holds for topics without settings of their own: of this broker, and of any."""

    brokers: LogConfig
    built_in: LogConfig

    @classmethod
    def of(cls, settings: BrokerSettings) -> Defaults:
        """Those of a broker with these settings."""
        built_in = type(settings)(data_dir=settings.data_dir)
        return cls(default_log_config(settings), default_log_config(built_in))


def log_config(defaults: LogConfig, settings: Iterable[tuple[str, str]]) -> LogConfig:
    """`defaults` with a topic's own settings.

    Raises RequestError (INVALID_CONFIG) that names the first setting that is unknown or out of range.
    """
    values: dict[str, object] = {}
    for name, text in settings:
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            known = ", ".join(TOPIC_SETTINGS)
            raise _invalid(f"unknown topic setting {name!r}; there are: {known}")
        value = _parsed(setting, text.strip())
        if setting.fixed and text.strip() != setting.fixed:
            raise _invalid(f"{name} = {text!r}: must be {setting.fixed}")
        if setting.field:
            values[setting.field] = value
    try:
        return replace(defaults, **values)  # type: ignore[arg-type]  # LogConfig checks the values
    except ValueError as error:
        message = str(error)
        for setting in TOPIC_SETTINGS.values():
            if setting.field:
                message = message.replace(setting.field, setting.name)
        raise _invalid(message) from None


def describe_topic_config(own: Mapping[str, str], defaults: Defaults) -> list[ConfigEntry]:
    """Every setting of a topic whose own settings are `own`."""
    return [
        ConfigEntry(
            setting.name,
            setting.type,
            setting.documentation,
            tuple(_synonyms(setting, own, defaults)),
            read_only=bool(setting.fixed),
        )
        for setting in TOPIC_SETTINGS.values()
    ]


def _synonyms(
    setting: TopicSetting, own: Mapping[str, str], defaults: Defaults
) -> Iterable[Synonym]:
    if setting.name in own:
        yield Synonym(setting.name, own[setting.name].strip(), ConfigSource.TOPIC)
    name = setting.broker_name or setting.name
    brokers, built_in = (_default(setting, each) for each in defaults)
    if brokers != built_in:
        yield Synonym(name, brokers, ConfigSource.BROKER)
    yield Synonym(name, built_in, ConfigSource.DEFAULT)


def _default(setting: TopicSetting, config: LogConfig) -> str:
    if setting.field:
        return str(getattr(config, setting.field))
    return setting.fixed if setting.unused is None else setting.unused


def _parsed(setting: TopicSetting, text: str) -> str | int | float | bool:
    match setting.type:
        case ConfigType.INT | ConfigType.LONG:
            limit = _LIMITS[setting.type]
            value = _number(setting, text)
            if not -limit <= value < limit:
                raise _invalid(f"{setting.name} = {text}: must be less than {limit}")
            return value
        case ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise _invalid(f"{setting.name} = {text!r}: must be a number") from None
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise _invalid(f"{setting.name} = {text!r}: must be true or false")
            return text.lower() == "true"
        case _:
            return text


def _number(setting: TopicSetting, text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise _invalid(f"{setting.name} = {text!r}: must be a whole number")
    return int(text)


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_config, message)
