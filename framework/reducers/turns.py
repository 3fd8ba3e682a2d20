"""The flushes of small buffers in a second, which the lanes of a worker share.

A sink such as ClickHouse likes few, large INSERTs. Where each partition has its own, `max_age` of many
partitions makes many small ones. So a lane that flushes for the age of its rows waits for its turn, and goes
on collecting meanwhile: the longer it waits, the larger its flush becomes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from .flushing import Buffer

_LATE: Final = 1.0  # seconds beyond `max_age` from which on that is told

_log = structlog.get_logger(__name__)


class WaitingLane(Protocol):
    """A lane that waits for its turn."""

    def look(self) -> None:
        """Look at the buffer again: it is its turn."""


class Turns:
    """Gives turns to lanes whose rows are old enough, the oldest and largest first.

    Several are given at once, so that the announcements of these lanes are one commit. A worker of few
    partitions never waits: as many turns as a second has are there at first, and after each pause.

    Args:
        per_second: turns, on average.
        on_late: called with the seconds beyond `max_age` that the oldest rows have waited for their turn.
    """

    def __init__(
        self, per_second: float, on_late: Callable[[float], None] = lambda _: None
    ) -> None:
        self._per_second = per_second
        self._on_late = on_late
        self._at_once = max(1.0, per_second)
        self._left = self._at_once
        self._refilled: float | None = None
        self._waiting: dict[WaitingLane, Buffer] = {}
        self._given: set[WaitingLane] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False

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

    def leave(self, lane: WaitingLane) -> None:
        """Wait no longer: the rows are flushed for another reason, or dropped."""
        self._waiting.pop(lane, None)
        if lane in self._given:
            self._given.discard(lane)
            self._left += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._waiting:
                self._set_timer()

    @property
    def late(self) -> float:
        """Seconds beyond `max_age` that the oldest rows have waited for their turn; 0 if none wait."""
        now = anyio.current_time()
        return max(
            (now - each.deadline for each in self._waiting.values() if each.held), default=0.0
        )

    def _refill(self) -> None:
        now = anyio.current_time()
        before, self._refilled = self._refilled, now
        if before is not None:
            more = (now - before) * self._per_second
            self._left = min(self._at_once, self._left + more)

    def _set_timer(self) -> None:
        if self._timer is None:
            lacking = min(self._at_once, float(len(self._waiting))) - self._left
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
        turns = min(int(self._left + 1e-3), len(self._waiting))
        for lane in sorted(self._waiting, key=self._urgency, reverse=True)[:turns]:
            del self._waiting[lane]
            self._left -= 1
            self._given.add(lane)
            lane.look()
        if self._waiting:
            self._set_timer()
        else:
            self._on_late(0.0)

    def _urgency(self, lane: WaitingLane) -> float:
        """Return the age and the number of the rows, each in units of its limit."""
        buffer = self._waiting[lane]
        age = 0.0 if buffer.since is None else anyio.current_time() - buffer.since
        return age / (buffer.reducer.max_age or 1.0) + buffer.rows / (
            buffer.reducer.max_rows or 32_768
        )
