from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from broker import BrokerSettings
from broker.errors import RequestError
from broker.log.config import LogConfig
from broker.topic_config import (
    TOPIC_SETTINGS,
    default_log_config,
    log_config,
    setting_value,
)

DEFAULTS = LogConfig()


def test_the_brokers_settings_are_the_defaults_of_topics() -> None:
    settings = BrokerSettings(
        data_dir=Path("data"), retention_seconds=60, segment_bytes=2**21, fsync="always"
    )
    config = default_log_config(settings)
    assert (config.retention_ms, config.retention_bytes) == (60_000, -1)
    assert (config.segment_bytes, config.fsync) == (2**21, "always")
    assert default_log_config(
        BrokerSettings(data_dir=Path("data"), retention_seconds=None, retention_bytes=5)
    ) == LogConfig(retention_ms=-1, retention_bytes=5, segment_bytes=256 * 2**20)


def test_a_topics_own_settings_go_before_the_defaults() -> None:
    config = log_config(
        DEFAULTS,
        [
            ("retention.ms", "-1"),
            ("max.message.bytes", "1000"),
            ("message.timestamp.type", "LogAppendTime"),
            ("compression.type", "producer"),
        ],
    )
    assert config == LogConfig(
        retention_ms=-1, max_message_bytes=1000, message_timestamp_type="LogAppendTime"
    )


def test_every_setting_accepts_the_value_that_it_shows() -> None:
    shown = [(each.name, setting_value(each, DEFAULTS)) for each in TOPIC_SETTINGS.values()]
    assert log_config(DEFAULTS, shown) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("retention", "1", "unknown topic setting 'retention'; there are: cleanup.policy"),
        ("segment.bytes", "0", "segment.bytes = 0: must be 1 to"),
        ("segment.bytes", "1e6", "segment.bytes = '1e6': must be a whole number"),
        ("cleanup.policy", "compact", "cleanup.policy = 'compact'"),
        ("min.insync.replicas", "2", "min.insync.replicas = '2': must be 1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refusal:
        log_config(DEFAULTS, [(name, value)])
    assert refusal.value.code is ErrorCode.invalid_config
