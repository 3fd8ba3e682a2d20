"""The options of the Kafka source; names and meaning are those of Spark's own Kafka source."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
import structlog

from ...errors import SettingsError
from ...kafka.connection import ConnectionConfig
from ...kafka.subscription import Subscription
from ...kafka.tokens import OAuthConfig
from ...settings import IsolationLevel
from .offsets import EARLIEST, LATEST, Offsets, parse_offsets, parse_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Boundary", "ClientConfig", "SourceOptions", "client_config"]

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


@dataclass(frozen=True, kw_only=True)
class ClientConfig(ConnectionConfig):
    """How the source connects to the brokers and fetches.

    Attributes:
        isolation_level: `read_committed` leaves out records of open or aborted transactions. The default is
            that of Kafka's clients, as in Spark's own source; the engine sets it to that of the worker.
        max_partition_fetch_bytes: bytes of one fetch response; more than a consumer's default, because a
            task reads one partition at a time.
        fetch_max_wait: seconds that a broker waits for records before it answers with none.
        check_crcs: verify the checksums of record batches.
    """

    client_id: str = "kmr-spark"
    isolation_level: IsolationLevel = "read_uncommitted"
    max_partition_fetch_bytes: int = 4 * _MIB
    fetch_max_wait: float = 0.5
    check_crcs: bool = True


def client_config(properties: Mapping[str, str]) -> ClientConfig:
    """Convert client properties, without their prefix `kafka.`, to a configuration.

    Raises:
        SettingsError: `bootstrap.servers` is missing; a value is wrong; the source sets the property itself.
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
            found[field] = read(f"kafka.{name}", value)
        elif name in _STORES:
            _require_pem(name, value)
        else:
            _log.warning("the Python source does not use this option", option=f"kafka.{name}")
    return ClientConfig(**found)


def _text(_option: str, value: str) -> str:
    return value


def _integer(option: str, value: str, what: str = "a whole number") -> int:
    try:
        return int(value)
    except ValueError as error:
        raise SettingsError(f"{option} must be {what}, not {value!r}") from error


def _seconds(option: str, value: str) -> float:
    return _integer(option, value) / 1000


def _isolation(option: str, value: str) -> str:
    if value not in get_args(IsolationLevel):
        raise SettingsError(f"{option} must be one of {get_args(IsolationLevel)}, not {value!r}")
    return value


def _not_false(_option: str, value: str) -> bool:
    return value.lower() != "false"


def _require_pem(name: str, value: str) -> None:
    if value.upper() != "PEM":
        raise SettingsError(
            f"kafka.{name}={value} is a Java format; convert the store to PEM and set kafka.{name}=PEM"
        )


def _plain(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted)


def _oauth(_option: str, value: str) -> OAuthConfig:
    return msgspec.json.decode(value, type=OAuthConfig)


_READERS: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "bootstrap.servers": ("bootstrap_servers", _text),
    "client.id": ("client_id", _text),
    "security.protocol": ("security_protocol", _text),
    "sasl.mechanism": ("sasl_mechanism", _text),
    "sasl.username": ("sasl_username", _text),
    "sasl.password": ("sasl_password", _text),
    "kmr.oauth.token": ("oauth", _oauth),  # by the engine; Spark hides the values of such names
    "ssl.ca.location": ("ssl_cafile", _text),
    "ssl.truststore.location": ("ssl_cafile", _text),
    "ssl.certificate.location": ("ssl_certfile", _text),
    "ssl.keystore.location": ("ssl_certfile", _text),
    "ssl.key.location": ("ssl_keyfile", _text),
    "ssl.key.password": ("ssl_key_password", _text),
    "request.timeout.ms": ("request_timeout", _seconds),
    "metadata.max.age.ms": ("metadata_max_age", _seconds),
    "fetch.max.wait.ms": ("fetch_max_wait", _seconds),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", _integer),
    "isolation.level": ("isolation_level", _isolation),
    "check.crcs": ("check_crcs", _not_false),
}


Unmatched = Literal["error", "latest"]

_KAFKA: Final = "kafka."
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "maxOffsetsPerTrigger",
        "minPartitions",
        "failOnDataLoss",
        "includeHeaders",
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
    )
}
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where reading begins or ends: one of `earliest`, `latest`, offsets, timestamps.

    Attributes:
        default: `EARLIEST` or `LATEST`, for partitions without an entry in `offsets` or `timestamps`.
        option: the option that set it, for messages.
        offsets: by partition; may be `EARLIEST` or `LATEST`.
        timestamps: milliseconds since 1970, by partition.
        timestamp: one timestamp for all partitions.
        unmatched: a timestamp after the last record is an error, or means the end.
    """

    default: int
    option: str
    offsets: Offsets = field(default_factory=dict)
    timestamps: Offsets = field(default_factory=dict)
    timestamp: int | None = None
    unmatched: Unmatched = "error"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a query, validated.

    Attributes:
        client: the options `kafka.*`.
        group: the group that offsets are committed to, for lag tools; None: no commits.
        poll_timeout: seconds that a task waits for records of its range.
    """

    subscription: Subscription
    starting: Boundary
    ending: Boundary
    client: ClientConfig
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    group: str | None = None
    poll_timeout: float = 120.0

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Parse Spark's options, whose names may be in any case.

        Raises:
            SettingsError: an option is unknown, missing or invalid.
        """
        own = {name.lower(): value for name, value in options.items()}
        kafka = {
            name.removeprefix(_KAFKA): own.pop(name)
            for name in list(own)
            if name.startswith(_KAFKA)
        }
        if unknown := [name for name in own if name not in _KNOWN]:
            raise SettingsError(
                f"the Kafka source has no option {unknown[0]}; it has kafka.* and "
                f"{', '.join(_KNOWN.values())}"
            )
        given = {_KNOWN[name]: value for name, value in own.items()}
        if streaming and (wrong := [name for name in _ENDING if name in given]):
            raise SettingsError(f"{wrong[0]} is only for batch queries: a stream has no end")
        if not streaming and "maxOffsetsPerTrigger" in given:
            raise SettingsError("maxOffsetsPerTrigger is only for streaming queries")
        _switch(given, "includeHeaders", default=False)  # checked here; the schema uses it
        subscription = _subscription(given)
        group = kafka.pop("group.id", None)
        if group is None and "groupIdPrefix" in given:
            name = subscription.pattern or ",".join(map(str, subscription.topics))
            group = f"{given['groupIdPrefix']}-{name or str(subscription)}"
        return cls(
            subscription=subscription,
            starting=_starting(given, streaming=streaming),
            ending=_boundary(given, "ending", LATEST),
            client=client_config(kafka),
            max_offsets_per_trigger=_number(given, "maxOffsetsPerTrigger"),
            min_partitions=_number(given, "minPartitions"),
            fail_on_data_loss=_switch(given, "failOnDataLoss", default=True),
            group=group,
            poll_timeout=(_number(given, "kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
        )


def _subscription(given: Mapping[str, str]) -> Subscription:
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if name in given]
    if len(ways) != 1:
        raise SettingsError(
            f"give exactly one of assign, subscribe and subscribePattern, not {len(ways)}"
            + (f" ({', '.join(ways)})" if ways else "")
        )
    value = given[ways[0]].strip()
    if not value:
        raise SettingsError(f"{ways[0]} is empty")
    if ways[0] == "assign":
        partitions = parse_partitions("assign", value)
        if not partitions:
            raise SettingsError("assign names no partition")
        return Subscription(partitions=partitions)
    if ways[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise SettingsError("subscribe names no topic")
        return Subscription(topics=topics)
    try:
        re.compile(value)
    except re.error as error:
        raise SettingsError(
            f"subscribePattern {value!r} is not a regular expression: {error}"
        ) from error
    return Subscription(pattern=value)


def _starting(given: Mapping[str, str], *, streaming: bool) -> Boundary:
    starting = _boundary(given, "starting", LATEST if streaming else EARLIEST)
    from_the_end = LATEST in (starting.default, *starting.offsets.values())
    if not streaming and from_the_end and starting.option == "startingOffsets":
        raise SettingsError(
            "startingOffsets cannot be latest (-1) in a batch query: nothing is read"
        )
    return starting


def _boundary(given: Mapping[str, str], which: str, default: int) -> Boundary:
    """Read the first of three options that is set, in the order of Spark's own source."""
    option = f"{which}Timestamp"
    unmatched = given.get(f"{which}OffsetsByTimestampStrategy", "error")
    if which == "ending":
        unmatched = "latest"
    if unmatched not in get_args(Unmatched):
        raise SettingsError(
            f"{which}OffsetsByTimestampStrategy must be error or latest, not {unmatched!r}"
        )
    policy: Unmatched = "latest" if unmatched == "latest" else "error"
    if option in given:
        moment = _integer(option, given[option], "milliseconds since 1970")
        return Boundary(default, option, timestamp=moment, unmatched=policy)
    option = f"{which}OffsetsByTimestamp"
    if option in given:
        moments = parse_offsets(option, given[option])
        return Boundary(default, option, timestamps=moments, unmatched=policy)
    option = f"{which}Offsets"
    text = given.get(option, "").strip()
    word = text.lower()
    if word in ("", "earliest", "latest"):
        if which == "ending" and word == "earliest":
            raise SettingsError("endingOffsets cannot be earliest: nothing is read")
        return Boundary({"earliest": EARLIEST, "latest": LATEST}.get(word, default), option)
    offsets = parse_offsets(option, text)
    if low := {p: offset for p, offset in offsets.items() if offset < EARLIEST}:
        partition, offset = low.popitem()
        raise SettingsError(
            f"{option}: {partition}: {offset} is not an offset; -1 is latest, -2 earliest"
        )
    if which == "ending" and EARLIEST in offsets.values():
        raise SettingsError("endingOffsets cannot be earliest (-2): nothing is read")
    return Boundary(default, option, offsets=offsets)


def _number(given: Mapping[str, str], option: str) -> int | None:
    if option not in given:
        return None
    number = _integer(option, given[option], "a whole number above 0")
    if number < 1:
        raise SettingsError(f"{option} must be a whole number above 0, not {number}")
    return number


def _switch(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    value = given.get(option, str(default)).lower()
    if value not in ("true", "false"):
        raise SettingsError(f"{option} must be true or false, not {given[option]!r}")
    return value == "true"
