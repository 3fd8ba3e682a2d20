"""The broker's own settings by Kafka's names, as far as it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.topics.config import default_log_config
from broker.topics.config_entry import ConfigEntry, ConfigSource, ConfigType, Synonym
from broker.topics.settings import TOPIC_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.settings import BrokerSettings

__all__ = ["describe_broker_config"]


@dataclass(frozen=True, slots=True)
class _Setting:
    """`field` is its name in `BrokerSettings`; seconds there are milliseconds here."""

    name: str
    field: str
    documentation: str
    type: ConfigType = ConfigType.LONG

    def value(self, settings: BrokerSettings) -> str:
        value = getattr(settings, self.field)
        if value is None:
            return "-1"
        if isinstance(value, bool):
            return str(value).lower()
        return str(round(value * 1000) if isinstance(value, float) else value)


_SETTINGS: Final = (
    _Setting(
        "auto.create.topics.enable",
        "auto_create_topics",
        "Whether a topic is created when a client first asks for it.",
        ConfigType.BOOLEAN,
    ),
    _Setting("broker.id", "node_id", "This node.", ConfigType.INT),
    _Setting(
        "connections.max.idle.ms",
        "connection_idle_seconds",
        "A connection without a request for so long is closed.",
    ),
    _Setting(
        "fetch.max.bytes",
        "fetch_max_bytes",
        "Bytes of the largest fetch response, unless its first batch is larger.",
        ConfigType.INT,
    ),
    _Setting(
        "group.initial.rebalance.delay.ms",
        "group_initial_rebalance_delay",
        "How long an empty group waits for more members.",
        ConfigType.INT,
    ),
    _Setting(
        "group.max.session.timeout.ms",
        "group_max_session_timeout",
        "Longest session timeout that a member may ask for.",
        ConfigType.INT,
    ),
    _Setting("group.max.size", "group_max_size", "Most members of one group.", ConfigType.INT),
    _Setting(
        "group.min.session.timeout.ms",
        "group_min_session_timeout",
        "Shortest session timeout that a member may ask for.",
        ConfigType.INT,
    ),
    _Setting(
        "log.cleaner.backoff.ms",
        "compaction_check_interval",
        "Time between two searches for what is to be compacted.",
    ),
    _Setting("log.dirs", "data_dir", "Directory of all data.", ConfigType.LIST),
    _Setting(
        "log.retention.check.interval.ms",
        "retention_check_interval",
        "Time between two searches for what is to be deleted.",
    ),
    _Setting("max.connections", "max_connections", "Most connections at a time.", ConfigType.INT),
    _Setting("node.id", "node_id", "This node.", ConfigType.INT),
    _Setting(
        "num.partitions",
        "default_partitions",
        "Partitions of topics that are created without a number.",
        ConfigType.INT,
    ),
    _Setting(
        "offset.metadata.max.bytes",
        "offset_metadata_max_bytes",
        "Longest metadata that may be committed with an offset.",
        ConfigType.INT,
    ),
    _Setting(
        "offsets.retention.ms",
        "offsets_retention_seconds",
        "How long offsets are kept after a group's last member has left.",
    ),
    _Setting(
        "producer.id.expiration.ms",
        "producer_id_expiration_seconds",
        "How long a producer that has sent nothing is remembered.",
        ConfigType.INT,
    ),
    _Setting(
        "socket.request.max.bytes",
        "request_max_bytes",
        "A larger request closes its connection.",
        ConfigType.INT,
    ),
    _Setting(
        "transaction.max.timeout.ms",
        "transaction_max_timeout",
        "Longest timeout that a transactional producer may ask for.",
        ConfigType.INT,
    ),
    _Setting(
        "transactional.id.expiration.ms",
        "transactional_id_expiration_seconds",
        "How long a transactional id that is not used is remembered.",
        ConfigType.INT,
    ),
)


def describe_broker_config(settings: BrokerSettings, listener: str) -> list[ConfigEntry]:
    """Every setting; none of them can be changed while the broker runs.

    `listener`: the URL of this node for the client that asks.
    """
    built_in = type(settings)(data_dir=settings.data_dir)
    entries = [
        _entry(each.name, each.type, each.documentation, each.value(settings), each.value(built_in))
        for each in _SETTINGS
    ]
    entries += (
        _given("advertised.listeners", ConfigType.LIST, "Where clients connect to.", listener),
        _entry("default.replication.factor", ConfigType.INT, "There is one node.", "1", "1"),
        _entry("delete.topic.enable", ConfigType.BOOLEAN, "Topics can be deleted.", "true", "true"),
        _entry("min.insync.replicas", ConfigType.INT, "There is one replica.", "1", "1"),
        *_topic_defaults(settings, built_in),
    )
    return sorted(entries, key=lambda entry: entry.name)


def _topic_defaults(settings: BrokerSettings, built_in: BrokerSettings) -> Iterator[ConfigEntry]:
    """What holds for topics without settings of their own."""
    config, default = default_log_config(settings), default_log_config(built_in)
    for setting in TOPIC_SETTINGS.values():
        if setting.field:
            value, otherwise = (
                str(getattr(config, setting.field)),
                str(getattr(default, setting.field)),
            )
            yield _entry(setting.broker_name, setting.type, setting.documentation, value, otherwise)


def _given(name: str, kind: ConfigType, documentation: str, value: str) -> ConfigEntry:
    """A setting without a default."""
    synonyms = (Synonym(name, value, ConfigSource.BROKER),)
    return ConfigEntry(name, kind, documentation, synonyms, read_only=True)


def _entry(
    name: str, kind: ConfigType, documentation: str, value: str, default: str
) -> ConfigEntry:
    synonyms = [Synonym(name, default, ConfigSource.DEFAULT)]
    if value != default:
        synonyms.insert(0, Synonym(name, value, ConfigSource.BROKER))
    return ConfigEntry(name, kind, documentation, tuple(synonyms), read_only=True)
