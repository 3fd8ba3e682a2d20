import re
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import BrokerSettings
from kmr.broker.errors import RequestError
from kmr.broker.log.log_config import FsyncPolicy, LogConfig
from kmr.broker.topics.topic_config import (
    TOPIC_SETTINGS,
    ConfigSource,
    Defaults,
    Synonym,
    checked_log_config,
    default_log_config,
    describe_topic_config,
    log_config,
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
    entries = describe_topic_config({}, Defaults(DEFAULTS, DEFAULTS))
    assert {entry.name for entry in entries} == set(TOPIC_SETTINGS)
    assert log_config(DEFAULTS, [(entry.name, entry.value) for entry in entries]) == DEFAULTS


def test_every_setting_is_one_of_the_log_or_fixed_or_unused_and_documented() -> None:
    for setting in TOPIC_SETTINGS.values():
        kinds = [bool(setting.field), bool(setting.fixed), setting.unused is not None]
        assert sum(kinds) == 1, setting.name
        assert setting.documentation
    fields = {setting.field for setting in TOPIC_SETTINGS.values() if setting.field}
    of_the_broker = {"fsync", "fsync_interval", "producer_id_expiration_ms"}
    assert fields == set(LogConfig.__slots__) - of_the_broker


def test_a_setting_falls_back_to_the_brokers_and_then_to_the_built_in_one() -> None:
    defaults = Defaults(LogConfig(retention_ms=7), DEFAULTS)
    entries = {each.name: each for each in describe_topic_config({"retention.ms": "5"}, defaults)}
    assert entries["retention.ms"].synonyms == (
        Synonym("retention.ms", "5", ConfigSource.TOPIC),
        Synonym("log.retention.ms", "7", ConfigSource.BROKER),
        Synonym("log.retention.ms", str(DEFAULTS.retention_ms), ConfigSource.DEFAULT),
    )
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == (
        "5",
        ConfigSource.TOPIC,
    )
    assert [each.source for each in entries["segment.ms"].synonyms] == [ConfigSource.DEFAULT]


@pytest.mark.parametrize(
    ("policy", "deletes", "compacts"),
    [
        ("delete", True, False),
        ("compact", False, True),
        ("compact,delete", True, True),
        (" delete , compact ", True, True),
        ("", False, False),
    ],
)
def test_a_topic_may_be_compacted_and_deleted_both_or_neither(
    policy: str, deletes: bool, compacts: bool
) -> None:
    config = log_config(DEFAULTS, [("cleanup.policy", policy)])
    assert (config.deletes, config.compacts) == (deletes, compacts)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("retention", "1", "Unknown topic config name: retention"),
        ("segment.bytes", "0", "segment.bytes = 0: must be 1 to"),
        (
            "segment.bytes",
            "1e6",
            "value 1e6 for configuration segment.bytes: Not a number of type INT",
        ),
        ("retention.ms", str(2**63), "configuration retention.ms: Not a number of type LONG"),
        ("delete.retention.ms", "-1", "delete.retention.ms = -1: must be at least 0"),
        ("cleanup.policy", "delete,", "cleanup.policy = 'delete,': must be delete, compact, both"),
        ("cleanup.policy", "shred", "cleanup.policy = 'shred': must be delete, compact, both"),
        ("compression.type", "best", "compression.type = 'best': must be one of producer"),
        ("min.cleanable.dirty.ratio", "1.1", "min.cleanable.dirty.ratio = 1.1: must be 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "dirty.ratio: Not a number of type DOUBLE"),
        ("preallocate", "yes", "preallocate: Expected value to be either true or false"),
        ("flush.messages", "0", "flush.messages = 0: must be at least 1"),
        ("flush.messages", "1", "flush.messages = 1: needs a broker with --fsync always"),
        ("flush.ms", "999", "flush.ms = 999: needs a broker with a shorter --fsync-interval"),
        ("compression.gzip.level", "0", "compression.gzip.level = 0: must be -1, or 1 to 9"),
        ("compression.lz4.level", "18", "compression.lz4.level = 18: must be 1 to 17"),
        ("compression.zstd.level", "23", "compression.zstd.level = 23: must be -131072 to 22"),
        ("remote.storage.enable", "true", "remote.storage.enable = 'true': must be false"),
        ("min.insync.replicas", "2", "min.insync.replicas = '2': must be 1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refusal:
        log_config(DEFAULTS, [(name, value)])
    assert refusal.value.code is ErrorCode.invalid_config


@pytest.mark.parametrize(
    ("fsync", "name", "value", "taken"),
    [
        ("always", "flush.messages", "1", True),
        ("always", "flush.ms", "0", True),
        ("interval", "flush.ms", "1000", True),
        ("interval", "flush.messages", "1000000", False),
        ("os", "flush.ms", "3600000", False),
    ],
)
def test_flush_settings_are_accepted_if_fsync_is_as_strict(
    fsync: FsyncPolicy, name: str, value: str, taken: bool
) -> None:
    defaults = LogConfig(fsync=fsync, fsync_interval=1.0)
    if taken:
        log_config(defaults, [(name, value)])
    else:
        with pytest.raises(RequestError, match=f"{name} = {value}: needs a broker with"):
            log_config(defaults, [(name, value)])


def test_a_lag_that_no_record_can_have_is_refused() -> None:
    lags = [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "9")]
    with pytest.raises(RequestError, match=r"min\.compaction\.lag\.ms = 10: must be at most max\."):
        log_config(DEFAULTS, lags)


ACCEPTED = [
    ("segment.bytes", "1048576"),
    ("internal.segment.bytes", "1"),
    ("segment.index.bytes", "4"),
    ("leader.replication.throttled.replicas", ""),
    ("leader.replication.throttled.replicas", "*"),
    ("leader.replication.throttled.replicas", "0:1,"),
    ("leader.replication.throttled.replicas", "0:1, 1:2"),
    ("retention.bytes", "-2"),
    ("retention.ms", "-1"),
    ("preallocate", " true "),
    ("cleanup.policy", "delete,delete"),
]
REFUSED = [
    (
        "segment.bytes",
        "1",
        "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576",
    ),
    ("segment.index.bytes", "3", "for configuration segment.index.bytes: Value must be at least 4"),
    ("file.delete.delay.ms", "-1", "configuration file.delete.delay.ms: Value must be at least 0"),
    ("segment.jitter.ms", "-1", "for configuration segment.jitter.ms: Value must be at least 0"),
    (
        "follower.replication.throttled.replicas",
        "0-1",
        "follower.replication.throttled.replicas must be the literal '*' or a list of replicas",
    ),
    ("x", "1", "Unknown topic config name: x"),
    ("retention.ms", "-2", "retention.ms"),
    ("index.interval.bytes", "-1", "index.interval.bytes"),
    ("segment.ms", "0", "segment.ms"),
    ("max.compaction.lag.ms", "0", "max.compaction.lag.ms"),
    ("message.timestamp.before.max.ms", "-1", "message.timestamp.before.max.ms"),
]
"""What Apache Kafka 4.3.1 accepts and refuses, with its words where clients match on them."""


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_a_value_that_kafka_accepts_is_accepted(name: str, value: str) -> None:
    checked_log_config(DEFAULTS, {name: value})


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_value_that_kafka_refuses_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)) as refusal:
        checked_log_config(DEFAULTS, {name: value})
    assert refusal.value.code is ErrorCode.invalid_config


def test_the_internal_segment_size_overrides_the_public_one_and_is_described_if_set() -> None:
    settings = {"internal.segment.bytes": "300", "segment.bytes": "2000000"}
    assert checked_log_config(DEFAULTS, settings).segment_bytes == 300
    defaults = Defaults(DEFAULTS, DEFAULTS)
    own = {each.name: each.value for each in describe_topic_config(settings, defaults)}
    assert own["internal.segment.bytes"] == "300"
    usual = [each.name for each in describe_topic_config({}, defaults)]
    assert "internal.segment.bytes" not in usual


def test_a_stored_topic_with_a_value_that_is_refused_now_still_opens() -> None:
    assert log_config(DEFAULTS, [("segment.bytes", "300")]).segment_bytes == 300
