"""The stage of a `Window`: keeps the open windows of a partition, and sends on the rows of closed ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import anyio
import pyarrow as pa
import structlog

from .config.schema import BYTES, show_quantity
from .delivery.ranges import merge_ranges, subtract_ranges
from .errors import RecordFailed, StateTooLarge, no_escape
from .memory.window import MICROS
from .memory.window_rows import WindowRows, letters_of, of_closed, split_late, warn_of_left_out
from .observe.status import StageStatus
from .observe.waits import Waiting
from .record import ReplayEnd, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from .delivery.announcement import Closed, WindowAnnouncement
    from .memory.window import Window
    from .parts import ReducePorts, SharedParts
    from .record import Range, TopicPartition
    from .reducers.reducer import Context

_log = structlog.get_logger(__name__)

_SHARE: Final = 0.75
"""The part of the memory budget that open windows may have; the rest is for records on their way to them."""

_NEXT: Final = "the next stage, whose queue is full"
_NO_ROWS: Final = pa.table({})


class WindowStage:
    """Runs the `Window` of a strategy for one partition, in one generation of its assignment.

    It settles nothing: the stage of the sink does, when the rows of closed windows are written. From time to
    time it sends a mark without rows, so that the commit says how far was read: records that failed or were
    late up to there do not fail again after a restart.

    Args:
        begin: which windows were closed when the committed offset was committed.
        replayed: rows that another process announced: these are closed as it announced them.

    Attributes:
        expedite: called with True to have the rows that were sent on written at once, and with False after
            it.
    """

    def __init__(
        self,
        name: str,
        window: Window,
        ports: ReducePorts,
        shared: SharedParts,
        partition: TopicPartition,
        begin: Closed,
        *,
        replayed: WindowAnnouncement | None,
    ) -> None:
        self.name = name
        self.expedite: Callable[[bool], None] = lambda _on: None
        self._window = window
        assert ports.out is not None  # noqa: S101  a sink follows
        assert ports.errors is not None  # noqa: S101
        self._ports = ports
        self._inbox, self._out, self._errors = ports.inbox, ports.out, ports.errors
        self._shared, self._ledgers = shared, shared.ledgers
        self._partition = partition
        self._state = window.state(partition, begin)
        self._replayed = replayed
        self._held: tuple[Range, ...] = ()
        self._read_to, self._marked_to = -1, begin.read_to
        self._heard_at = self._mark_at = anyio.current_time()
        self._waits = Waiting()

    async def open(self, context: Context) -> None:
        """Connect nothing."""

    async def close(self) -> None:
        """End, also after a failure."""
        self._ports.close()
        self._hold(0)

    async def run(self) -> None:
        """Keep windows until the inbox is closed and empty.

        Raises:
            StateTooLarge: the open windows need more than their share of the memory budget.
            KmrError: the rows do not fit the window, or a record failed without an error sink.
        """
        try:
            with no_escape(), self._out, self._inbox:
                await self._work()
        except (Exception, BaseExceptionGroup) as error:
            self._shared.on_failure(error)
            raise
        finally:
            self._errors.close()
            self._hold(0)

    async def _work(self) -> None:
        while True:
            item: Rows | ReplayEnd | None = None
            with anyio.CancelScope(deadline=self._deadline()):
                try:
                    item = await self._inbox.receive()
                except anyio.EndOfStream:
                    break
            if isinstance(item, Rows):
                await self._take(item)
            elif isinstance(item, ReplayEnd):
                await self._end_replay()
            elif self._replayed is None:
                await self._tick()
        if self._replayed is None:
            await self._mark()
            self._ledgers.end_in_windows(self._partition, self._held)

    def _hold(self, resting: int, sent: int = 0) -> None:
        """Count the bytes of the open windows, and of rows that are sent on."""
        self._ledgers.hold(self, resting + sent)
        self._shared.budget.rest(self, resting)

    async def _take(self, rows: Rows) -> None:
        if not self._ledgers.is_current(rows.ranges):
            return
        taken = self._state.take(rows)
        self._heard_at = anyio.current_time()
        self._ledgers.release(rows.ranges)
        self._hold(self._state.nbytes)
        failed = await self._refuse(rows, taken.refused)
        if taken.late.any():
            failed += await self._leave_out(rows, taken.late)
        if taken.left_out and rows.offsets is not None:
            warn_of_left_out(self._partition, rows.offsets, taken.left_out)
            self._shared.metrics.count_late(self.name, "left out", len(taken.left_out))
        self._held = merge_ranges([*self._held, *subtract_ranges(rows.ranges, failed)])
        self._read_to = max(self._read_to, *(r.last for r in rows.ranges))
        if self._replayed is None:
            if self._state.is_due:
                await self._emit(self._state.level)
            else:
                self._settle_below()
        self._require_room()

    async def _leave_out(self, rows: Rows, late: NDArray[np.bool_]) -> list[Range]:
        """Count late rows, or send their records to the error sink; return the offsets of these."""
        dropped, letters = split_late(self._window, rows, late)
        self._shared.metrics.count_late(self.name, "dropped", int(dropped.sum()))
        self._shared.metrics.count_late(self.name, "dead-letter", len(letters))
        if dropped.any() and rows.offsets is not None:
            _log.warning(
                "late rows dropped: their windows have closed",
                stage=self.name,
                partition=str(self._partition),
                rows=int(dropped.sum()),
                example=int(rows.offsets[dropped][0]),
            )
        return await self._refuse(rows, letters)

    async def _refuse(self, rows: Rows, refused: Mapping[int, str]) -> list[Range]:
        """Send the records of some rows to the error sink, and why; return their offsets."""
        gone: list[Range] = []
        for letter in letters_of(rows, refused, self.name):
            gone += letter.ranges
            self._ledgers.charge(letter.ranges, letter.nbytes, failed=True)
            with self._waits.on("reduce-err, or for err_limit"):
                await self._errors.send(letter, self.name)
        return gone

    def _settle_below(self) -> None:
        """Settle records below the first one of the open windows: they are late, or made no row."""
        first = self._state.first_offset
        if self._held and (first is None or self._held[0].first < first):
            self._ledgers.settle(self._cut())

    def _cut(self) -> tuple[Range, ...]:
        """Remove the offsets below the first record of the open windows, and return them."""
        first = self._state.first_offset
        end = self._read_to + 1 if first is None else first
        below = tuple(r._replace(last=min(r.last, end - 1)) for r in self._held if r.first < end)
        self._held = subtract_ranges(self._held, below)
        return below

    async def _emit(self, to: int) -> WindowRows:
        """Close the windows that end up to a time, and send their rows on."""
        state, ranges = self._state, self._held
        before = (state.level_before, state.emitted_to)
        closed_from = state.closed_to
        left_out = state.left_out
        rows, refused = of_closed(state.close(to))
        if refused and not self._errors.has_sink:
            reason = refused[min(refused)]
            raise RecordFailed.without_sink(f"a row of {self._partition}", self.name, reason)
        self._shared.metrics.count_late(self.name, "left out", state.left_out - left_out)
        self._hold(state.nbytes, rows.nbytes)
        closes = closed_from, state.closed_to
        return await self._send(rows, ranges, closes, before, refused)

    async def _mark(self) -> None:
        """Send on how far was read, if that is news."""
        self._mark_at = anyio.current_time()
        if self._state.can_close(self._state.level):
            await self._emit(self._state.level)
        elif self._marked_to < self._read_to:
            state = self._state
            before = (state.level_before, state.emitted_to)
            await self._send(_NO_ROWS, self._held, (state.closed_to, state.closed_to), before)

    async def _send(
        self,
        table: pa.Table,
        ranges: tuple[Range, ...],
        closes: tuple[int, int],
        before: tuple[int, int],
        refused: Mapping[int, str] | None = None,
    ) -> WindowRows:
        """Send rows on; `before` are the state's `level_before` and `emitted_to` before these rows."""
        self._marked_to = self._read_to
        rows = WindowRows(
            table,
            ranges,
            closes=closes,
            refused=refused or {},
            settles=self._cut(),
            read_to=self._read_to,
            definition=self._window.definition,
            level_before=before[0],
            level=self._state.level_before,
            emitted_to=before[1] if self._window.correct else None,
        )
        with self._waits.on(_NEXT):
            await self._out.send(rows)
        self._hold(self._state.nbytes)
        return rows

    async def _end_replay(self) -> None:
        """Close what was announced: all records up to its last offset are read."""
        assert self._replayed is not None  # noqa: S101  the map sends a `ReplayEnd` only then
        to, self._replayed = self._replayed.closed_to, None
        self._read_to = max(self._read_to, self._ledger_read_to())
        await self._emit(to)
        await self._out.send(ReplayEnd())

    def _ledger_read_to(self) -> int:
        ledger = self._ledgers.get(self._partition)
        return -1 if ledger is None else ledger.replayed_to

    def _deadline(self) -> float:
        """The event loop's time at which there is work without a new record."""
        if self._replayed is not None:
            return math.inf
        mark = (
            self._mark_at + (self._window.max_age or 0)
            if self._marked_to < self._read_to
            else math.inf
        )
        return min(mark, self._idle_at())

    def _idle_at(self) -> float:
        """When the wall clock closes the next window; infinite without one, or without `idle`."""
        end, idle = self._state.idle_end, self._window.idle
        if end is None or idle is None:
            return math.inf
        return self._heard_at + max(idle, end - self._state.level) / MICROS

    async def _tick(self) -> None:
        """Mark how far was read, and close windows of an idle partition, if it is time to."""
        now = anyio.current_time()
        if now >= self._idle_at():
            if (
                self._shared.is_at_end(self._partition)
                and not self._inbox.statistics().current_buffer_used
            ):
                await self._close_idle(now)
            else:  # records may be on their way: they would be late
                self._heard_at = now
        if now >= self._mark_at + (self._window.max_age or 0):
            await self._mark()

    async def _close_idle(self, now: float) -> None:
        """Close windows by the wall clock, and take no row until they are written.

        A crash before the announcement forgets that they were closed: then no row may have been late for it.
        """
        level = self._state.level + round((now - self._heard_at) * MICROS)
        level = max(level, self._state.idle_end or 0)  # the clock's rounding
        end = self._state.last_end_up_to(level)
        rows = await self._emit(end)
        self._heard_at = max(self._heard_at, now - (level - end) / MICROS)
        self.expedite(True)  # noqa: FBT003  a callback
        try:
            with self._waits.on("the rows of idle windows"):
                await rows.done.wait()
        finally:
            self.expedite(False)  # noqa: FBT003

    def _require_room(self) -> None:
        limit = int(self._shared.budget.limit * _SHARE)
        if self._ledgers.held_bytes <= limit:
            return
        largest = ", ".join(self._state.largest())
        raise StateTooLarge(
            f"{self.name} {self._partition}: the open windows of this worker need "
            f"{show_quantity(self._ledgers.held_bytes, BYTES)}, more than {_SHARE:.0%} of inflight_bytes "
            f"({show_quantity(self._shared.budget.limit, BYTES)}). The largest of this partition: {largest}. "
            "Nothing is lost: these records are not committed. Raise inflight_bytes, run more workers, or "
            "take a shorter window, less lateness, or groups of fewer values"
        )

    def accept(self, rows: Rows) -> bool:
        """Return False: see `ReduceStage.accept`."""
        return False

    def held(self) -> list[Rows]:
        """Return no rows: they are in the windows."""
        return []

    def statuses(self, now: float) -> Iterator[StageStatus]:
        """Return `status`."""
        yield self.status(now)

    def status(self, now: float) -> StageStatus:
        """Return the stage's present activity; `now` is the event loop's time."""
        end = self._state.next_end
        return StageStatus(
            name=f"{self.name} {self._partition}",
            activity="idle" if end is None else "collecting",
            queued=self._inbox.statistics().current_buffer_used,
            bytes=self._state.nbytes,
            seconds=0.0 if end is None else now - self._heard_at,
            waits_for=self._waits.what,
            waited=self._waits.seconds(now),
        )

    # These methods make other stages flush. Event time alone closes windows, so here they do nothing.

    def revoke(self, *, on: bool) -> None:
        """Do nothing: the partition's next owner reads the records of open windows again."""

    def awaited(self, *, on: bool) -> None:
        """Do nothing."""

    def budget_exhausted(self) -> None:
        """Do nothing: `_require_room` ends the worker when the windows need too much."""

    def drain(self) -> None:
        """Do nothing: open windows stay open."""

    @property
    def trigger(self) -> WindowStage:
        return self
