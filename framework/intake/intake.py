"""The intake: polls the consumer within the budget, and hands each batch to its partition's map."""

from __future__ import annotations

import math
import time
from functools import cache
from typing import TYPE_CHECKING, Final

import anyio
import pyarrow as pa
import structlog

from ..delivery.ledger import Ledgers
from ..errors import OffsetOutOfRange
from ..observe.metrics import BACKPRESSURE_OF_INTAKE
from ..observe.waits import ROOM, Waiting
from ..record import SCHEMA, Batch
from .backpressure import Budget, MapInboxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..delivery.ledger import InflightBatch
    from ..kafka.consumer import Consumer
    from ..observe.metrics import Metrics
    from ..record import TopicPartition


_log = structlog.get_logger(__name__)


def _no_records() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=SCHEMA)


class Intake:
    """Owns the ledgers and the budget, and counts the records that enter and leave the pipeline.

    Args:
        inflight_bytes: bytes of unsettled records and their rows at which intake stops.
        queue_batches: batches that wait for one partition's map before the partition is paused.
        make_room: called when the budget becomes exhausted; flushes the collected rows.
        rate: most offsets a second that are taken in, on average; None: no limit.
        max_age: seconds after which rows are written; records gather for a tenth of it at most.

    Attributes:
        is_slowed: it waits, because more was taken in than the rate allows.
        is_open: while it is False, batches are discarded: a rebalance is under way, and the next
            assignment decides where reading continues.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        inflight_bytes: int,
        queue_batches: int,
        metrics: Metrics,
        make_room: Callable[[], None],
        rate: float | None = None,
        max_age: float = math.inf,
    ) -> None:
        self._consumer = consumer
        self._metrics = metrics
        self.inboxes = MapInboxes(consumer, queue_batches)
        self.budget = Budget(inflight_bytes, make_room)
        metrics.inflight_limit.set_function(lambda: self.budget.limit)
        metrics.memory_bytes.set_function(lambda: self.budget.kept)
        metrics.inflight.set_function(lambda: self.budget.used)
        self._consumed_of = cache(metrics.consumed.labels)
        self._settled_of = cache(metrics.settled.labels)
        self._linger = Linger(longest=min(LONGEST, max_age * _PART_OF_AGE))
        metrics.linger.set_function(lambda: self._linger.seconds)
        self.ledgers = Ledgers(self._settled, self.budget.add)
        self.is_open = False
        self.is_slowed = False
        self._rate = rate
        self._due = 0.0  # when the rate allows more
        self._resumed = 0  # how often
        self.consumed = 0
        self.settled = 0
        self._waiting_since: float | None = None
        self._waits = Waiting()

    async def run(self) -> None:
        """Take in batches until cancelled. Raises ConsumerError: the Kafka client cannot continue."""
        while True:
            # Only its end makes room for an announced range; it was in flight as a whole before.
            if self.budget.exhausted and not self.ledgers.are_replaying:
                await self._wait_for_room()
            try:
                batches = await self._consumer.poll(self.budget.room)
            except OffsetOutOfRange as error:
                raise self._explain(error) from error
            if self._rate is not None:
                await self._take_in_slowly(batches, self._rate)
                continue
            for batch in batches:
                self._take_in(batch)
            self._let_gather(batches)

    def _let_gather(self, batches: Sequence[Batch]) -> None:
        """Let the next fetch wait where that saves work."""
        largest = max(batches, key=lambda batch: batch.nbytes, default=None)
        if largest is None:
            return
        end = self._consumer.end_offset(largest.topic_partition)
        behind = end is not None and end > largest.last + 1
        if seconds := self._linger.after(batches, len(self.inboxes), behind=behind):
            self._consumer.let_gather(seconds)

    async def _take_in_slowly(self, batches: Iterable[Batch], rate: float) -> None:
        """Take in what the rate allows in a second, one part after the other.

        What is left when a rebalance has ended is dropped: it is read again, here or elsewhere.
        """
        most, resumed = max(1, int(rate)), self._resumed
        for batch in batches:
            for first in range(batch.first, batch.last + 1, most):
                if self._resumed != resumed or not self.is_open:
                    return
                self._take_in(batch.slice(first, min(first + most - 1, batch.last)))
                seconds = min(most, batch.last + 1 - first) / rate
                self._due = max(self._due, anyio.current_time()) + seconds
                await self._wait_until_due()

    async def _wait_until_due(self) -> None:
        self.is_slowed = True
        try:
            await anyio.sleep_until(self._due)
        finally:
            self.is_slowed = False

    @property
    def waited(self) -> float:
        """Seconds for which intake has waited for room; 0 if it does not."""
        return self._waits.seconds(anyio.current_time())

    def count_waiting(self) -> None:
        """Count the time that intake has stood still until now: call it also while it does."""
        if self._waiting_since is not None:
            now = anyio.current_time()
            self._metrics.backpressure.labels(*BACKPRESSURE_OF_INTAKE).inc(
                now - self._waiting_since
            )
            self._waiting_since = now

    def resume(self) -> None:
        """Take in batches again after a rebalance."""
        self._resumed += 1
        self.inboxes.pause_again()
        self.is_open = True

    async def _wait_for_room(self) -> None:
        self._waiting_since = anyio.current_time()
        try:
            with self._waits.on(ROOM):
                await self.budget.wait()
        finally:
            self.count_waiting()
            self._waiting_since = None

    def _explain(self, error: OffsetOutOfRange) -> OffsetOutOfRange:
        """Extend the message if the missing offsets belong to an announced range, or to open windows."""
        for ledger in self.ledgers:
            if ledger.partition != error.partition:
                continue
            if ledger.is_replaying:
                return OffsetOutOfRange(
                    f"{error}. The range {ledger.partition}[{ledger.watermark}..{ledger.replayed_to}] was "
                    "announced by a worker that may have written it, and cannot be read again as a whole: "
                    "look for these offsets in the sink; with on_out_of_range the worker goes on after them",
                    error.partition,
                )
            if ledger.held_to is not None:
                return OffsetOutOfRange(
                    f"{error}. Windows that are open may have records there: with on_out_of_range their rows "
                    "are written without those that are gone, and a line of the log says which windows",
                    error.partition,
                )
        return error

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Note that a partition goes on at an offset: nothing can be read of those before it.

        They go through the map as a batch without records, so that they are settled, and an announced range
        ends, without waiting for a new record.
        """
        ledger = self.ledgers.get(partition)
        if ledger is not None and ledger.position is not None and ledger.position < offset:
            first = ledger.position
            self._take_in(Batch(*partition, first, offset - 1, nbytes=0, load=_no_records))

    def _take_in(self, batch: Batch) -> None:
        partition = batch.topic_partition
        ledger = self.ledgers.get(partition)
        if partition not in self.inboxes or ledger is None or not self.is_open:
            return
        if ledger.position is not None and not ledger.expects(batch):
            _log.warning("records were read twice: dropped", batch=repr(batch))
            self._consumer.seek(partition, ledger.position)
            return
        part = ledger.within(batch)
        if ledger.until is not None and batch.last + 1 >= ledger.until:
            self.inboxes.end(partition)
        if part is None:
            return
        batch = part
        batch.gathered = self._linger.seconds
        self.ledgers.take_in(batch)
        offsets = batch.last - batch.first + 1
        self.consumed += offsets
        self._consumed_of(batch.topic).inc(offsets)
        self.inboxes.put(batch)

    def _settled(self, partition: TopicPartition, batch: InflightBatch) -> None:
        offsets = batch.last - batch.first + 1
        self.settled += offsets
        self._settled_of(partition.topic).inc(offsets)
        if batch.timestamp_ms >= 0:
            self._metrics.latency.observe(max(0.0, time.time() - batch.timestamp_ms / 1000))


LONGEST: Final = 0.5
"""Seconds for which records gather at most; less where rows are written soon."""

_MANY: Final = 32  # partitions; fewer cost little
_LITTLE_BYTES: Final = 64 * 1024  # of a batch, on average
_SHARE: Final = 0.15  # of the time
_PART_OF_AGE: Final = 0.1


class Linger:
    """Lets the records of many quiet partitions gather, so that a busy worker has fewer batches to handle.

    A batch costs the event loop about the same, whether it has one record or hundreds. So the next fetch
    waits until what the loop has worked since the last one is 15 % of the time.
    A worker that has worked less than that fetches at once, and so does one that is behind.

    Args:
        worked: processor time of the event loop's thread, in seconds.
        clock: a monotonic clock.
        longest: seconds for which records gather at most.

    Attributes:
        seconds: the present wait; 0 for none.
    """

    def __init__(
        self,
        worked: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
        longest: float = LONGEST,
    ) -> None:
        self._worked = worked
        self._clock = clock
        self._longest = longest
        self._last = self._due = clock()
        self._worked_before = worked()
        self.seconds = 0.0

    def after(self, batches: Sequence[Batch], partitions: int, *, behind: bool = False) -> float:
        """Return the seconds to wait before the next fetch. Call it from the event loop, after each poll.

        Args:
            batches: of the poll.
            partitions: how many are assigned.
            behind: there are more records of them, which have waited for long already.
        """
        now, worked = self._clock(), self._worked()
        due = max(self._due, self._last) + (worked - self._worked_before) / _SHARE
        self._last, self._worked_before = now, worked
        little = sum(batch.nbytes for batch in batches) <= _LITTLE_BYTES * len(batches)
        is_quiet = partitions >= _MANY and little and not behind
        self._due = min(due, now + self._longest) if is_quiet else now
        self.seconds = max(0.0, self._due - now)
        return self.seconds
