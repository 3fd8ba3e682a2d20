"""The map stage: one task for each assigned partition, which maps its batches in order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from .delivery.failures import failed_records
from .delivery.ranges import subtract_ranges
from .errors import no_escape
from .mapping.executor import LONGEST, LONGEST_WINDOW
from .mapping.results import NO_OFFSETS, MapResult, bytes_made
from .mapping.stop import Stop
from .memory.distinct import STAGE as DISTINCT_STAGE
from .observe.status import StageStatus
from .observe.waits import REBALANCE, ROOM, Waiting
from .record import Range, ReplayEnd, Rows
from .reducers.pauses import Pauses
from .service import watchdog
from .strategy import MAP_STAGE
from .values.registry.registry import REGISTRY_IS_AWAY, REGISTRY_IS_BACK, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .delivery.ledger import Ledger
    from .map_shared import Share
    from .mapping.functions import MapSpec
    from .mapping.results import Failure
    from .mapping.together import MappedBatch
    from .memory.remembering import Remembering
    from .parts import MapParts, MapPorts
    from .record import Batch
    from .strategy import Strategy

_QUICK: Final = 0.01
"""Seconds: a map that took longer is not made with those of other partitions."""


class MapStage:
    """Maps the batches of one partition, in one generation of its assignment.

    Args:
        ledger: the partition's ledger; its generation marks all rows that the stage sends. A `ReplayEnd`
            is sent after its announced range.
        parts: without room in the budget for the rows a map waits, but not that of an announced range.
        memory: takes duplicates out; None if the strategy has no `Distinct`.
        failed_to: records up to this offset that fail were in the error sink before this process read them.

    Attributes:
        share: its batches that are mapped together with those of other partitions; None: all are mapped here.
    """

    def __init__(
        self,
        strategy: Strategy,
        ledger: Ledger,
        ports: MapPorts,
        parts: MapParts,
        *,
        memory: Remembering | None = None,
        failed_to: int = -1,
    ) -> None:
        self.share: Share | None = None
        self._strategy = strategy
        self._ledger = ledger
        self._ports = ports
        self._memory = memory
        self._failed_to = failed_to
        self._executor, self._max_records = parts.executor, parts.max_records
        shared = parts.shared
        self._ledgers, self._budget, self._gate = shared.ledgers, shared.budget, shared.gate
        self._metrics, self._on_failure = shared.metrics, shared.on_failure
        self._replay_to = None if ledger.replayed_to < 0 else ledger.replayed_to
        self._scope = anyio.CancelScope()
        self._waiting = anyio.CancelScope()
        self._waits = Waiting()
        self._at_rest = StageStatus(f"map {ledger.partition}", "idle", queued=0)
        self._registry = Pauses(self._at_rest.name, REGISTRY_IS_AWAY)
        self._stop = Stop()
        self._draining = False
        self._mapped_to = ledger.position
        self._busy_since: float | None = None
        self._mapping_since: float | None = None
        self._taken = 0
        self._is_slow = False
        self._rests: list[Batch] = []

    async def run(self) -> None:
        """Map until the inbox is closed and empty, `drain` or `cancel`.

        Raises:
            RecordFailed: a record failed and there is no error sink, or too many failed.
            StrategyError: the map function returned a value that cannot become rows.
            CorruptRecords: a batch cannot be decoded.
        """
        try:
            with self._scope, no_escape():
                await self._restore()
                async for batch in self._ports.inbox:
                    self._busy_since = anyio.current_time()
                    self._ports.on_taken()
                    await self._take(batch)
                    self._busy_since = None
                    self._taken += 1
                    if self._draining:
                        break
                if self.share is not None:
                    await self.share.wait_free()
                if self._draining:
                    self._ledgers.give_back(self._ledger, self._mapped_to)
        except Exception as error:
            self._on_failure(error)
            raise
        finally:
            self._stop.request()
            if self._memory is not None:
                self._memory.close()
            self._ports.inbox.close()
            self._ports.out.close()
            self._ports.errors.close()

    def drain(self) -> None:
        """Map nothing more: what has not begun is dropped, unsettled.

        A per-record map ends before its next record; what it has mapped goes on, as does a call that runs.
        """
        self._draining = True
        self._stop.request()
        self._waiting.cancel()

    def cancel(self) -> None:
        """Stop at once: batches in the inbox and the one under way are dropped, unsettled."""
        self._scope.cancel()

    async def _restore(self) -> None:
        """Map the records again that the memory has to know before the first batch; a drain ends it."""
        if self._memory is None or not self._memory.is_restoring:
            return
        with self._waits.on("Distinct, which reads records again"):
            async with aclosing(self._memory.records()) as batches:
                async for batch in batches:
                    rest: Batch | None = batch
                    while rest is not None:
                        if self._draining:
                            return
                        part, rest = await self._executor.cut(rest, self._max_records)
                        self._stop = Stop()
                        mapped = await self._apply(part)
                        if mapped.rest is not None:
                            rest = batch.slice(mapped.rest, batch.last)
                            if mapped.rest <= part.first:
                                continue
                            part = part.slice(part.first, mapped.rest - 1)
                        await self._memory.remember(part, mapped)

    async def _take(self, batch: Batch) -> None:
        """Map a batch; send `ReplayEnd` where an announced range ends in it, or ended before it."""
        end = self._replay_to
        if end is None or batch.last < end:
            await self._map(batch)
            return
        if batch.first <= end and not await self._map(batch.slice(batch.first, end)):
            return
        self._replay_to = None
        await self._ports.out.send(ReplayEnd())
        if batch.last > end:
            await self._map(batch.slice(max(batch.first, end + 1), batch.last))

    async def _map(self, batch: Batch) -> bool:
        """Map a batch in parts; return False if the drain has dropped some of them."""
        rest: Batch | None = batch
        while rest is not None:
            most = min(self._max_records, self._budget.records_of_a_part(rest))
            part, rest = await self._executor.cut(rest, most)
            if not await self._may_map(part):
                return False
            left = await self._map_some(part)
            if left is not None:
                rest = batch.slice(left, batch.last)
        return True

    async def _may_map(self, part: Batch) -> bool:
        """Return True when the map of a part may begin, False when the drain has begun."""
        tables = self._executor.tables
        late = [] if tables is None else tables.behind(part)
        while not self._draining:
            if tables is not None and late:
                table = late.pop()
                with self._waits.on(f"table {table.name}"), anyio.CancelScope() as self._waiting:
                    await tables.wait_for(table, part)
            elif self._replay_to is None and not self._budget.allows(part):
                with self._waits.on(ROOM), anyio.CancelScope() as self._waiting:
                    await self._budget.wait_to_map(part)
            elif not self._gate.is_open:
                with self._waits.on(REBALANCE):
                    async with self._gate:
                        pass  # meanwhile others may have taken the room
            else:
                return True
        return False

    @property
    def waits_for_tables(self) -> bool:
        """Whether records may have to wait for a look-up table before they are mapped."""
        tables = self._executor.tables
        return tables is not None and tables.are_waited_for

    async def _map_some(self, batch: Batch) -> int | None:
        """Map a part of a batch until it ends or the map is stopped; return where the rest begins."""
        self._stop = Stop()
        started = anyio.current_time()
        timer: asyncio.TimerHandle | None = None
        longest = LONGEST if self._strategy.map_spec.calls is None else LONGEST_WINDOW

        def begin() -> None:
            self._mapping_since, self._waits.what = anyio.current_time(), None
            watchdog.note(f"map {batch!r}")
            wait()

        def wait() -> None:
            nonlocal timer
            timer = asyncio.get_running_loop().call_later(longest, expire)

        def expire() -> None:
            self._stop.expire()
            wait()

        with self._budget.mapping(batch):
            try:
                async with self._metrics.tracing.mapping(batch) as span:
                    with self._waits.on("a thread or process for its map"):
                        mapped = await self._apply(batch, begin)
                    if span is not None:
                        await span.mapped(mapped)
            finally:
                if timer is not None:
                    timer.cancel()
                if self._mapping_since is not None:
                    self._is_slow = anyio.current_time() - self._mapping_since > _QUICK
                self._mapping_since = None
            if mapped.seconds is not None:
                self._is_slow = mapped.seconds > _QUICK
            if mapped.rest is not None:
                if mapped.rest <= batch.first:
                    return batch.first
                batch = batch.slice(batch.first, mapped.rest - 1)
            letters: tuple[Failure, ...] = ()
            made = bytes_made(batch, mapped)
            self._budget.learn(batch.topic, batch.nbytes, made)
            if self._memory is not None:
                mapped, letters = await self._memory.distinguish(batch, mapped)
                made = bytes_made(batch, mapped)
            self._note_mapped(batch, made)
        self._metrics.map_seconds.observe(anyio.current_time() - started)
        self._metrics.map_retries.inc(mapped.retries)
        filtered = mapped.filtered(len(batch))
        self._metrics.count_mapped(len(batch), filtered)
        self._ports.errors.window.count_mapped(len(batch) - filtered)
        await self._send(batch, mapped, letters)
        return mapped.rest

    async def _apply(self, batch: Batch, on_begin: Callable[[], None] = lambda: None) -> MapResult:
        """Map a batch; map nothing of it, after a pause, where a schema registry does not answer."""
        function, spec = self._strategy.map, self._strategy.map_spec
        try:
            mapped = await self._executor.map(function, spec, batch, on_begin, self._stop)
        except RegistryUnavailable as error:
            self._mapping_since = None
            self._metrics.count_registry_wait(str(error))
            with anyio.CancelScope() as self._waiting:
                await anyio.sleep(self._registry.next(str(error), anyio.current_time()))
            return MapResult(None, NO_OFFSETS, rest=batch.first)
        self._registry.over(REGISTRY_IS_BACK, anyio.current_time())
        return mapped

    def _range(self, batch: Batch) -> Range:
        generation = self._ledger.generation
        return Range(batch.topic, batch.partition, batch.first, batch.last, generation)

    def _note_mapped(self, batch: Batch, made: int) -> None:
        # A flush is repeated from its first offset on: rows out of order would make another INSERT of it.
        assert batch.first >= (self._mapped_to or 0), f"{batch!r} after offset {self._mapped_to}"  # noqa: S101
        self._ledgers.mapped(self._range(batch), made)
        self._mapped_to = batch.last + 1

    async def _send(
        self, batch: Batch, mapped: MapResult, letters: tuple[Failure, ...] = ()
    ) -> None:
        whole = self._range(batch)
        ranges: tuple[Range, ...] = (whole,)
        failed: dict[str, Rows] = {}
        for stage, found in ((MAP_STAGE, mapped.failures), (DISTINCT_STAGE, letters)):
            if failures := [each for each in found if each.offset > self._failed_to]:
                rows = failed[stage] = failed_records(batch, failures, stage, whole.generation)
                self._ledgers.charge(rows.ranges, rows.nbytes, failed=True)
                ranges = subtract_ranges(ranges, rows.ranges)
        if (made := self._rows(batch, mapped, ranges)) is not None:
            with self._waits.on("reduce-1, whose queue is full"):
                await self._ports.out.send(made)
        for stage, records in failed.items():
            with self._waits.on("reduce-err, or for err_limit"):
                await self._ports.errors.send(records, stage, is_limited=stage == MAP_STAGE)

    @property
    def is_restoring(self) -> bool:
        """Whether the memory has to read records again before the first batch."""
        return self._memory is not None and self._memory.is_restoring

    # For the maps of several partitions together (`kmr.map_shared`):

    @property
    def function(self) -> Callable[..., Any] | None:
        """The map function."""
        return self._strategy.map

    @property
    def spec(self) -> MapSpec:
        """How the map function is called."""
        return self._strategy.map_spec

    def may_share(self, taken: int) -> bool:
        """Return whether the next batch may be mapped with those of others, after so many mapped here."""
        is_free = self._taken == taken and self._replay_to is None
        return is_free and not (self._is_slow or self._draining)

    def count_mapped(self, records: int) -> None:
        """Count records of several partitions that were mapped and not filtered."""
        self._ports.errors.window.count_mapped(records)

    def detached(self, since: float, *, is_slow: bool) -> None:
        """Note that the map of a batch goes on without those of others."""
        self._mapping_since, self._is_slow = since, is_slow

    def note_mapped(self, batch: Batch, mapped: MappedBatch) -> None:
        """Note that a batch is mapped, or its first part."""
        rest = mapped.result.rest
        if rest is not None:
            self._rests.append(batch.slice(rest, batch.last))
        if rest is None or rest > batch.first:
            self._note_mapped(_until(batch, rest), mapped.made)

    def send_now(self, batch: Batch, mapped: MappedBatch) -> bool:
        """Send the rows of a batch on; return False if that takes more than a call."""
        result = mapped.result
        if result.failures:
            return False
        if result.rest is not None:
            if result.rest <= batch.first:
                return True
            batch = _until(batch, result.rest)
        rows = self._rows(batch, result, (self._range(batch),))
        if rows is None:
            return True
        if mapped.row_bytes is not None:
            rows.__dict__["nbytes"] = mapped.row_bytes
        if self._ports.accept(rows):
            return True
        try:
            self._ports.out.send_nowait(rows)
        except anyio.WouldBlock:
            return False
        return True

    async def send_shared(self, batch: Batch, mapped: MappedBatch) -> None:
        """Send the rows of a batch on; wait where `send_now` would not."""
        if mapped.result.rest is None or mapped.result.rest > batch.first:
            await self._send(_until(batch, mapped.result.rest), mapped.result)

    def take_rests(self) -> list[Batch]:
        """Return the parts of its last batches that were not mapped with those of others."""
        self._mapping_since = None
        rests, self._rests = self._rests, []
        return rests

    def _rows(self, batch: Batch, mapped: MapResult, ranges: tuple[Range, ...]) -> Rows | None:
        """Return the rows of a batch; without any, settle the ranges."""
        if mapped.table is None:
            self._ledgers.settle(ranges)
            return None
        return Rows(mapped.table, ranges, mapped.offsets, (batch,), mapped.places)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was taken in is mapped and sent on."""
        return (
            self._busy_since is None
            and self._mapped_to == self._ledger.position
            and not self.is_restoring
        )

    def status(self, now: float) -> StageStatus:
        """Return the stage's present activity; `now` is the event loop's time."""
        since = self._mapping_since
        if since is None and self.is_idle:
            return self._at_rest
        shared = 0 if self.share is None else len(self.share.waiting)
        activity: Literal["mapping", "waiting", "retrying"] = "mapping"
        if since is None:
            since = self._busy_since
            activity = "waiting" if self._registry.reason is None else "retrying"
        seconds = 0.0 if since is None else now - since
        return StageStatus(
            name=f"map {self._ledger.partition}",
            activity=activity,
            queued=self._ports.inbox.statistics().current_buffer_used + shared,
            seconds=seconds,
            reason=self._registry.reason,
            working=seconds if activity == "mapping" else 0.0,
            waits_for=self._waits.what,
            waited=self._waits.seconds(now),
        )


def _until(batch: Batch, end: int | None) -> Batch:
    """Return the part of a batch below an offset; None: all of it."""
    return batch if end is None else batch.slice(batch.first, end - 1)
