"""The options `kafka.*`: properties of Kafka clients, by the names of the Java client or librdkafka."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import structlog

from framework.connection import ConnectionConfig, IsolationLevel
from framework.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ClientConfig", "client_config"]

_log = structlog.get_logger(__name__)

_MIB: Final = 1024 * 1024
_LOGIN: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')

_TEXTS: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_key_password",
}
_MILLISECONDS: Final = {
    "request.timeout.ms": "request_timeout",
    "metadata.max.age.ms": "metadata_max_age",
    "fetch.max.wait.ms": "fetch_max_wait",
}
_BYTES: Final = {"max.partition.fetch.bytes": "max_partition_fetch_bytes"}
_OURS: Final = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "offsets are committed after each micro-batch, to kafka.group.id",
    "key.deserializer": "keys are bytes; cast the column",
    "value.deserializer": "values are bytes; cast the column",
    "interceptor.classes": "there are no Java classes here",
}
_STORES: Final = ("ssl.truststore.type", "ssl.keystore.type")
_HARMLESS: Final = frozenset(
    {
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.records",
        "max.poll.interval.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "receive.buffer.bytes",
        "send.buffer.bytes",
    }
)


@dataclass(frozen=True, kw_only=True)
class ClientConfig(ConnectionConfig):
    """How the source reaches the brokers, and how it fetches.

    Attributes:
        isolation_level: whether records of open or aborted transactions are left out.
        max_partition_fetch_bytes: bytes of one fetch response; a task reads one partition at a time, so
            it is larger than a consumer's.
        fetch_max_wait: seconds that a broker may wait for records before it answers with none.
        check_crcs: compare record batches with their checksums.
    """

    client_id: str = "kmr-spark"
    isolation_level: IsolationLevel = "read_uncommitted"
    max_partition_fetch_bytes: int = 4 * _MIB
    fetch_max_wait: float = 0.5
    check_crcs: bool = True


def client_config(properties: Mapping[str, str]) -> ClientConfig:
    """The properties, without their prefix, as a configuration.

    Raises:
        SettingsError: `bootstrap.servers` is missing; a value is wrong; the property is the source's own.
    """
    if not properties.get("bootstrap.servers"):
        raise SettingsError("the option kafka.bootstrap.servers is missing: host:port,host:port")
    found: dict[str, Any] = {}
    for name, value in properties.items():
        if name in _OURS:
            raise SettingsError(f"kafka.{name} cannot be set for the Kafka source: {_OURS[name]}")
        if name in _TEXTS:
            found[_TEXTS[name]] = value
        elif name in _MILLISECONDS:
            found[_MILLISECONDS[name]] = _whole(name, value) / 1000
        elif name in _BYTES:
            found[_BYTES[name]] = _whole(name, value)
        elif name == "isolation.level":
            if value not in get_args(IsolationLevel):
                raise SettingsError(
                    f"kafka.isolation.level must be one of {get_args(IsolationLevel)}, not {value!r}"
                )
            found["isolation_level"] = value
        elif name == "check.crcs":
            found["check_crcs"] = value.lower() != "false"
        elif name == "sasl.jaas.config":
            found |= {f"sasl_{key}": _plain(text) for key, text in _LOGIN.findall(value)}
        elif name in _STORES:
            if value.upper() != "PEM":
                raise SettingsError(
                    f"kafka.{name}={value} is a format of Java's; convert the store to PEM, and say "
                    f"kafka.{name}=PEM"
                )
        elif name not in _HARMLESS:
            _log.warning("option ignored: the Python source does not know it", option=f"kafka.{name}")
    return ClientConfig(**found)


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise SettingsError(f"kafka.{name} must be a whole number, not {value!r}") from error


def _plain(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted)
