"""The options of the Kafka source: names and meaning are those of Spark's own source."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

from framework.errors import SettingsError
from framework.spark.offsets import EARLIEST, LATEST, Offsets, parse_offsets, parse_partitions
from framework.spark.properties import ClientConfig, client_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from framework.record import TopicPartition

__all__ = ["Boundary", "SourceOptions", "Subscription"]

T = TypeVar("T")

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
class Subscription:
    """Which partitions are read: one of the three is set.

    Attributes:
        topics: all partitions of these topics.
        pattern: all partitions of the topics whose whole name matches.
        partitions: exactly these.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern}"
        return ", ".join(self.topics or map(str, self.partitions))


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where reading begins or ends: one of `earliest`, `latest`, offsets, timestamps.

    Attributes:
        default: for partitions that are not in `offsets` or `timestamps`; `EARLIEST` or `LATEST`.
        offsets: by partition, with `EARLIEST` and `LATEST`; those of a JSON name every partition.
        timestamps: milliseconds since 1970, by partition.
        timestamp: the same for all partitions.
        unmatched: what a timestamp after the last record means: an error, or the end.
        option: where it was said, for messages.
    """

    default: int
    option: str
    offsets: Offsets = field(default_factory=dict)
    timestamps: Offsets = field(default_factory=dict)
    timestamp: int | None = None
    unmatched: Unmatched = "error"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options, checked.

    Attributes:
        client: how to reach the brokers and how to fetch: the options `kafka.*`.
        group: where `commit` puts the offsets for lag tools; None for nowhere.
        poll_timeout: seconds that a task waits for records that should be there.
    """

    subscription: Subscription
    starting: Boundary
    ending: Boundary
    client: ClientConfig
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    group: str | None = None
    poll_timeout: float = 120.0

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Options as Spark hands them over, names in any case.

        Raises:
            SettingsError: an option is unknown, missing, or makes no sense.
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
            include_headers=_switch(given, "includeHeaders", default=False),
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
            f"subscribePattern {value!r} is no regular expression: {error}"
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
    """The most specific of three options wins, as in Spark's own source."""
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
        moment = _converted(option, given[option], int, "milliseconds since 1970")
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
            f"{option}: {partition}: {offset} is no offset; -1 is latest, -2 earliest"
        )
    if which == "ending" and EARLIEST in offsets.values():
        raise SettingsError("endingOffsets cannot be earliest (-2): nothing is read")
    return Boundary(default, option, offsets=offsets)


def _number(given: Mapping[str, str], option: str) -> int | None:
    if option not in given:
        return None
    number = _converted(option, given[option], int, "a whole number above 0")
    if number < 1:
        raise SettingsError(f"{option} must be a whole number above 0, not {number}")
    return number


def _switch(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    value = given.get(option, str(default)).lower()
    if value not in ("true", "false"):
        raise SettingsError(f"{option} must be true or false, not {given[option]!r}")
    return value == "true"


def _converted(option: str, value: str, convert: Callable[[str], T], what: str) -> T:
    try:
        return convert(value)
    except ValueError as error:
        raise SettingsError(f"{option} must be {what}, not {value!r}") from error
