"""The ledger: which offsets are settled, and so how far may be committed.

Settled is what was delivered, filtered or accepted by the error sink. The watermark of a partition is its
lowest offset that is not settled; it is the only thing that is ever committed, and it never moves back.
Everything is ranges, so the cost does not depend on the number of records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from framework.record import Batch, Range, TopicPartition

__all__ = ["Delivery", "Ledger", "Ledgers"]


class Delivery(NamedTuple):
    """One batch that was taken in: its offsets (inclusive), its bytes, its newest timestamp."""

    first: int
    last: int
    nbytes: int
    timestamp_ms: int


class Ledger:
    """What of one partition is settled, in one generation of its assignment.

    Args:
        start: the offset at which reading starts; None if the broker decides (no commit yet), then the
            first batch says.
        generation: distinguishes this assignment of the partition from earlier ones.

    Attributes:
        replayed_to: last offset of the announced range that is being read again, -1 if none is.
    """

    def __init__(self, partition: TopicPartition, start: int | None, generation: int) -> None:
        self.partition = partition
        self.generation = generation
        self.watermark = start
        self.delivered = start
        self.replayed_to = -1
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._deliveries: deque[Delivery] = deque()

    @property
    def inflight_bytes(self) -> int:
        """Bytes of the batches that are not wholly below the watermark."""
        return sum(delivery.nbytes for delivery in self._deliveries)

    @property
    def has_holes(self) -> bool:
        """Whether offsets above the watermark are settled: if the partition went now, they would double.

        Inside a range that is replayed, nothing is written before its end, and all of it by one token.
        """
        return bool(self._starts) and (self.watermark or 0) > self.replayed_to

    @property
    def is_replaying(self) -> bool:
        """Whether an announced range has not been read to its end again."""
        return (self.delivered or 0) <= self.replayed_to

    @property
    def unsettled(self) -> bool:
        """Whether something was delivered that is not settled yet."""
        return self.watermark != self.delivered

    def expects(self, batch: Batch) -> bool:
        """Whether the batch goes on where the last one ended, or after a gap."""
        return self.delivered is None or batch.first >= self.delivered

    def deliver(self, batch: Batch) -> None:
        """Take note of a batch that enters the pipeline; a gap before it needs no settling.

        Raises:
            ValueError: it begins before the end of the previous one.
        """
        if not self.expects(batch):
            raise ValueError(f"{batch!r} begins below offset {self.delivered}, which was delivered")
        if self.watermark is None or self.delivered is None:
            self.watermark = self.delivered = batch.first
        gap = self.delivered
        self.delivered = batch.last + 1
        self._deliveries.append(
            Delivery(batch.first, batch.last, batch.nbytes, batch.max_timestamp_ms)
        )
        if batch.first > gap:
            # Compaction or a raised log start removed these offsets: nobody can ever settle them.
            self.settle(gap, batch.first - 1)

    def settle(self, first: int, last: int) -> list[Delivery]:
        """Settle offsets `[first, last]`, both inclusive; returns the batches that are now all settled.

        Settling twice is harmless.

        Raises:
            ValueError: they were never delivered.
        """
        if self.watermark is None or self.delivered is None or last >= self.delivered:
            raise ValueError(
                f"{self.partition}[{first}..{last}] cannot settle: delivered up to {self.delivered}"
            )
        low = bisect_left(self._ends, first - 1)
        high = bisect_right(self._starts, last + 1)
        if low < high:
            first = min(first, self._starts[low])
            last = max(last, self._ends[high - 1])
        self._starts[low:high] = [first]
        self._ends[low:high] = [last]
        if self._starts[0] > self.watermark:
            return []
        self.watermark = max(self.watermark, self._ends[0] + 1)
        del self._starts[0], self._ends[0]
        done = []
        while self._deliveries and self._deliveries[0].last < self.watermark:
            done.append(self._deliveries.popleft())
        return done


class Ledgers:
    """The ledgers of all assigned partitions.

    Args:
        on_settled: told of every batch that is wholly settled: its partition and the delivery.
        on_dropped: told of bytes that left the pipeline unsettled, when a partition is dropped.
    """

    def __init__(
        self,
        on_settled: Callable[[TopicPartition, Delivery], None] = lambda _partition, _delivery: None,
        on_dropped: Callable[[int], None] = lambda _nbytes: None,
    ) -> None:
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._on_settled = on_settled
        self._on_dropped = on_dropped
        self._generation = 0
        self._settled = anyio.Event()

    def open(
        self, partition: TopicPartition, start: int | None, *, replayed_to: int = -1
    ) -> Ledger:
        """Begin a new generation of a partition; whatever is in flight of an older one is stale."""
        self.drop(partition)
        self._generation += 1
        ledger = self._ledgers[partition] = Ledger(partition, start, self._generation)
        ledger.replayed_to = replayed_to
        return ledger

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition; settling its offsets has no effect from now on."""
        ledger = self._ledgers.pop(partition, None)
        if ledger is not None:
            self._on_dropped(ledger.inflight_bytes)
            self._changed()

    def get(self, partition: TopicPartition) -> Ledger | None:
        """The ledger of an assigned partition."""
        return self._ledgers.get(partition)

    def is_current(self, ranges: Iterable[Range]) -> bool:
        """Whether all ranges belong to partitions, and generations of them, that are still ours."""
        ledgers = self._ledgers
        return all(
            (ledger := ledgers.get(r.topic_partition)) is not None
            and ledger.generation == r.generation
            for r in ranges
        )

    def settle(self, ranges: Iterable[Range]) -> None:
        """Settle ranges; those of an older generation are dropped."""
        for r in ranges:
            ledger = self._ledgers.get(r.topic_partition)
            if ledger is None or ledger.generation != r.generation:
                continue
            for delivery in ledger.settle(r.first, r.last):
                self._on_settled(ledger.partition, delivery)
        self._changed()

    def _changed(self) -> None:
        self._settled.set()
        self._settled = anyio.Event()

    @property
    def have_holes(self) -> bool:
        """Whether any partition has offsets settled above its watermark."""
        return any(ledger.has_holes for ledger in self._ledgers.values())

    async def wait_whole(self) -> None:
        """Return when no partition has holes."""
        while self.have_holes:
            await self._settled.wait()

    async def wait_reached(self, partition: TopicPartition, offset: int) -> None:
        """Return when everything below `offset` is settled, or the partition is gone."""
        while (ledger := self.get(partition)) is not None and (ledger.watermark or 0) < offset:
            await self._settled.wait()

    @property
    def are_replaying(self) -> bool:
        """Whether an announced range has not been read to its end again."""
        return any(ledger.is_replaying for ledger in self._ledgers.values())

    def watermarks(self) -> dict[TopicPartition, int]:
        """The watermark of every partition that has one."""
        return {
            partition: ledger.watermark
            for partition, ledger in self._ledgers.items()
            if ledger.watermark is not None
        }

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())

    def __len__(self) -> int:
        return len(self._ledgers)
