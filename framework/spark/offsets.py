"""Offsets as Spark's checkpoint and options write them: `{"topic": {"partition": offset}}`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from framework.errors import SettingsError
from framework.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "DATA_LOSS_ADVICE",
    "EARLIEST",
    "LATEST",
    "OffsetRange",
    "Offsets",
    "parse_offsets",
    "parse_partitions",
    "read_offsets",
    "show_offsets",
]

Offsets: TypeAlias = dict[TopicPartition, int]
"""The offset of the next record to read, by partition."""

LATEST: Final = -1
"""In an option: the end of the partition."""
EARLIEST: Final = -2
"""In an option: the first record that the partition still has."""


DATA_LOSS_ADVICE: Final = (
    "Records may have been lost: they were deleted by retention before they were read, or the topic was "
    "deleted or truncated. To go on without them, set the option failOnDataLoss to false"
)


class OffsetRange(NamedTuple):
    """Offsets `[first, end)` of one partition: what one task reads. `end` is exclusive."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the offsets belong to."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets; there may be fewer records."""
        return self.end - self.first

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.first}..{self.end - 1}]"


def show_offsets(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As the checkpoint has them. The order is always the same: Spark compares offsets as text."""
    shown: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        shown.setdefault(topic, {})[str(partition)] = offset
    return shown


def read_offsets(shown: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The reverse of `show_offsets`."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in shown.items()
        for partition, offset in partitions.items()
    }


def parse_offsets(option: str, text: str) -> Offsets:
    """The offsets (or timestamps) of an option. Raises SettingsError with the option's name."""
    try:
        return read_offsets(msgspec.json.decode(text, type=dict[str, dict[str, int]]))
    except (msgspec.DecodeError, ValueError) as error:
        raise SettingsError(
            f'{option} must be JSON such as {{"topic": {{"0": 23, "1": -2}}}}, not {text!r} ({error})'
        ) from error


def parse_partitions(option: str, text: str) -> tuple[TopicPartition, ...]:
    """The partitions of the option `assign`. Raises SettingsError."""
    try:
        found = msgspec.json.decode(text, type=dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise SettingsError(
            f'{option} must be JSON such as {{"topic": [0, 1]}}, not {text!r} ({error})'
        ) from error
    return tuple(sorted(TopicPartition(t, p) for t, numbers in found.items() for p in numbers))


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[Any]]:
    """The numbers of the partitions of each topic, for messages."""
    numbers: dict[str, list[Any]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        numbers[topic].append(partition)
    return dict(numbers)
