"""Offsets of a query: their JSON, where it begins, and how a micro-batch is divided.

Spark's maps name the *next* offset to read, so their end is exclusive: `{"topic": {"partition": offset}}`.
Everything else here works with `Range`, which is inclusive. `ranges_between` is where the one becomes the
other. The time for which a partition had no record follows its offset, where that counts (`idle.py`):
`{"topic": {"partition": [offset, microseconds]}}`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from ..archives.archive import shared_archive
from ..errors import ConsumerError, OffsetOutOfRange
from ..kafka.connection import no_such_topic
from ..record import Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .blocking_client import BlockingClient
    from .source_settings import SourceSettings

_log = structlog.get_logger(__name__)

Offsets: TypeAlias = dict[TopicPartition, int]
"""The offset of the next record to read, by partition."""

DATA_LOSS_ADVICE: Final = (
    "Records may have been lost: retention deleted them before they were read, or the topic was deleted or "
    "truncated. To go on without them, use --no-fail-on-data-loss"
)


def show_offsets(
    offsets: Mapping[TopicPartition, int], idle: Mapping[TopicPartition, int] | None = None
) -> dict[str, dict[str, Any]]:
    """Return offsets as the checkpoint stores them, sorted: Spark compares their text."""
    shown: dict[str, dict[str, Any]] = {}
    for at, offset in sorted(offsets.items()):
        position = [offset, idle[at]] if idle and at in idle else offset
        shown.setdefault(at.topic, {})[str(at.partition)] = position
    return shown


def read_offsets(shown: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Return the offsets that `show_offsets` has shown."""
    return {
        TopicPartition(topic, int(partition)): offset[0] if isinstance(offset, list) else offset
        for topic, partitions in shown.items()
        for partition, offset in partitions.items()
    }


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

    def __init__(self, client: BlockingClient, settings: SourceSettings) -> None:
        self._client = client
        self._settings = settings

    def partitions(self) -> list[TopicPartition]:
        """Return the subscribed partitions that exist, sorted. Raises ConsumerError."""
        subscription = self._settings.subscription
        existing = self._client.partitions()
        topics = [topic for topic in existing if topic in subscription]
        return sorted(TopicPartition(topic, p) for topic in topics for p in existing[topic])

    def required_partitions(self) -> list[TopicPartition]:
        """Return the same for a query that begins. Raises ConsumerError if a named topic does not exist."""
        found = self.partitions()
        settings = self._settings
        topics = {partition.topic for partition in found}
        if unknown := [topic for topic in settings.subscription.topics if topic not in topics]:
            raise no_such_topic(unknown, self._client.partitions(), settings.client)
        return found

    def first(self, partitions: list[TopicPartition]) -> Offsets:
        """Return where a query without a checkpoint begins. Raises ConsumerError."""
        ask = self._client.ends if self._settings.from_end else self._client.beginnings
        return ask(partitions)

    def ends(self) -> Offsets:
        """Return the end offset of each partition. Raises ConsumerError."""
        return self._client.ends(self.partitions())

    def latest(self, start: Mapping[TopicPartition, int]) -> Offsets:
        """Return the end offsets of all partitions, for a query that stands at `start`.

        A partition that `start` does not have gets its first offset, so that the checkpoint logs where it
        begins before any of its records is read.

        Raises:
            ConsumerError: `start` has other topics, and `fail_on_data_loss` is set.
            OffsetOutOfRange: records or partitions are gone, and `fail_on_data_loss` is set.
        """
        partitions = self.partitions()
        check_topics(self._settings, start)
        own = {p for p in start if p.topic in self._settings.subscription}
        if gone := own - set(partitions):
            self._report_loss(f"partitions are gone: {', '.join(map(str, sorted(gone)))}")
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
            elif position < beginning and not self._is_archived(partition, position, beginning):
                self._report_loss(
                    f"{partition} begins at {beginning}, after {position}, which is next"
                )
            found[partition] = end
        return found

    def _is_archived(self, partition: TopicPartition, position: int, beginning: int) -> bool:
        """Return whether the archive has all records from a position to where the log begins."""
        source, bounds = self._settings.archive, self._settings.bounds
        if source is None:
            return False
        until = beginning if bounds is None else bounds.until.get(partition, beginning)
        return shared_archive(source).end(partition, position) >= min(beginning, until)

    def _report_loss(self, what: str) -> None:
        """Log that records may be lost; with `fail_on_data_loss`, raise OffsetOutOfRange instead."""
        if self._settings.fail_on_data_loss:
            raise OffsetOutOfRange(f"{what}. {DATA_LOSS_ADVICE}")
        _log.warning("records may be lost", what=what)


def check_topics(settings: SourceSettings, offsets: Iterable[TopicPartition]) -> None:
    """Check that offsets of a checkpoint are of topics that the query reads.

    Raises:
        ConsumerError: they are of other topics, and `fail_on_data_loss` is set.
    """
    subscription = settings.subscription
    others = sorted({p.topic for p in offsets if p.topic not in subscription})
    if not others:
        return
    names = ", ".join(others)
    what = (
        f"the checkpoint belongs to another topic: it has offsets of {names}, and the query reads "
        f"{subscription}"
    )
    if settings.fail_on_data_loss:
        raise ConsumerError(
            f"{what}. Give the query a checkpoint of its own, or read {names} too. To go on with this "
            f"checkpoint and without {names}, use --no-fail-on-data-loss"
        )
    _log.warning("the checkpoint belongs to another topic", what=what)
