"""The flushes of small buffers in a second, which the lanes of a worker share.

A sink such as ClickHouse likes few, large INSERTs. Where each partition has its own, `max_age` of many
partitions makes many small ones. So a lane that flushes for the age of its rows waits for its turn, and goes
on collecting meanwhile: the longer it waits, the larger its flush becomes. Where the sink can, small flushes
of all lanes that wait have one turn together, and are one INSERT.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import anyio
import structlog

from ..service.identity import new_id
from .reducer import Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from .flushing import Buffer

T = TypeVar("T")
R = TypeVar("R")

_LATE: Final = 1.0  # seconds beyond `max_age` from which on that is told
_PATIENCE: Final = 1.0  # seconds for which lanes that share a turn wait for each other
_ENDING: Final = 0.02  # seconds in which the lanes of a drain end, if nothing holds them up
_MOST_ROWS: Final = 500_000  # of a joined turn; a sink writes more than a million in several blocks
_MOST_BYTES: Final = 64 * 1024 * 1024

_log = structlog.get_logger(__name__)


class WaitingLane(Protocol):
    """A lane that waits for its turn."""

    def look(self) -> None:
        """Look at the buffer again: it is its turn."""


class JoinedTurn:
    """A turn of several lanes, whose flushes are announced in one commit and written at once.

    They meet twice: before they announce, and in the sink, where one of them writes for all. Nothing depends
    on who comes: one that misses the first meeting has no part in the turn, and one that misses the second
    writes its rows alone, under the token of the turn first.

    Args:
        buffers: of the lanes that have the turn.
        joinable: seconds for which others may `join`.

    Attributes:
        token: of the write that they share; no other write has it.
    """

    def __init__(self, buffers: Iterable[Buffer], joinable: float = 0.0) -> None:
        self._joinable = joinable > 0
        if joinable:
            asyncio.get_running_loop().call_later(joinable, self._close)
        self.token = new_id()
        self._expected = set(buffers)
        self._present: set[Buffer] = set()
        self._gathered = anyio.Event()
        self._patience: asyncio.TimerHandle | None = None
        self._items: list[Any] = []
        self._results: Sequence[Any] = ()
        self._error: Exception | None = None
        self._complete = anyio.Event()
        self._written = anyio.Event()

    @property
    def rows(self) -> int:
        """How many rows the lanes have that are waited for."""
        return sum(buffer.rows for buffer in self._expected)

    def join(self, buffer: Buffer) -> bool:
        """Wait for one more lane; return False if it is too late for that."""
        if self._joinable:
            self._expected.add(buffer)
        return self._joinable

    def _close(self) -> None:
        self._joinable = False
        self._look()

    def leave(self, buffer: Buffer) -> None:
        """Wait no longer for a lane: it has written its rows, or cannot now."""
        self._expected.discard(buffer)
        self._look()

    def _look(self) -> None:
        if not self._gathered.is_set():
            if self._expected <= self._present and not self._joinable:
                # Later, so that the last one goes on with the others.
                asyncio.get_running_loop().call_soon(self._gathered.set)
        elif len(self._items) >= len(self._expected):
            self._complete.set()

    async def gather(self, buffer: Buffer) -> bool:
        """Wait for the other lanes; return whether they have waited for this one."""
        if not self._gathered.is_set():
            if self._patience is None:
                loop = asyncio.get_running_loop()
                self._patience = loop.call_later(_PATIENCE, self._begin)
            self._present.add(buffer)
            self._look()
            await self._gathered.wait()
        return buffer in self._present

    def _begin(self) -> None:
        """Wait no longer for the lanes that have not come."""
        if not self._gathered.is_set():
            self._expected &= self._present
            self._gathered.set()

    async def write(
        self, item: T, write: Callable[[Sequence[T]], Awaitable[Sequence[R]]]
    ) -> R | None:
        """Wait for the other lanes, and let the first one write the items of all.

        Returns:
            What `write` returned for the item; None if the others have not waited for it.

        Raises:
            Retry: the lane that wrote was stopped.
            Exception: what `write` raises.
        """
        if self._complete.is_set():
            if self._items:  # it may take the token that they share only after them
                await self._written.wait()
            return None
        number = len(self._items)
        self._items.append(item)
        self._look()
        if number:
            await self._written.wait()
            if self._error is not None:
                raise self._error
        else:
            with anyio.move_on_after(_PATIENCE):
                await self._complete.wait()
            self._complete.set()
            self._error = Retry(
                "the lane that writes for others was stopped", after=0.0, may_double=False
            )
            try:
                self._results = await write(self._items)
                self._error = None
            except Exception as error:
                self._error = error
                raise
            finally:
                self._written.set()
        result: R = self._results[number]
        return result


class Turns:
    """Gives turns to lanes whose rows are old enough, the oldest and largest first.

    Several are given at once, so that the announcements of these lanes are one commit. A worker of few
    partitions never waits: as many turns as a second has are there at first, and after each pause.

    Args:
        per_second: turns, on average.
        on_late: called with the seconds beyond `max_age` that the oldest rows have waited for their turn.
        joins: lanes with up to so many rows have one turn together; 0: each has its own.
    """

    def __init__(
        self,
        per_second: float,
        on_late: Callable[[float], None] = lambda _: None,
        *,
        joins: int = 0,
    ) -> None:
        self._joins = joins
        self._per_second = per_second
        self._on_late = on_late
        self._at_once = max(1.0, per_second)
        self._left = self._at_once
        self._refilled: float | None = None
        self._waiting: dict[WaitingLane, Buffer] = {}
        self._given: set[WaitingLane] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._ending: JoinedTurn | None = None

    def take(self, lane: WaitingLane, buffer: Buffer) -> bool:
        """Take a turn for a buffer, or wait for one: `look` is called then, and it is called again."""
        if lane in self._given:
            self._given.discard(lane)
            return True
        self._refill()
        if not self._waiting and self._left >= 1:
            self._left -= 1
            return True
        self._waiting[lane] = buffer
        self._set_timer()
        return False

    def leave(self, lane: WaitingLane, buffer: Buffer) -> None:
        """Wait no longer: the rows are flushed for another reason, or dropped."""
        self._waiting.pop(lane, None)
        if lane not in self._given:
            return
        self._given.discard(lane)
        if buffer.turn is not None:
            buffer.leave_turn()
        else:
            self._left += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._waiting:
                self._set_timer()

    def end(self, buffer: Buffer) -> JoinedTurn | None:
        """Return the turn of all lanes that are drained now, at once; None: the rows are written alone."""
        if not 0 < buffer.rows <= self._joins:
            return None
        ending = self._ending
        if ending is None or ending.rows + buffer.rows > _MOST_ROWS or not ending.join(buffer):
            ending = self._ending = JoinedTurn([buffer], _ENDING)
        return ending

    @property
    def late(self) -> float:
        """Seconds beyond `max_age` that the oldest rows have waited for their turn; 0 if none wait."""
        now = _now()
        return max(
            (now - each.deadline for each in self._waiting.values() if each.held), default=0.0
        )

    def _refill(self) -> None:
        now = _now()
        before, self._refilled = self._refilled, now
        if before is not None:
            more = (now - before) * self._per_second
            self._left = min(self._at_once, self._left + more)

    def _set_timer(self) -> None:
        if self._timer is None:
            wanted = 1.0 if self._joins else min(self._at_once, float(len(self._waiting)))
            lacking = wanted - self._left
            seconds = max(0.0, lacking / self._per_second)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give)

    def _give(self) -> None:
        """Give as many turns as there are."""
        self._timer = None
        self._refill()
        late = self.late
        self._on_late(late)
        if late > _LATE and not self._is_late:
            _log.warning(
                "rows wait longer than max_age for their turn to be written: raise inserts_per_second or "
                "max_age, or use fewer partitions for each worker",
                inserts_per_second=self._per_second,
                waiting=len(self._waiting),
                seconds=round(late, 1),
            )
        self._is_late = late > _LATE
        # A little less than one: the timer may be early by a rounding.
        lanes = sorted(self._waiting, key=self._urgency, reverse=True)
        while lanes and self._left + 1e-3 >= 1:
            self._left -= 1
            together = self._together(lanes)
            taken = [self._waiting.pop(lane) for lane in together]
            turn = JoinedTurn(taken) if len(taken) > 1 else None
            for lane, buffer in zip(together, taken, strict=True):
                buffer.turn = turn
                self._given.add(lane)
                lanes.remove(lane)
                lane.look()
        if self._waiting:
            self._set_timer()
        else:
            self._on_late(0.0)

    def _together(self, lanes: Sequence[WaitingLane]) -> Sequence[WaitingLane]:
        """Return the lanes that have the next turn: the first, and the others with few rows if it has few."""
        rows = nbytes = 0
        together: list[WaitingLane] = []
        for lane in lanes:
            buffer = self._waiting[lane]
            if buffer.rows > self._joins:
                if not together:
                    return [lane]
                continue
            rows, nbytes = rows + buffer.rows, nbytes + buffer.bytes
            if together and (rows > _MOST_ROWS or nbytes > _MOST_BYTES):
                break
            together.append(lane)
        return together

    def _urgency(self, lane: WaitingLane) -> float:
        """Return the age and the number of the rows, each in units of its limit."""
        buffer = self._waiting[lane]
        age = 0.0 if buffer.since is None else _now() - buffer.since
        return age / (buffer.reducer.max_age or 1.0) + buffer.rows / (
            buffer.reducer.max_rows or 32_768
        )


def _now() -> float:
    """Return the event loop's time, also in a callback of a loop that anyio has not started."""
    return asyncio.get_running_loop().time()
