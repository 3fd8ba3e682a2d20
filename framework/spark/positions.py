"""Where a query begins, ends and stands: the driver's questions to the cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import structlog

from framework.errors import ConsumerError, OffsetOutOfRange, SettingsError
from framework.record import TopicPartition
from framework.spark.offsets import DATA_LOSS_ADVICE, EARLIEST, LATEST, Offsets, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from framework.spark.client import Client
    from framework.spark.options import Boundary, SourceOptions

__all__ = ["Positions"]

_log = structlog.get_logger(__name__)


class Positions:
    """Offsets of everything that is subscribed to."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options

    def partitions(self) -> list[TopicPartition]:
        """What there is now of what is subscribed to, in order. Raises ConsumerError."""
        subscription = self._options.subscription
        there = self._client.partitions()
        if subscription.partitions:
            return [p for p in subscription.partitions if p.partition in there.get(p.topic, ())]
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            topics = [topic for topic in there if matches(topic)]
        else:
            topics = [topic for topic in subscription.topics if topic in there]
        return sorted(TopicPartition(topic, p) for topic in topics for p in there[topic])

    def required(self) -> list[TopicPartition]:
        """The same for a query that begins: what is named must be there.

        Raises:
            ConsumerError: a topic or partition does not exist.
        """
        found = self.partitions()
        subscription = self._options.subscription
        topics = {partition.topic for partition in found}
        missing: list[object] = [t for t in subscription.topics if t not in topics]
        missing += [p for p in subscription.partitions if p not in found]
        if missing:
            raise ConsumerError(
                f"{', '.join(map(str, missing))} does not exist at "
                f"{self._options.client.bootstrap_servers}; create it first"
            )
        return found

    def resolve(self, boundary: Boundary, partitions: list[TopicPartition]) -> Offsets:
        """A boundary as real offsets, inside of what the brokers have.

        Raises:
            SettingsError: the option names other partitions than there are, or a time that is beyond
                all records of one.
            OffsetOutOfRange: an offset is gone, and `failOnDataLoss`.
        """
        if boundary.offsets or boundary.timestamps:
            self._check_names(boundary, partitions)
        beginnings, ends = self._client.beginnings(partitions), self._client.ends(partitions)
        standing = {EARLIEST: beginnings, LATEST: ends}
        if boundary.timestamp is not None or boundary.timestamps:
            return self._by_time(boundary, partitions, ends)
        found: Offsets = {}
        for partition in partitions:
            offset = boundary.offsets.get(partition, boundary.default)
            if offset < 0:
                offset = standing[offset][partition]
            inside = min(max(offset, beginnings[partition]), ends[partition])
            if inside != offset:
                self.lost(
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
        named, there = set(boundary.offsets or boundary.timestamps), set(partitions)
        if named != there:
            raise SettingsError(
                f"{boundary.option} must name every partition of {self._options.subscription}, and no "
                f"other: it names {by_topic(named)}, there are {by_topic(there)}"
            )

    def advance(self, start: Mapping[TopicPartition, int]) -> Offsets:
        """The end of everything, from `start` on: partitions may have come, and gone.

        A partition that is new has its first offset, so that where it begins is in the checkpoint before
        anything of it is read.

        Raises:
            OffsetOutOfRange: records or partitions are gone, and `failOnDataLoss`.
        """
        partitions = self.partitions()
        if gone := set(start) - set(partitions):
            self.lost(f"partitions are gone: {by_topic(gone)}")
        beginnings, ends = self._client.beginnings(partitions), self._client.ends(partitions)
        found: Offsets = {}
        for partition in partitions:
            beginning, end = beginnings[partition], ends[partition]
            if partition not in start:
                if beginning > 0:
                    self.lost(f"{partition} is new and begins at {beginning}, not at 0")
                found[partition] = beginning
                continue
            standing = start[partition]
            if end < standing:
                self.lost(f"{partition} ends at {end}, before {standing}, which was read already")
            elif standing < beginning:
                self.lost(f"{partition} begins at {beginning}, after {standing}, which is next")
            found[partition] = end
        return found

    def lost(self, what: str) -> None:
        """Tell that records may be lost. Raises OffsetOutOfRange, if `failOnDataLoss`."""
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(f"{what}. {DATA_LOSS_ADVICE}")
        _log.warning("records may be lost", what=what)
