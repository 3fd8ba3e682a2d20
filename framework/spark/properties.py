"""The options `kafka.*`: properties of Kafka clients, by the names of the Java client or librdkafka."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import structlog

from framework.errors import SettingsError
from framework.kafka.connection import ConnectionConfig, IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ClientConfig", "client_config"]

_log = structlog.get_logger(__name__)

_MIB: Final = 1024 * 1024
_LOGIN: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')

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
        if name == "sasl.jaas.config":
            found |= {f"sasl_{key}": _plain(text) for key, text in _LOGIN.findall(value)}
        elif name in _READERS:
            field, read = _READERS[name]
            found[field] = read(name, value)
        elif name in _STORES:
            _require_pem(name, value)
        elif name not in _HARMLESS:
            _log.warning(
                "option ignored: the Python source does not know it", option=f"kafka.{name}"
            )
    return ClientConfig(**found)


def _text(_name: str, value: str) -> str:
    return value


def _seconds(name: str, value: str) -> float:
    return _whole(name, value) / 1000


def _isolation(name: str, value: str) -> str:
    if value not in get_args(IsolationLevel):
        raise SettingsError(
            f"kafka.{name} must be one of {get_args(IsolationLevel)}, not {value!r}"
        )
    return value


def _switch(_name: str, value: str) -> bool:
    return value.lower() != "false"


def _require_pem(name: str, value: str) -> None:
    if value.upper() != "PEM":
        raise SettingsError(
            f"kafka.{name}={value} is a format of Java's; convert the store to PEM, and say "
            f"kafka.{name}=PEM"
        )


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise SettingsError(f"kafka.{name} must be a whole number, not {value!r}") from error


def _plain(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted)


_READERS: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "bootstrap.servers": ("bootstrap_servers", _text),
    "client.id": ("client_id", _text),
    "security.protocol": ("security_protocol", _text),
    "sasl.mechanism": ("sasl_mechanism", _text),
    "sasl.username": ("sasl_username", _text),
    "sasl.password": ("sasl_password", _text),
    "ssl.ca.location": ("ssl_cafile", _text),
    "ssl.truststore.location": ("ssl_cafile", _text),
    "ssl.certificate.location": ("ssl_certfile", _text),
    "ssl.keystore.location": ("ssl_certfile", _text),
    "ssl.key.location": ("ssl_keyfile", _text),
    "ssl.key.password": ("ssl_key_password", _text),
    "request.timeout.ms": ("request_timeout", _seconds),
    "metadata.max.age.ms": ("metadata_max_age", _seconds),
    "fetch.max.wait.ms": ("fetch_max_wait", _seconds),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", _whole),
    "isolation.level": ("isolation_level", _isolation),
    "check.crcs": ("check_crcs", _switch),
}
