"""The intake: takes batches from the consumer, within the budget, and hands each to its partition's map."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from framework.backpressure import Budget
from framework.errors import OffsetOutOfRange
from framework.ledger import Ledgers

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from framework.consumer import Consumer
    from framework.ledger import Delivery
    from framework.record import Batch, TopicPartition
    from framework.telemetry import Metrics

__all__ = ["Intake"]

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Inlet:
    """The way into one partition's map stage."""

    inbox: MemoryObjectSendStream[Batch]
    paused: bool = False


class Intake:
    """Keeps the ledgers and the budget, and counts what goes in and what is settled.

    Args:
        inflight_bytes: bytes of unsettled records above which nothing is taken in.
        queue_batches: batches that wait for one partition's map before the partition is paused.
        make_room: called when the budget is used up: whatever is collected must be flushed.

    Attributes:
        is_open: closed, batches are dropped: a rebalance is under way, and where reading goes on is
            decided when it is over.
        progress_at: when something moved last, on the event loop's clock.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        inflight_bytes: int,
        queue_batches: int,
        metrics: Metrics,
        make_room: Callable[[], None],
    ) -> None:
        self._consumer = consumer
        self._queue_batches = queue_batches
        self._metrics = metrics
        self._make_room = make_room
        self._inlets: dict[TopicPartition, _Inlet] = {}
        self.budget = Budget(inflight_bytes)
        self.ledgers = Ledgers(self._settled, self._dropped)
        self.is_open = False
        self.consumed = 0
        self.settled = 0
        self.progress_at = anyio.current_time()

    async def run(self) -> None:
        """Take in for ever.

        Raises:
            ConsumerError: the Kafka client cannot go on.
        """
        while True:
            if self.budget.exhausted:
                await self._make_or_wait_for_room()
            try:
                batches = await self._consumer.poll()
            except OffsetOutOfRange as error:
                raise self._of_announced_range(error) from error
            for batch in batches:
                self._route(batch)

    def add(self, partition: TopicPartition) -> MemoryObjectReceiveStream[Batch]:
        """A new partition's inbox; bounded by pausing the partition, so that sending never waits."""
        send, receive = anyio.create_memory_object_stream["Batch"](math.inf)
        self._inlets[partition] = _Inlet(send)
        return receive

    def remove(self, partition: TopicPartition) -> None:
        """Close a partition's inbox; what its map has not taken yet is dropped with the map."""
        inlet = self._inlets.pop(partition, None)
        if inlet is not None:
            inlet.inbox.close()

    def close(self) -> None:
        """Close all inboxes: the maps end when they have taken what is there."""
        for partition in list(self._inlets):
            self.remove(partition)

    def resume(self) -> None:
        """Open after a rebalance, which forgot all pauses."""
        self._consumer.pause([name for name, inlet in self._inlets.items() if inlet.paused])
        self.is_open = True

    def is_paused(self, partition: TopicPartition) -> bool:
        """Whether intake of the partition waits for its map."""
        inlet = self._inlets.get(partition)
        return inlet is not None and inlet.paused

    def taken(self, partition: TopicPartition) -> None:
        """The partition's map has taken a batch, so there is room for another."""
        inlet = self._inlets.get(partition)
        if inlet is not None and inlet.paused:
            inlet.paused = False
            self._consumer.resume([partition])

    def progress(self) -> None:
        """Something moved."""
        self.progress_at = anyio.current_time()

    async def _make_or_wait_for_room(self) -> None:
        since = anyio.current_time()
        self._make_room()
        if self.ledgers.are_replaying:
            return  # only the end of the range makes room; it was in flight as a whole before
        await self.budget.wait()
        waited = anyio.current_time() - since
        self._metrics.backpressure.labels("intake", "inflight_bytes").inc(waited)

    def _of_announced_range(self, error: OffsetOutOfRange) -> OffsetOutOfRange:
        """The same error; if it is about a range that was announced, it says so."""
        for ledger in self.ledgers:
            if ledger.partition == error.partition and ledger.is_replaying:
                return OffsetOutOfRange(
                    f"{error}. The range {ledger.partition}[{ledger.watermark}..{ledger.replayed_to}] was "
                    "announced by a worker that may have written it, and cannot be read again as a whole: "
                    "look for these offsets in the sink; with on_out_of_range the worker goes on after them",
                    error.partition,
                )
        return error

    def _route(self, batch: Batch) -> None:
        partition = batch.topic_partition
        inlet, ledger = self._inlets.get(partition), self.ledgers.get(partition)
        if inlet is None or ledger is None or not self.is_open:
            return
        if ledger.delivered is not None and not ledger.expects(batch):
            _log.warning("records read twice are dropped", batch=repr(batch))
            self._consumer.seek(partition, ledger.delivered)
            return
        ledger.deliver(batch)
        offsets = batch.last - batch.first + 1
        self.consumed += offsets
        self._metrics.consumed.labels(batch.topic).inc(offsets)
        self.budget.take(batch.nbytes)
        self._metrics.inflight.set(self.budget.used)
        self.progress()
        inlet.inbox.send_nowait(batch)
        if inlet.inbox.statistics().current_buffer_used >= self._queue_batches:
            inlet.paused = True
            self._consumer.pause([partition])

    def _settled(self, partition: TopicPartition, delivery: Delivery) -> None:
        self._dropped(delivery.nbytes)
        offsets = delivery.last - delivery.first + 1
        self.settled += offsets
        self._metrics.settled.labels(partition.topic).inc(offsets)
        if delivery.timestamp_ms >= 0:
            self._metrics.latency.observe(max(0.0, time.time() - delivery.timestamp_ms / 1000))
        self.progress()

    def _dropped(self, nbytes: int) -> None:
        self.budget.give(nbytes)
        self._metrics.inflight.set(self.budget.used)
