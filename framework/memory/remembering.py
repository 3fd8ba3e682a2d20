"""The memory of one partition in a worker: rebuilt from the log at its start, kept within the budget."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from ..errors import BrokerUnavailable
from ..service.threads import run_in_thread
from .distinct_memory import Distinction, MemoryLimit, PartitionMemory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from ..delivery.announcement import LookBack
    from ..delivery.ledger import Ledger
    from ..intake.backpressure import Budget
    from ..mapping.results import Failure, MapResult
    from ..observe.metrics import Metrics
    from ..record import Batch, TopicPartition
    from .distinct import Distinct

    ReadRange = Callable[[TopicPartition, int, int], AsyncGenerator[Batch]]

_log = structlog.get_logger(__name__)

_AT_ONCE: Final = 2_000  # rows that are looked up on the event loop: a thread costs more
_REPORT_EVERY: Final = 5.0  # seconds
_RETRY_AFTER: Final = 1.0  # seconds


class Remembering:
    """Takes duplicates out of what a map makes of one partition, in one generation of its assignment.

    Before the first batch, `records` yields what a worker before this one remembered, for `remember`. So
    which rows pass follows from the log alone, and not from what that worker has written or lost.

    Args:
        distincts: by the names of their branches, "" without branches.
        ledger: its commits say from now on from where this memory is rebuilt.
        back: what the committed offset says about the memory before it; None: nothing.
        read: see `Consumer.read_range`.
        turns: how many partitions read at a time.

    Attributes:
        is_restoring: whether records from before the ledger's first one have to be remembered yet.
    """

    def __init__(
        self,
        distincts: Mapping[str, Distinct],
        ledger: Ledger,
        back: LookBack | None,
        read: ReadRange,
        turns: anyio.Semaphore,
        budget: Budget,
        metrics: Metrics,
    ) -> None:
        self._partition = ledger.partition
        self._end = ledger.position
        self._read = read
        self._turns = turns
        self._budget = budget
        self._metrics = metrics
        is_known = back is not None and self._end is not None and back.offset <= self._end
        self._back = back if is_known else None
        begin = self._end if self._back is None else self._back.offset
        self._memory = PartitionMemory(distincts, ledger.partition, begin)
        self.is_restoring = self._back is not None and begin != self._end
        ledger.look_back = self._look_back
        if self._back is None:
            _log.info(
                "Distinct begins: duplicates of records before this one pass",
                partition=str(self._partition),
                offset=self._end,
            )
        elif self._back.within < self._memory.within:
            _log.warning(
                "Distinct remembers less than `within` at first: it was shorter before",
                partition=str(self._partition),
                remembered_seconds=self._back.within / 1e6,
                within_seconds=self._memory.within / 1e6,
            )

    def _look_back(self, offset: int) -> LookBack | None:
        return self._back if self.is_restoring else self._memory.look_back(offset)

    async def records(self) -> AsyncGenerator[Batch]:
        """Yield the records to `remember`, in order; log the progress.

        Raises:
            ConsumerError: they cannot be read.
        """
        if self._back is None or self._end is None or not self.is_restoring:
            return
        position, end, began = self._back.offset, self._end, anyio.current_time()
        first: int | None = None
        reported = began
        async with self._turns:
            while True:
                try:
                    async with aclosing(self._read(self._partition, position, end)) as batches:
                        async for batch in batches:
                            if first is None:
                                first = batch.first
                            yield batch
                            position = batch.last + 1
                            if anyio.current_time() - reported >= _REPORT_EVERY:
                                reported = anyio.current_time()
                                self._report(position)
                    break
                except BrokerUnavailable as error:
                    _log.warning(
                        "Distinct waits for a broker",
                        partition=str(self._partition),
                        reason=str(error),
                    )
                    await anyio.sleep(_RETRY_AFTER)
        self.is_restoring = False
        self._warn_of_gap(self._back.offset, end if first is None else first)
        _log.info(
            "Distinct remembers again",
            partition=str(self._partition),
            offsets=f"{self._back.offset}..{end - 1}",
            keys=len(self._memory),
            seconds=round(anyio.current_time() - began, 1),
        )

    def _report(self, position: int) -> None:
        _log.info(
            "Distinct reads again",
            partition=str(self._partition),
            offset=position,
            end=self._end,
            keys=len(self._memory),
        )

    def _warn_of_gap(self, wanted: int, first: int) -> None:
        if first > wanted:
            _log.warning(
                "retention has removed records that Distinct has to remember: their duplicates pass. Keep "
                "records for longer than within= and the longest time without a worker",
                partition=str(self._partition),
                offsets=f"{wanted}..{first - 1}",
            )

    async def remember(self, batch: Batch, mapped: MapResult) -> None:
        """Note the rows of records that were read again.

        Raises:
            MemoryLimit: there is no room for them.
            StrategyError: a column is missing, or of a type that is not allowed.
        """
        await self._note(batch, mapped)

    async def distinguish(
        self, batch: Batch, mapped: MapResult
    ) -> tuple[MapResult, tuple[Failure, ...]]:
        """Return the rows without duplicates, and the records for `reduce_err`. Raises as `remember`."""
        found = await self._note(batch, mapped)
        rows = self._metrics.distinct_rows
        rows.labels("passed").inc(found.passed)
        rows.labels("duplicate").inc(found.duplicates)
        rows.labels("without_key").inc(found.without_key)
        if found.duplicates:
            self._memory.sample(mapped, found.mapped, anyio.current_time())
        return found.mapped, found.letters

    async def _note(self, batch: Batch, mapped: MapResult) -> Distinction:
        if len(mapped.offsets) <= _AT_ONCE:
            found = self._memory.note(batch, mapped)
        else:
            found = await run_in_thread(self._memory.note, batch, mapped)
        if not self._budget.keep(self, self._memory.nbytes):
            largest = "; ".join(map(str, self._budget.largest[:3]))
            raise MemoryLimit(
                f"Distinct: the keys of within= take {self._budget.kept / 1e6:,.1f} MB, more than half of "
                f"inflight_bytes ({self._budget.whole / 1e6:,.1f} MB). The largest are {largest}. Raise "
                "inflight_bytes, shorten within=, or run more workers; if an event time is in the future, a "
                "record with a wrong time has moved it: give another time="
            )
        return found

    def close(self) -> None:
        """Forget everything."""
        self._budget.keep(self, 0)

    def __str__(self) -> str:
        return str(self._memory)
