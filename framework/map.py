"""The map stage: one task for each assigned partition, which maps its batches in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import anyio

from .delivery.failures import failed_records
from .delivery.ranges import subtract_ranges
from .mapping.results import bytes_made
from .observe.status import StageStatus
from .record import Range, ReplayEnd, Rows
from .strategy import MAP_STAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from .delivery.failures import ErrorPort
    from .delivery.ledger import Ledger, Ledgers
    from .intake.backpressure import Budget, Gate
    from .mapping.executor import Executor
    from .mapping.results import MapResult
    from .observe.metrics import Metrics
    from .record import Batch
    from .strategy import Strategy

__all__ = ["MapStage"]


class MapStage:
    """Maps the batches of one partition, in one generation of its assignment.

    Args:
        ledger: the partition's ledger; its generation marks all rows that the stage sends.
        inbox: batches, in order of offsets.
        out: the first reduce stage's inbox.
        errors: for failed records.
        gate: while it is closed, no batch is mapped.
        budget: while it is used up, maps wait (`Budget.wait_to_map`), but not that of an announced range.
        on_failure: called with the error that ends the stage, before its streams are closed.
        on_taken: called after each batch is taken from the inbox; it resumes a paused partition.
        replay_to: last offset of an announced range; a `ReplayEnd` is sent after it.
    """

    def __init__(
        self,
        strategy: Strategy,
        executor: Executor,
        ledger: Ledger,
        ledgers: Ledgers,
        inbox: MemoryObjectReceiveStream[Batch],
        out: MemoryObjectSendStream[Rows | ReplayEnd],
        errors: ErrorPort,
        gate: Gate,
        budget: Budget,
        metrics: Metrics,
        on_failure: Callable[[BaseException], None],
        on_taken: Callable[[], None],
        replay_to: int | None = None,
    ) -> None:
        self._strategy = strategy
        self._executor = executor
        self._ledger = ledger
        self._ledgers = ledgers
        self._inbox = inbox
        self._out = out
        self._errors = errors
        self._gate = gate
        self._budget = budget
        self._metrics = metrics
        self._on_failure = on_failure
        self._on_taken = on_taken
        self._replay_to = replay_to
        self._scope = anyio.CancelScope()
        self._busy_since: float | None = None
        self._mapping_since: float | None = None

    async def run(self) -> None:
        """Map until the inbox is closed and empty, or `cancel`.

        Raises:
            RecordFailed: a record failed and there is no error sink, or too many failed.
            StrategyError: the map function returned a value that cannot become rows.
            CorruptRecords: a batch cannot be decoded.
        """
        try:
            with self._scope:
                async for batch in self._inbox:
                    self._busy_since = anyio.current_time()
                    self._on_taken()
                    if self._replay_to is None:
                        await self._budget.wait_to_map()
                    async with self._gate:
                        await self._take(batch)
                    self._busy_since = None
        except Exception as error:
            self._on_failure(error)
            raise
        finally:
            self._inbox.close()
            self._out.close()
            self._errors.close()

    def cancel(self) -> None:
        """Stop at once: batches in the inbox and the one under way are dropped, unsettled."""
        self._scope.cancel()

    async def _take(self, batch: Batch) -> None:
        """Map a batch; send `ReplayEnd` where an announced range ends in it, or ended before it."""
        rest: Batch | None = batch
        end = self._replay_to
        if end is not None and batch.last >= end:
            if batch.first <= end < batch.last:
                await self._map(batch.slice(batch.first, end))
                rest = batch.slice(end + 1, batch.last)
            elif end == batch.last:
                await self._map(batch)
                rest = None
            self._replay_to = None
            await self._out.send(ReplayEnd())
        if rest is not None:
            await self._map(rest)

    async def _map(self, batch: Batch) -> None:
        whole = Range(
            batch.topic, batch.partition, batch.first, batch.last, self._ledger.generation
        )
        started = anyio.current_time()
        with self._budget.mapping():
            try:
                mapped = await self._executor.map(
                    self._strategy.map, self._strategy.map_spec, batch, self._begin
                )
            finally:
                self._mapping_since = None
            made = bytes_made(batch, mapped)
            self._budget.learn(batch.nbytes, made)
            self._ledgers.charge(whole, made, mapped=batch.nbytes)
        self._metrics.map_seconds.observe(anyio.current_time() - started)
        await self._send(batch, whole, mapped)

    def _begin(self) -> None:
        self._mapping_since = anyio.current_time()

    async def _send(self, batch: Batch, whole: Range, mapped: MapResult) -> None:
        ranges: tuple[Range, ...] = (whole,)
        failed: Rows | None = None
        if mapped.failures:
            failed = failed_records(batch, mapped.failures, MAP_STAGE, whole.generation)
            self._ledgers.charge(whole, failed.nbytes)
            ranges = subtract_ranges(ranges, failed.ranges)
        if mapped.table is None:
            self._ledgers.settle(ranges)
        else:
            await self._out.send(Rows(mapped.table, ranges, mapped.offsets, (batch,)))
        if failed is not None:
            await self._errors.send(failed, MAP_STAGE)

    @property
    def is_idle(self) -> bool:
        """Whether it has no batch in hand, and none in its inbox."""
        return self._busy_since is None and not self._inbox.statistics().current_buffer_used

    def status(self) -> StageStatus:
        """Return the stage's present activity."""
        now, since = anyio.current_time(), self._mapping_since
        activity: Literal["idle", "mapping", "waiting"] = "mapping"
        if since is None:
            since = self._busy_since
            activity = "idle" if since is None else "waiting"
        seconds = 0.0 if since is None else now - since
        return StageStatus(
            name=f"map {self._ledger.partition}",
            activity=activity,
            queued=self._inbox.statistics().current_buffer_used,
            seconds=seconds,
            working=seconds if activity == "mapping" else 0.0,
        )
