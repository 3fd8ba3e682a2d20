"""The ledger: which offsets are settled, and therefore how far may be committed.

An offset is settled when its record was delivered, filtered, or accepted by the error sink. The watermark
of a partition is its lowest offset that is not settled. Only a watermark is ever committed, and it never
moves back. The ledger stores ranges, so its cost does not depend on the number of records.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..service.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..record import Batch, Range, TopicPartition
    from .announcement import LookBack


@dataclass(slots=True)
class InflightBatch:
    """A batch that was taken in and is not settled; after its map, each part that was mapped at once.

    Attributes:
        first: its first offset.
        last: its last offset, inclusive.
        nbytes: bytes of its records, of the rows made of them, and of its failed records.
        timestamp_ms: its newest timestamp.
        unmapped: bytes of its records, if their map has not ended; else 0.
    """

    first: int
    last: int
    nbytes: int
    timestamp_ms: int
    unmapped: int

    def divide(self, end: int) -> InflightBatch:
        """Take the offsets below `end` out, with their share of the bytes, and return them."""
        share = self.unmapped * (end - self.first) // (self.last + 1 - self.first)
        head = InflightBatch(self.first, end - 1, share, self.timestamp_ms, share)
        self.first = end
        self.nbytes -= share
        self.unmapped -= share
        return head


class Ledger:
    """The settled offsets of one partition, in one generation of its assignment.

    Args:
        start: the offset at which reading starts; None if the broker decides (nothing is committed):
            then the first batch sets it.
        generation: distinguishes this assignment of the partition from earlier ones.

    Attributes:
        watermark: the lowest offset that is not settled; None before the first batch.
        position: the next offset to read; None before the first batch.
        replayed_to: last offset of the announced range that is read again, -1 if there is none.
        look_back: returns what is remembered before an offset, for the metadata of a commit.
        until: the offset where reading ends; None: nowhere.
        held_to: last offset of the records that open windows hold; None if the strategy has no windows.
        in_windows: the offsets that open windows hold when the reading has ended; None before.
        awaits_letters: rows of windows are written, and settled when `reduce_err` has the letters of others.
        letters: bytes of failed records on their way to `reduce_err`, by offset, of a strategy with windows.
    """

    def __init__(self, partition: TopicPartition, start: int | None, generation: int) -> None:
        self.partition = partition
        self.generation = generation
        self.watermark = start
        self.position = start
        self.replayed_to = -1
        self.look_back: Callable[[int], LookBack | None] = lambda _offset: None
        self.until: int | None = None
        self.held_to: int | None = None
        self.in_windows: Sequence[Range] | None = None
        self.awaits_letters = False
        self.letters: dict[int, int] = {}
        # Settled ranges above the watermark; they neither touch nor overlap.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._inflight: list[InflightBatch] = []

    @property
    def inflight(self) -> Sequence[InflightBatch]:
        """The batches that are not wholly below the watermark, in order."""
        return self._inflight

    @property
    def has_holes(self) -> bool:
        """Whether records above the watermark are settled: the partition's next owner would double them.

        Inside a replayed range this does not count: it is written as a whole, by one token, at its end. Nor
        above the first record of an open window: what is committed with it says what is done. Nor do offsets
        between batches, which have no records: those below them may wait for their map, which no flush ends.
        """
        if self.awaits_letters:
            return True
        if self.held_to is not None or (self.watermark or 0) <= self.replayed_to:
            return False
        return any(map(self._has_records, self._starts, self._ends))

    def _has_records(self, first: int, last: int) -> bool:
        """Return whether a batch in flight has one of these offsets."""
        number = bisect_left(self._inflight, first, key=lambda batch: batch.last)
        return number < len(self._inflight) and self._inflight[number].first <= last

    @property
    def held(self) -> int:
        """How many offsets from the watermark on are in open windows, or between their records."""
        return 0 if self.held_to is None else max(0, self.held_to + 1 - (self.watermark or 0))

    def oldest_timestamp_ms(self, *, held: bool) -> int | None:
        """Return the timestamp of the oldest batch that open windows hold, or of the oldest other one."""
        end = 0 if self.held_to is None else self.held_to + 1
        number = 0 if held else bisect_left(self._inflight, end, key=lambda batch: batch.last)
        if number >= len(self._inflight) or (held and not self.held):
            return None
        found = self._inflight[number].timestamp_ms
        return found if found >= 0 else None

    def release(self, first: int, last: int) -> int:
        """Note that open windows hold these records; return the bytes of their batches, which leave."""
        self.held_to = max(last, self.held_to or 0)
        number, released = bisect_left(self._inflight, first, key=lambda batch: batch.last), 0
        while number < len(self._inflight) and self._inflight[number].first <= last:
            released += self._inflight[number].nbytes
            self._inflight[number].nbytes = 0
            number += 1
        return released

    @property
    def is_replaying(self) -> bool:
        """Whether the end of an announced range has not been read again yet."""
        return (self.position or 0) <= self.replayed_to

    @property
    def has_ended(self) -> bool:
        """Whether everything below `until` was taken in."""
        return self.until is not None and (self.position or 0) >= self.until

    @property
    def leaves_windows_open(self) -> bool:
        """Whether everything below `until` is settled, but for what open windows hold."""
        if self.until is None or self.in_windows is None or not self.has_ended:
            return False
        return (self.watermark_with(self.in_windows) or 0) >= self.until

    def within(self, batch: Batch) -> Batch | None:
        """Return the part of the next batch that is read; None if there is none.

        Offsets before `until` that a gap hides are a part without records, so that they are settled.
        """
        if self.until is None or batch.last < self.until:
            return batch
        if self.has_ended:
            return None
        first = min(batch.first, self.position if self.position is not None else batch.first)
        return batch.slice(first, self.until - 1)

    @property
    def has_unsettled(self) -> bool:
        """Whether a batch was taken in that is not settled."""
        return self.watermark != self.position

    def expects(self, batch: Batch) -> bool:
        """Return whether the batch starts at or after the position."""
        return self.position is None or batch.first >= self.position

    def take_in(self, batch: Batch) -> None:
        """Record a batch that enters the pipeline. A gap before it counts as settled.

        Raises:
            ValueError: the batch begins below the position.
        """
        if not self.expects(batch):
            raise ValueError(f"{batch!r} begins below offset {self.position}, which was taken in")
        if self.watermark is None or self.position is None:
            self.watermark = self.position = batch.first
        gap = self.position
        self.position = batch.last + 1
        self._inflight.append(
            InflightBatch(
                batch.first, batch.last, batch.nbytes, batch.max_timestamp_ms, unmapped=batch.nbytes
            )
        )
        if batch.first > gap:
            # Compaction, or a new log start, removed these offsets: no flush can settle them.
            self.settle(gap, batch.first - 1)

    def settle(self, first: int, last: int) -> list[InflightBatch]:
        """Settle offsets `[first, last]`, both inclusive; settling an offset twice has no effect.

        Returns:
            The batches that are now settled as a whole.

        Raises:
            ValueError: the offsets were never taken in.
        """
        if self.watermark is None or self.position is None or last >= self.position:
            raise ValueError(
                f"{self.partition}[{first}..{last}] cannot be settled: taken in up to {self.position}"
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
        number = bisect_left(self._inflight, self.watermark, key=lambda batch: batch.last)
        done = self._inflight[:number]
        del self._inflight[:number]
        return done

    def at(self, offset: int) -> int | None:
        """Return the number of the batch in flight that has an offset; None if it is settled."""
        number = bisect_left(self._inflight, offset, key=lambda batch: batch.last)
        if number < len(self._inflight) and self._inflight[number].first <= offset:
            return number
        return None

    def mapped(self, first: int, last: int, made: int) -> int | None:
        """Note that offsets of one batch are mapped, and how many bytes of rows they became.

        The rows leave with these offsets, not with the rest of their batch.

        Returns:
            The bytes of records that are mapped now; None if they are settled already.
        """
        number = self.at(first)
        if number is None:
            return None
        part = self._inflight[number]
        if last < part.last:
            part = part.divide(last + 1)
            self._inflight.insert(number, part)
        mapped, part.unmapped = part.unmapped, 0
        part.nbytes += made
        return mapped

    def watermark_with(self, ranges: Iterable[Range]) -> int | None:
        """Return what the watermark would be if these ranges of this generation were settled too."""
        watermark = self.watermark
        if watermark is None:
            return None
        ours = ((r.first, r.last) for r in ranges if r.generation == self.generation)
        for first, last in sorted((*zip(self._starts, self._ends, strict=True), *ours)):
            if first > watermark:
                break
            watermark = max(watermark, last + 1)
        return watermark

    def give_back(self, end: int) -> list[InflightBatch]:
        """Forget all offsets from `end` on, none of which is delivered: they will be read again.

        Returns:
            The batches that left; one that was given back in part stays, with its first part.
        """
        if self.watermark is None or self.position is None:
            return []
        self.position = end = max(end, self.watermark)
        while self._starts and self._ends[-1] >= end:  # gaps that were settled when they were read
            if self._starts[-1] >= end:
                del self._starts[-1], self._ends[-1]
            else:
                self._ends[-1] = end - 1
        left = []
        while self._inflight and self._inflight[-1].first >= end:
            left.append(self._inflight.pop())
        if self._inflight:
            last = self._inflight[-1]
            last.last = min(last.last, end - 1)
            if last.last < self.watermark:
                left.append(self._inflight.pop())
        return left


class Ledgers:
    """The ledgers of all assigned partitions.

    Args:
        on_settled: called with the partition and each batch that is settled as a whole.
        on_bytes: called with each change of the bytes in flight, and of those that are not mapped.

    Attributes:
        uncommitted: partitions whose offset to commit may have moved since it was committed.
    """

    def __init__(
        self,
        on_settled: Callable[[TopicPartition, InflightBatch], None] = lambda _partition, _batch: (
            None
        ),
        on_bytes: Callable[[int, int], None] = lambda _nbytes, _unmapped: None,
    ) -> None:
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._on_settled = on_settled
        self._on_bytes = on_bytes
        self._held: dict[object, int] = {}
        self._generation = 0
        self._settled = Wakeup()
        self.uncommitted: set[TopicPartition] = set()

    def open(
        self,
        partition: TopicPartition,
        start: int | None,
        *,
        replayed_to: int = -1,
        holds: bool = False,
    ) -> Ledger:
        """Begin a new generation of a partition; rows of an older one become stale.

        Args:
            holds: open windows hold records.
        """
        self.drop(partition)
        self._generation += 1
        ledger = self._ledgers[partition] = Ledger(partition, start, self._generation)
        ledger.replayed_to = replayed_to
        ledger.held_to = -1 if holds else None
        self.uncommitted.add(partition)
        return ledger

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition; settling its offsets has no effect from now on."""
        ledger = self._ledgers.pop(partition, None)
        if ledger is not None:
            for batch in ledger.inflight:
                self._on_bytes(-batch.nbytes, -batch.unmapped)
            self._letters_leave(ledger, 0)
            self._settled.notify()

    def give_back(self, ledger: Ledger, end: int | None) -> None:
        """Forget the ranges from offset `end` on, or above the watermark; see `Ledger.give_back`."""
        if self._ledgers.get(ledger.partition) is ledger:
            for batch in ledger.give_back(-1 if end is None else end):
                self._on_bytes(-batch.nbytes, -batch.unmapped)
            for batch in ledger.inflight:
                self._on_bytes(0, -batch.unmapped)
                batch.unmapped = 0
            self._letters_leave(ledger, ledger.position or 0)

    def get(self, partition: TopicPartition) -> Ledger | None:
        """Return the ledger of a partition, None if it is not assigned."""
        return self._ledgers.get(partition)

    def is_current(self, ranges: Iterable[Range]) -> bool:
        """Return whether all ranges belong to the current generation of an assigned partition."""
        return all(self._current(r) is not None for r in ranges)

    def take_in(self, batch: Batch) -> None:
        """Record a batch of an assigned partition. Raises ValueError as `Ledger.take_in` does."""
        partition = batch.topic_partition
        self._ledgers[partition].take_in(batch)
        self.uncommitted.add(partition)
        self._on_bytes(batch.nbytes, batch.nbytes)

    def mapped(self, r: Range, made: int) -> None:
        """Note that records of one batch are mapped, and the bytes of rows that they became.

        Ranges of an older generation are ignored, here and in `charge`.
        """
        ledger = self._current(r)
        if ledger is not None and (mapped := ledger.mapped(r.first, r.last, made)) is not None:
            self._on_bytes(made, -mapped)

    def charge(self, ranges: Sequence[Range], nbytes: int, *, failed: bool = False) -> None:
        """Count bytes that were made of mapped records; they leave when the last of them is settled.

        Args:
            failed: they are on their way to `reduce_err`, where the others of a batch may be in windows.
        """
        if not ranges:
            return
        r = ranges[-1]
        if (ledger := self._current(r)) is not None and (number := ledger.at(r.last)) is not None:
            if failed and ledger.held_to is not None:
                ledger.letters[r.last] = ledger.letters.get(r.last, 0) + nbytes
            else:
                ledger.inflight[number].nbytes += nbytes
            self._on_bytes(nbytes, 0)

    def hold(self, owner: object, nbytes: int) -> None:
        """Count bytes of rows that are settled and not written yet; 0 when they are.

        Args:
            owner: of the rows; the last call for it counts.
        """
        self._on_bytes(nbytes - self._held.pop(owner, 0), 0)
        if nbytes:
            self._held[owner] = nbytes

    def release(self, ranges: Iterable[Range]) -> None:
        """Note that open windows hold these records, whose rows are in the windows' state now."""
        for r in ranges:
            if (ledger := self._current(r)) is not None:
                self._on_bytes(-ledger.release(r.first, r.last), 0)

    def end_in_windows(self, partition: TopicPartition, held: Sequence[Range]) -> None:
        """Note which offsets open windows hold when all is read: `Ledger.in_windows`."""
        if (ledger := self._ledgers.get(partition)) is not None:
            ledger.in_windows = held
            self.uncommitted.add(partition)

    @property
    def held_bytes(self) -> int:
        """The bytes that `hold` counts, of all owners."""
        return sum(self._held.values())

    def settle(self, ranges: Iterable[Range]) -> None:
        """Settle ranges; those of an older generation are ignored."""
        for r in ranges:
            ledger = self._current(r)
            if ledger is not None:
                done = ledger.settle(r.first, r.last)
                self.uncommitted.add(ledger.partition)
                if done:
                    self._on_bytes(
                        -sum([batch.nbytes for batch in done]),
                        -sum([batch.unmapped for batch in done]),
                    )
                for batch in done:
                    self._on_settled(ledger.partition, batch)
                self._letters_leave(ledger, r.first, r.last)
        self._settled.notify()

    def _letters_leave(self, ledger: Ledger, first: int, last: int = sys.maxsize) -> None:
        """Note that failed records of a range are settled or lost."""
        for offset in [each for each in ledger.letters if first <= each <= last]:
            self._on_bytes(-ledger.letters.pop(offset), 0)

    def _current(self, r: Range) -> Ledger | None:
        ledger = self._ledgers.get(r.topic_partition)
        return ledger if ledger is not None and ledger.generation == r.generation else None

    @property
    def have_holes(self) -> bool:
        """Whether any partition has offsets settled above its watermark."""
        return any(ledger.has_holes for ledger in self._ledgers.values())

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when a condition on settled offsets holds; it is looked at when any of them changes."""
        while not condition():
            await self._settled.wait()

    async def wait_whole(self) -> None:
        """Return when no partition has holes."""
        await self.wait_until(lambda: not self.have_holes)

    def are_settled(self, ranges: Iterable[Range]) -> bool:
        """Return whether all offsets of the ranges are below the watermarks of their partitions."""
        return all(
            (ledger := self._current(r)) is not None and (ledger.watermark or 0) > r.last
            for r in ranges
        )

    def complete(self, ranges: Sequence[Range]) -> bool:
        """Return whether settling the ranges leaves no offset below their ends unsettled.

        Ranges of an older generation are ignored.
        """
        reached = self.watermarks(ranges, ())
        return all(
            reached.get(r.topic_partition, 0) > r.last
            for r in ranges
            if self._current(r) is not None
        )

    @property
    def are_replaying(self) -> bool:
        """Whether the end of any announced range has not been read again yet."""
        return any(ledger.is_replaying for ledger in self._ledgers.values())

    def watermarks(
        self, settled: Iterable[Range] = (), partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return the watermark of each partition that has one, as if `settled` were settled too.

        Args:
            partitions: those to return, beside those of `settled`; None: all.
        """
        added: dict[TopicPartition, list[Range]] = defaultdict(list)
        for r in settled:
            added[r.topic_partition].append(r)
        found: dict[TopicPartition, int] = {}
        for partition in self._ledgers if partitions is None else {*partitions, *added}:
            if (ledger := self._ledgers.get(partition)) is not None:
                ranges = added.get(partition)
                watermark = ledger.watermark_with(ranges) if ranges else ledger.watermark
                if watermark is not None:
                    found[partition] = watermark
        return found

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())
