"""Backpressure: the three rules that hold work back. Waiters wake by events; nothing polls.

    rule                                                   holds back                until
    `MapInboxes`: queue_batches batches wait for a map     that partition's intake   its map takes one
    `Budget`: inflight_bytes are taken in and not settled  all intake                rows are settled
    `Gate`: a rebalance is under way                       maps and flushes          the next assignment

Between stages the queues are bounded, so a busy sink holds back the maps, and these their partitions. A
full reducer with `when_full="backpressure"` stops reading its queue: see `kmr.reducers.flushing`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from ..kafka.consumer import Consumer
    from ..record import Batch, TopicPartition

__all__ = ["Budget", "Gate", "MapInboxes"]


class Budget:
    """Bytes of records that were taken in and are not settled.

    `take` never refuses, so that a batch larger than the whole budget passes when nothing else is in
    flight; `wait` holds back the next intake until there is room.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._room = anyio.Event()

    @property
    def exhausted(self) -> bool:
        """Whether intake has to wait."""
        return self.used >= self.limit

    def take(self, nbytes: int) -> None:
        """Add bytes that were taken in."""
        self.used += nbytes

    def give(self, nbytes: int) -> None:
        """Subtract bytes that were settled or dropped, and wake `wait` if there is room."""
        self.used -= nbytes
        if not self.exhausted:
            self._room.set()
            self._room = anyio.Event()

    async def wait(self) -> None:
        """Return when there is room."""
        while self.exhausted:
            await self._room.wait()


class Gate:
    """A gate before work: `async with gate:` waits while it is closed. Created closed.

    The gate before every flush is closed during a rebalance: a write that began then could race with the
    partition's next owner. Work that has begun goes on; `wait_quiet` waits for its end.
    """

    def __init__(self) -> None:
        self._passing = 0
        self._opened = anyio.Event()
        self._quiet = anyio.Event()
        self._quiet.set()
        self.is_open = False

    def open(self) -> None:
        """Let work begin."""
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        """Let no work begin."""
        if self.is_open:
            self.is_open = False
            self._opened = anyio.Event()

    async def wait_quiet(self) -> None:
        """Return when no work is under way."""
        await self._quiet.wait()

    async def __aenter__(self) -> Self:
        while not self.is_open:
            await self._opened.wait()
        if self._passing == 0:
            self._quiet = anyio.Event()
        self._passing += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._passing -= 1
        if self._passing == 0:
            self._quiet.set()


@dataclass(slots=True)
class _Inbox:
    stream: MemoryObjectSendStream[Batch]
    paused: bool = False


class MapInboxes:
    """The inboxes of the map stages. A partition is paused at the consumer while its inbox is full.

    The streams are unbounded: a poll returns batches of several partitions, and delivering them must not
    wait for one slow map. The pause bounds them.

    Args:
        queue_batches: batches in an inbox at which its partition is paused.
    """

    def __init__(self, consumer: Consumer, queue_batches: int) -> None:
        self._consumer = consumer
        self._queue_batches = queue_batches
        self._inboxes: dict[TopicPartition, _Inbox] = {}

    def open(self, partition: TopicPartition) -> MemoryObjectReceiveStream[Batch]:
        """Make the inbox of a new partition."""
        send, receive = anyio.create_memory_object_stream["Batch"](math.inf)
        self._inboxes[partition] = _Inbox(send)
        return receive

    def close(self, partition: TopicPartition) -> None:
        """Close a partition's inbox: its map ends when it has taken the batches in it."""
        inbox = self._inboxes.pop(partition, None)
        if inbox is not None:
            inbox.stream.close()

    def close_all(self) -> None:
        """Close all inboxes."""
        for partition in list(self._inboxes):
            self.close(partition)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._inboxes

    def put(self, batch: Batch) -> None:
        """Put a batch into its partition's inbox, and pause the partition if that is full now."""
        inbox = self._inboxes[batch.topic_partition]
        inbox.stream.send_nowait(batch)
        if inbox.stream.statistics().current_buffer_used >= self._queue_batches:
            inbox.paused = True
            self._consumer.pause([batch.topic_partition])

    def taken(self, partition: TopicPartition) -> None:
        """Resume the partition if it is paused: its map has taken a batch."""
        inbox = self._inboxes.get(partition)
        if inbox is not None and inbox.paused:
            inbox.paused = False
            self._consumer.resume([partition])

    def pause_again(self) -> None:
        """Repeat all pauses after a rebalance, in which the consumer forgot them."""
        self._consumer.pause([name for name, inbox in self._inboxes.items() if inbox.paused])

    def is_paused(self, partition: TopicPartition) -> bool:
        """Return whether intake of the partition waits for its map."""
        inbox = self._inboxes.get(partition)
        return inbox is not None and inbox.paused
