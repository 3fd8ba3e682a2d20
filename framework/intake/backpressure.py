"""Backpressure: the three rules that hold work back. Waiters wake by events; nothing polls.

    rule                                                   holds back                until
    `MapInboxes`: queue_batches batches wait for a map     that partition's intake   its map takes one
    `Budget`: inflight_bytes of records and rows           all intake, then maps     rows are settled
    `Gate`: a rebalance is under way                       maps and flushes          the next assignment

Between stages the queues are bounded, so a busy sink holds back the maps, and these their partitions. A
full reducer with `when_full="backpressure"` stops reading its queue: see `kmr.reducers.flushing`.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio
from anyio.lowlevel import checkpoint

from ..service.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from ..kafka.consumer import Consumer
    from ..record import Batch, TopicPartition

_GROWTH_AT_FIRST: Final = (
    16.0  # assumed bytes of rows for each byte of a batch, until maps have ended
)
_SURE_AFTER: Final = 64.0 * 1024  # bytes of batches that count as much as that assumption
_MEMORY: Final = 0.9  # the weight of all earlier batches, beside the latest one

_PEAK_AT_FIRST: Final = (
    10_000.0  # assumed at first of the largest growth, so that first parts are small
)
_PEAK_MEMORY: Final = 0.7  # of the largest growth, with each map that has ended
_PARTS: Final = 4  # maps that fit into the budget at a time, with the largest growth


class Budget:
    """Bytes in flight, of all partitions together: records, the rows made of them, failed records.

    The ledgers count them (`add`), and nobody else does. Nothing that frees bytes ever waits for room:
    flushes do not, and a map waits only while rows that a flush can settle are in flight, or other maps
    are under way.

    How many rows a batch becomes is known after its map. So intake counts a batch with the growth that
    recent maps had: otherwise records would use up the budget, and leave no room for their rows. A map
    begins where rows of the *largest* growth of recent maps have room, and is given so few records that
    several such maps fit. So what is in flight exceeds `limit` by at most one fetch, and the rows of one
    part of one partition, if these are more than any before.

    What a strategy remembers of settled records (`keep`) lowers the limit: no flush frees it.

    Args:
        limit: bytes from which on intake and maps wait.
        on_exhausted: called each time the budget becomes exhausted; flushes the collected rows.

    Attributes:
        limit: bytes from which on intake and maps wait, less what is remembered.
        kept: bytes of what is remembered.
        used: bytes in flight.
        unmapped: bytes of records whose map has not ended.
    """

    def __init__(self, limit: int, on_exhausted: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.kept = 0
        self.used = 0
        self.unmapped = 0
        self._on_exhausted = on_exhausted
        self._kept: dict[object, int] = {}
        self._resting: dict[object, int] = {}
        self._resting_bytes = 0
        self._maps = 0
        self._reserved = 0.0
        self._waiting_maps = 0
        self._peaks: dict[str, float] = {}
        self._batch_bytes = _SURE_AFTER
        self._row_bytes = _SURE_AFTER * _GROWTH_AT_FIRST
        self._changed = Wakeup()

    @property
    def whole(self) -> int:
        """The limit if nothing were remembered."""
        return self.limit + self.kept

    def keep(self, owner: object, nbytes: int) -> bool:
        """Count what an owner remembers, 0 when it is gone; the last call for it counts.

        Returns:
            False if all owners together remember more than half of the whole.
        """
        before = self.exhausted
        more = nbytes - self._kept.pop(owner, 0)
        self.kept += more
        self.limit -= more
        if nbytes:
            self._kept[owner] = nbytes
        self._look(before)
        return 2 * self.kept <= self.whole

    def rest(self, owner: object, nbytes: int) -> None:
        """Note how many of the bytes in flight are in open windows: only more records can make them leave."""
        self._resting_bytes += nbytes - self._resting.pop(owner, 0)
        if nbytes:
            self._resting[owner] = nbytes
        self._changed.notify()

    @property
    def largest(self) -> list[object]:
        """Those that remember something, with the largest memory first."""
        return sorted(self._kept, key=self._kept.__getitem__, reverse=True)

    @property
    def _growth(self) -> float:
        """Bytes of rows for each byte of a batch, in recent maps."""
        return self._row_bytes / self._batch_bytes

    @property
    def exhausted(self) -> bool:
        """Whether intake has to wait: maps wait for room, or the rows that are to come would have none."""
        return bool(self._waiting_maps) or self.used + self.unmapped * self._growth >= self.limit

    @property
    def room(self) -> int:
        """Bytes of records that may be taken in, with room for their rows; at least 1."""
        left = self.limit - self.used - self.unmapped * self._growth
        return max(1, int(left / (1 + self._growth)))

    def add(self, nbytes: int, unmapped: int = 0) -> None:
        """Add bytes to those in flight, and to those of them that are not mapped; negative ones leave."""
        before = self.exhausted
        self.used += nbytes
        self.unmapped += unmapped
        self._look(before)

    def learn(self, topic: str, batch_bytes: int, row_bytes: int) -> None:
        """Note how many bytes of rows some records became."""
        before = self.exhausted
        self._batch_bytes = self._batch_bytes * _MEMORY + batch_bytes
        self._row_bytes = self._row_bytes * _MEMORY + row_bytes
        peak = self._peaks.get(topic, _PEAK_AT_FIRST)
        self._peaks[topic] = max(row_bytes / max(1, batch_bytes), peak * _PEAK_MEMORY)
        self._look(before)

    def learn_peak(self, topic: str, growth: float) -> None:
        """Note the largest growth among batches whose bytes `learn` got as one sum."""
        self._peaks[topic] = max(growth, self._peaks.get(topic, 0.0))

    def _look(self, before: bool) -> None:
        """Call `on_exhausted` if the budget is exhausted now, and wake those who wait for room."""
        if self.exhausted and not before:
            self._on_exhausted()
        self._changed.notify()

    async def wait(self) -> None:
        """Return when intake may go on."""
        while self.exhausted:
            await self._changed.wait()

    def records_of_a_part(self, batch: Batch) -> int:
        """Return how many records of a batch may be mapped at once, so that their rows fit; at least 1."""
        each = batch.nbytes / (batch.last + 1 - batch.first)
        rows = each * self._peaks.get(batch.topic, _PEAK_AT_FIRST)
        return max(1, int(self.limit / _PARTS / max(rows, 1e-9)))

    def expected(self, batch: Batch) -> float:
        """Return how many bytes of rows a batch becomes with the largest growth of recent maps."""
        return batch.nbytes * self._peaks.get(batch.topic, _PEAK_AT_FIRST)

    def allows(self, batch: Batch) -> bool:
        """Whether the map of these records may begin: its rows have room, or nothing can make any."""
        if not self._maps and self.used - self._resting_bytes <= self.unmapped:
            return True
        return self.has_room(self.expected(batch))

    def has_room(self, nbytes: float) -> bool:
        """Whether so many bytes of rows have room beside those of the maps under way."""
        return self.used + self._reserved + nbytes <= self.limit

    def reserve(self, nbytes: float, maps: int = 0) -> None:
        """Keep room for the rows of maps that begin; negative numbers at their end."""
        self._maps += maps
        self._reserved += nbytes
        if nbytes < 0:
            self._changed.notify()

    async def wait_to_map(self, batch: Batch) -> None:
        """Return when the map of these records may begin."""
        if self.allows(batch):
            return
        before = self.exhausted
        self._waiting_maps += 1
        try:
            self._look(before)
            while not self.allows(batch):
                await self._changed.wait()
        finally:
            self._waiting_maps -= 1
            self._changed.notify()

    @contextmanager
    def mapping(self, batch: Batch) -> Iterator[None]:
        """Count a map that is under way; at its end its rows are counted already."""
        expected = self.expected(batch)
        self.reserve(expected, maps=1)
        try:
            yield
        finally:
            self.reserve(-expected, maps=-1)
            self._changed.notify()


class Gate:
    """A gate before work: `async with gate:` waits while it is closed. Created closed.

    The gate before every flush is closed during a rebalance: a write that began then could race with the
    partition's next owner. Work that has begun goes on; `wait_quiet` waits for its end.
    """

    def __init__(self) -> None:
        self._passing = 0
        self._opened = Wakeup()
        self._quiet = Wakeup()
        self.is_open = False

    def open(self) -> None:
        """Let work begin."""
        self.is_open = True
        self._opened.notify()

    def close(self) -> None:
        """Let no work begin."""
        self.is_open = False

    async def wait_quiet(self) -> None:
        """Return when no work is under way."""
        if self._passing:
            await self._quiet.wait()
        else:
            await checkpoint()

    async def __aenter__(self) -> Self:
        while not self.is_open:
            await self._opened.wait()
        self._passing += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._passing -= 1
        if self._passing == 0:
            self._quiet.notify()


class Shared(Protocol):
    """Takes the batches that are mapped together with those of other partitions (`kmr.map_shared`)."""

    def offer(self, batch: Batch) -> bool:
        """Take a batch; False: its own stage maps it."""

    def waiting(self, partition: TopicPartition) -> int:
        """Return how many batches of a partition wait."""


@dataclass(slots=True)
class _Inbox:
    stream: MemoryObjectSendStream[Batch]
    ended: bool
    paused: bool = False


class MapInboxes:
    """The inboxes of the map stages. A partition is paused at the consumer while its inbox is full.

    The streams are unbounded: a poll returns batches of several partitions, and delivering them must not
    wait for one slow map. The pause bounds them.

    Args:
        queue_batches: batches in an inbox at which its partition is paused.

    Attributes:
        shared: takes batches before the inboxes do.
    """

    def __init__(self, consumer: Consumer, queue_batches: int) -> None:
        self.shared: Shared | None = None
        self._consumer = consumer
        self._queue_batches = queue_batches
        self._inboxes: dict[TopicPartition, _Inbox] = {}

    def open(
        self, partition: TopicPartition, *, ended: bool = False
    ) -> MemoryObjectReceiveStream[Batch]:
        """Make the inbox of a new partition; `ended`: nothing of it is read."""
        send, receive = anyio.create_memory_object_stream["Batch"](math.inf)
        self._inboxes[partition] = _Inbox(send, ended)
        return receive

    def end(self, partition: TopicPartition) -> None:
        """Pause a partition for good: its history is read."""
        self._inboxes[partition].ended = True
        self._consumer.pause([partition])

    def has_ended(self, partition: TopicPartition) -> bool:
        """Return whether nothing more is read of a partition."""
        inbox = self._inboxes.get(partition)
        return inbox is not None and inbox.ended

    def close(self, partition: TopicPartition) -> None:
        """Close a partition's inbox: its map ends when it has taken the batches in it."""
        inbox = self._inboxes.pop(partition, None)
        if inbox is not None:
            inbox.stream.close()

    def close_all(self) -> None:
        """Close all inboxes."""
        for partition in list(self._inboxes):
            self.close(partition)

    def __len__(self) -> int:
        return len(self._inboxes)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._inboxes

    def put(self, batch: Batch) -> None:
        """Put a batch into its partition's inbox, and pause the partition if that is full now.

        A batch for a map that has failed is dropped: the failure is ending the worker.
        """
        if self.shared is None or not self.shared.offer(batch):
            self.put_alone(batch)
        inbox = self._inboxes[batch.topic_partition]
        if self.waiting(batch.topic_partition) >= self._queue_batches:
            inbox.paused = True
            self._consumer.pause([batch.topic_partition])

    def put_alone(self, batch: Batch) -> None:
        """Put a batch into its partition's inbox, if it is open."""
        inbox = self._inboxes.get(batch.topic_partition)
        if inbox is not None:
            with suppress(anyio.BrokenResourceError):
                inbox.stream.send_nowait(batch)

    def taken(self, partition: TopicPartition) -> None:
        """Resume the partition if it is paused: its map has taken a batch."""
        inbox = self._inboxes.get(partition)
        if inbox is not None and inbox.paused:
            inbox.paused = False
            if not inbox.ended:
                self._consumer.resume([partition])

    def pause_again(self) -> None:
        """Repeat all pauses after a rebalance, in which the consumer forgot them."""
        paused = [name for name, each in self._inboxes.items() if each.paused or each.ended]
        self._consumer.pause(paused)

    def waiting(self, partition: TopicPartition) -> int:
        """Return how many batches wait for the partition's map."""
        inbox = self._inboxes.get(partition)
        shared = 0 if self.shared is None else self.shared.waiting(partition)
        return 0 if inbox is None else shared + inbox.stream.statistics().current_buffer_used

    def is_paused(self, partition: TopicPartition) -> bool:
        """Return whether intake of the partition waits for its map."""
        inbox = self._inboxes.get(partition)
        return inbox is not None and inbox.paused
