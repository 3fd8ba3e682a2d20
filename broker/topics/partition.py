"""One partition as the server sees it: its log, what consumers may read, and who waits for more."""

from __future__ import annotations

from asyncio import Event
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.partition import PartitionLog

__all__ = ["Partition", "Watch"]


class Watch:
    """Wakes one long poll when its partitions have grown by enough bytes, or one of them is gone."""

    def __init__(self, partitions: Sequence[Partition], missing_bytes: int) -> None:
        self._partitions = partitions
        self._missing = missing_bytes
        self._event = Event()

    def __enter__(self) -> Self:
        for partition in self._partitions:
            partition.watches.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        for partition in self._partitions:
            partition.watches.discard(self)

    def grown(self, size: int) -> None:
        self._missing -= size
        if self._missing <= 0:
            self._event.set()

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class Partition:
    """A partition of a topic.

    `high_watermark`: offsets below may be read by consumers. They have been written to the file, and
    under fsync "always" they are on disk: what a consumer has seen is as safe as what a producer was
    told.

    What was produced and fetched since the broker has started: `produced_bytes`, `produced_records`,
    `fetched_bytes`, `fetched_records` (by their offsets: those that compaction took count too).
    """

    __slots__ = (
        "closed",
        "fetched_bytes",
        "fetched_records",
        "high_watermark",
        "index",
        "log",
        "produced_bytes",
        "produced_records",
        "reported_corrupt",
        "reported_failure",
        "topic",
        "watches",
    )

    def __init__(self, topic: str, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.high_watermark = log.next_offset
        self.watches: set[Watch] = set()
        self.closed = False
        self.reported_corrupt = False
        self.reported_failure = False
        self.produced_bytes = self.produced_records = 0
        self.fetched_bytes = self.fetched_records = 0

    @property
    def last_stable_offset(self) -> int:
        """Offsets below are what a read_committed consumer may read."""
        return min(self.high_watermark, self.log.last_stable_offset)

    def advance(self, high_watermark: int, size: int) -> None:
        """Show consumers the records below `high_watermark`, which are `size` bytes more."""
        if high_watermark <= self.high_watermark:
            return
        self.produced_bytes += size
        self.produced_records += high_watermark - self.high_watermark
        self.high_watermark = high_watermark
        for watch in tuple(self.watches):
            watch.grown(size)

    def wake(self) -> None:
        """End the long polls that wait for this partition."""
        for watch in tuple(self.watches):
            watch.wake()

    def close(self) -> None:
        """Nobody may append or read any more: the topic is deleted, or the broker stops."""
        self.closed = True
        self.wake()
