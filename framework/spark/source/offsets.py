"""Offsets of a query: their JSON, where it begins and ends, and how a micro-batch is divided.

Spark's maps name the *next* offset to read, so their end is exclusive: `{"topic": {"partition": offset}}`.
Everything else here works with `Range`, which is inclusive. `ranges_between` is where the one becomes the
other.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import structlog

from ...errors import ConsumerError, OffsetOutOfRange, SettingsError
from ...kafka.connection import no_such_topic
from ...record import Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .blocking_client import BlockingClient
    from .options import Boundary, SourceOptions

__all__ = [
    "DATA_LOSS_ADVICE",
    "EARLIEST",
    "LATEST",
    "OffsetPlanner",
    "Offsets",
    "by_topic",
    "check_topics",
    "divide_ranges",
    "limit_offsets",
    "parse_offsets",
    "parse_partitions",
    "ranges_between",
    "read_offsets",
    "show_offsets",
]

_log = structlog.get_logger(__name__)

Offsets: TypeAlias = dict[TopicPartition, int]
"""The offset of the next record to read, by partition."""

LATEST: Final = -1
"""In an option: the end of the partition."""
EARLIEST: Final = -2
"""In an option: the first record of the partition."""

DATA_LOSS_ADVICE: Final = (
    "Records may have been lost: retention deleted them before they were read, or the topic was deleted or "
    "truncated. To go on without them, set the option failOnDataLoss to false"
)


def show_offsets(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as the checkpoint stores them, sorted: Spark compares their text."""
    shown: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        shown.setdefault(topic, {})[str(partition)] = offset
    return shown


def read_offsets(shown: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Reverse `show_offsets`."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in shown.items()
        for partition, offset in partitions.items()
    }


def parse_offsets(option: str, text: str) -> Offsets:
    """Parse the offsets (or timestamps) of an option. Raises SettingsError with the option's name."""
    try:
        return read_offsets(msgspec.json.decode(text, type=dict[str, dict[str, int]]))
    except (msgspec.DecodeError, ValueError) as error:
        raise SettingsError(
            f'{option} must be JSON such as {{"topic": {{"0": 23, "1": -2}}}}, not {text!r} ({error})'
        ) from error


def parse_partitions(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse the partitions of the option `assign`. Raises SettingsError."""
    try:
        found = msgspec.json.decode(text, type=dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise SettingsError(
            f'{option} must be JSON such as {{"topic": [0, 1]}}, not {text!r} ({error})'
        ) from error
    return tuple(sorted(TopicPartition(t, p) for t, numbers in found.items() for p in numbers))


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[Any]]:
    """Return the partition numbers of each topic, for messages."""
    numbers: dict[str, list[Any]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        numbers[topic].append(partition)
    return dict(numbers)


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[Range]:
    """Return the ranges from `start` up to, and without, `end`, sorted by partition.

    A partition that is missing in one of them, or has nothing between them, has no range.
    """
    return [
        Range(*partition, start[partition], end[partition] - 1)
        for partition in sorted(end)
        if partition in start and start[partition] < end[partition]
    ]


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], rows: int
) -> Offsets:
    """Return the end of a micro-batch of about `rows` offsets, in proportion to each partition's backlog.

    Every partition with a backlog moves by at least one offset, so that none starves.
    """
    waiting = {p: max(0, end[p] - start.get(p, end[p])) for p in end}
    total = sum(waiting.values())
    if total <= rows:
        return dict(end)
    return {
        p: end[p]
        if not waiting[p]
        else start[p] + min(waiting[p], max(1, rows * waiting[p] // total))
        for p in end
    }


def divide_ranges(
    ranges: Iterable[Range], parts: int | None, *, grid: int | None = None
) -> list[Range]:
    """Divide ranges into about `parts` pieces of about the same size, one task each.

    Args:
        parts: with None, or no more than there are ranges, each range stays whole.
        grid: divide only at offsets that are multiples of this.
    """
    ranges = list(ranges)
    if parts is None or parts <= len(ranges):
        return ranges
    total = sum(whole.last + 1 - whole.first for whole in ranges)
    divided = []
    for whole in ranges:
        end = whole.last + 1
        size = end - whole.first
        pieces = max(1, round(parts * size / total))
        cuts = {whole.first + size * piece // pieces for piece in range(1, pieces)}
        if grid is not None:
            cuts = {cut // grid * grid for cut in cuts}
        edges = [whole.first, *sorted(cut for cut in cuts if whole.first < cut < end), end]
        divided += [whole._replace(first=a, last=b - 1) for a, b in pairwise(edges)]
    return divided


class OffsetPlanner:
    """Finds partitions and offsets of a subscription: the driver's questions to the cluster."""

    def __init__(self, client: BlockingClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options

    def partitions(self) -> list[TopicPartition]:
        """Return the subscribed partitions that exist, sorted. Raises ConsumerError."""
        subscription = self._options.subscription
        existing = self._client.partitions()
        if subscription.partitions:
            return [p for p in subscription.partitions if p.partition in existing.get(p.topic, ())]
        topics = [topic for topic in existing if topic in subscription]
        return sorted(TopicPartition(topic, p) for topic in topics for p in existing[topic])

    def required_partitions(self) -> list[TopicPartition]:
        """Return the same for a query that begins: every named topic and partition must exist.

        Raises:
            ConsumerError: a topic or partition does not exist.
        """
        found = self.partitions()
        subscription = self._options.subscription
        topics = {partition.topic for partition in found}
        client = self._options.client
        if unknown := [topic for topic in subscription.topics if topic not in topics]:
            raise no_such_topic(unknown, self._client.partitions(), client)
        if missing := [str(p) for p in subscription.partitions if p not in found]:
            raise ConsumerError(
                f"{', '.join(missing)} does not exist at {client.bootstrap_servers}; create it first"
            )
        return found

    def resolve(self, boundary: Boundary, partitions: list[TopicPartition]) -> Offsets:
        """Return a boundary as offsets between the first and the end offset of each partition.

        Raises:
            SettingsError: the option names other partitions than exist, or a time after the last record
                of one.
            OffsetOutOfRange: the broker does not have an offset, and `failOnDataLoss` is set.
        """
        if boundary.offsets or boundary.timestamps:
            self._check_names(boundary, partitions)
        beginnings, ends = self._client.beginnings(partitions), self._client.ends(partitions)
        if boundary.timestamp is not None or boundary.timestamps:
            return self._by_time(boundary, partitions, ends)
        by_word = {EARLIEST: beginnings, LATEST: ends}
        found: Offsets = {}
        for partition in partitions:
            offset = boundary.offsets.get(partition, boundary.default)
            if offset < 0:
                offset = by_word[offset][partition]
            inside = min(max(offset, beginnings[partition]), ends[partition])
            if inside != offset:
                self._report_loss(
                    f"{boundary.option}: {partition}: offset {offset} is not there; the broker has "
                    f"{beginnings[partition]} to {ends[partition] - 1}"
                )
            found[partition] = inside
        return found

    def _by_time(
        self,
        boundary: Boundary,
        partitions: list[TopicPartition],
        ends: Mapping[TopicPartition, int],
    ) -> Offsets:
        wanted = boundary.timestamps
        if boundary.timestamp is not None:
            wanted = dict.fromkeys(partitions, boundary.timestamp)
        found: Offsets = {}
        for partition, offset in self._client.at_times(wanted).items():
            if offset is None and boundary.unmatched == "error":
                raise SettingsError(
                    f"{boundary.option}: {partition} has no record at or after {wanted[partition]}; "
                    "set startingOffsetsByTimestampStrategy to latest to begin at its end"
                )
            found[partition] = ends[partition] if offset is None else offset
        return found

    def _check_names(self, boundary: Boundary, partitions: Iterable[TopicPartition]) -> None:
        named, existing = set(boundary.offsets or boundary.timestamps), set(partitions)
        if named != existing:
            raise SettingsError(
                f"{boundary.option} must name every partition of {self._options.subscription}, and no "
                f"other: it names {by_topic(named)}, there are {by_topic(existing)}"
            )

    def latest(self, start: Mapping[TopicPartition, int]) -> Offsets:
        """Return the end offsets of all partitions, for a query that stands at `start`.

        A partition that `start` does not have gets its first offset, so that the checkpoint logs where it
        begins before any of its records is read.

        Raises:
            ConsumerError: `start` has other topics, and `failOnDataLoss` is set.
            OffsetOutOfRange: records or partitions are gone, and `failOnDataLoss` is set.
        """
        partitions = self.partitions()
        check_topics(self._options, start)
        own = {p for p in start if p.topic in self._options.subscription}
        if gone := own - set(partitions):
            self._report_loss(f"partitions are gone: {by_topic(gone)}")
        beginnings, ends = self._client.beginnings(partitions), self._client.ends(partitions)
        found: Offsets = {}
        for partition in partitions:
            beginning, end = beginnings[partition], ends[partition]
            if partition not in start:
                if beginning > 0:
                    self._report_loss(f"{partition} is new and begins at {beginning}, not at 0")
                found[partition] = beginning
                continue
            position = start[partition]
            if end < position:
                self._report_loss(
                    f"{partition} ends at {end}, before {position}, which was read already"
                )
            elif position < beginning:
                self._report_loss(
                    f"{partition} begins at {beginning}, after {position}, which is next"
                )
            found[partition] = end
        return found

    def _report_loss(self, what: str) -> None:
        """Log that records may be lost; with `failOnDataLoss`, raise OffsetOutOfRange instead."""
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(f"{what}. {DATA_LOSS_ADVICE}")
        _log.warning("records may be lost", what=what)


def check_topics(options: SourceOptions, offsets: Iterable[TopicPartition]) -> None:
    """Check that offsets of a checkpoint are of topics that the query reads.

    Raises:
        ConsumerError: they are of other topics, and `failOnDataLoss` is set.
    """
    subscription = options.subscription
    others = sorted({p.topic for p in offsets if p.topic not in subscription})
    if not others:
        return
    names = ", ".join(others)
    what = (
        f"the checkpoint belongs to another topic: it has offsets of {names}, and the query reads "
        f"{subscription}"
    )
    if options.fail_on_data_loss:
        raise ConsumerError(
            f"{what}. Give the query a checkpoint of its own, or read {names} too. To go on with this "
            f"checkpoint and without {names}, set the option failOnDataLoss to false"
        )
    _log.warning("the checkpoint belongs to another topic", what=what)
