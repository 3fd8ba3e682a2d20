"""The flushes of small buffers in a second, which the lanes of a worker share.

A sink such as ClickHouse likes few, large INSERTs. Where each partition has its own, `max_age` of many
partitions makes many small ones. So a lane that flushes for the age of its rows waits for its turn, and goes
on collecting meanwhile: the longer it waits, the larger its flush becomes. Where the sink can, flushes of all
lanes that wait have one turn together, and are one INSERT. Lanes that have as much as a large INSERT
together, as in a backlog, do not wait for their age.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

import structlog

from .joined_turn import MOST_BYTES, MOST_ROWS, JoinedTurn, joined
from .reducer import DEFAULT_MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .buffer import Buffer

T = TypeVar("T")
R = TypeVar("R")

_LATE: Final = 1.0  # seconds beyond `max_age` from which on that is told
_LARGE: Final = 4  # times `max_rows`: so many rows of all lanes do not wait for their age
_SOON: Final = 0.025  # of `max_age`: rows that lack less than this join the turn of older ones
_ROUNDING: Final = 1e-3
_UNLIMITED: Final = 1e6  # turns in a second

_log = structlog.get_logger(__name__)


class WaitingLane(Protocol):
    """A lane that waits for its turn."""

    def look(self) -> None:
        """Look at the buffer again: it is its turn."""


class Turns:
    """Gives turns to lanes whose rows are old enough, the oldest and largest first.

    It knows the ages of the rows of all lanes, and wakes a lane when it has its turn. Several are given at
    once, so that the announcements of these lanes are one commit. A worker of few partitions never waits: as
    many turns as a second has are there at first, and after each pause.

    Args:
        per_second: turns, on average; None: no limit.
        on_late: called with the seconds beyond `max_age` that the oldest rows have waited for their turn.
        joins: lanes with up to so many rows have one turn together; 0: each has its own.
    """

    def __init__(
        self,
        per_second: float | None,
        on_late: Callable[[float], None] = lambda _: None,
        *,
        joins: int = 0,
    ) -> None:
        self._joins = joins
        self._per_second = _UNLIMITED if per_second is None else per_second
        self._on_late = on_late
        self._at_once = max(1.0, self._per_second)
        self._left = self._at_once
        self._refilled: float | None = None
        self._collecting: dict[WaitingLane, tuple[Buffer, float]] = {}
        self._collected = 0.0  # by all of them; 1.0 is as much as a large write
        self._aging: dict[WaitingLane, Buffer] = {}
        self._waiting: dict[WaitingLane, Buffer] = {}
        self._given: dict[WaitingLane, Literal["age", "count"]] = {}
        self._age_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._ending: JoinedTurn | None = None

    def collect(self, lane: WaitingLane, buffer: Buffer) -> None:
        """Note what a lane has now: `look` is called when it has a turn.

        That is after `max_age`, or at once when all lanes have as much as a large write.
        """
        if lane in self._given:
            self._forget(lane)
            return
        if lane not in self._aging and lane not in self._waiting:
            self._aging[lane] = buffer
            self._wake_at(buffer.deadline)
        limits = buffer.reducer
        if limits.when_full != "flush" or buffer.rows > self._joins:
            self._forget(lane)
            return
        part = max(
            buffer.rows / min(_LARGE * (limits.max_rows or DEFAULT_MAX_ROWS), MOST_ROWS),
            buffer.bytes / min(limits.max_bytes or MOST_BYTES, MOST_BYTES),
        )
        self._forget(lane)
        self._collecting[lane] = buffer, part
        self._collected += part
        if self._collected >= 1.0:
            self._give_together(
                {each: held for each, (held, _) in self._collecting.items()}, "count"
            )

    def _forget(self, lane: WaitingLane) -> None:
        if (noted := self._collecting.pop(lane, None)) is not None:
            self._collected = self._collected - noted[1] if self._collecting else 0.0

    def take_given(self, lane: WaitingLane) -> Literal["age", "count"] | None:
        """Take the turn that a lane was given; return the reason to flush, None if it was given none."""
        return self._given.pop(lane, None)

    def leave(self, lane: WaitingLane, buffer: Buffer) -> None:
        """Wait no longer: the rows are flushed for another reason, or dropped."""
        self._aging.pop(lane, None)
        self._waiting.pop(lane, None)
        self._forget(lane)
        if self._given.pop(lane, None) is None:
            return
        if buffer.turn is not None:
            buffer.leave_turn()
        else:
            self._left += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._waiting:
                self._set_timer()

    def waits(self, lane: WaitingLane) -> bool:
        """Return whether a lane waits for its turn."""
        return lane in self._waiting

    def end(self, buffer: Buffer) -> JoinedTurn | None:
        """Return the turn of all lanes that end or make room now; None: the rows are written alone."""
        if not 0 < buffer.rows <= self._joins:
            return None
        self._ending = joined(self._ending, buffer)
        return self._ending

    def _wake_at(self, deadline: float) -> None:
        """Wake up when the oldest rows reach their age."""
        timer = self._age_timer
        if deadline < (math.inf if timer is None else timer.when()):
            if timer is not None:
                timer.cancel()
            self._age_timer = asyncio.get_running_loop().call_at(deadline, self._age)

    def _age(self) -> None:
        """Let the lanes whose rows have their age, or soon will, wait for a turn."""
        self._age_timer = None
        now = _now() + _ROUNDING
        for lane, buffer in list(self._aging.items()):
            if buffer.deadline - _SOON * (buffer.reducer.max_age or 0.0) <= now:
                self._waiting[lane] = self._aging.pop(lane)
        self._wake_at(min((each.deadline for each in self._aging.values()), default=math.inf))
        self._refill()
        if self._waiting and self._timer is None:
            (self._give if self._lacking <= _ROUNDING else self._set_timer)()

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
            seconds = max(0.0, self._lacking / self._per_second)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give)

    @property
    def _lacking(self) -> float:
        """How many turns are still needed before some are given."""
        wanted = 1.0 if self._joins else min(self._at_once, float(len(self._waiting)))
        return wanted - self._left

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
        while lanes and self._left + _ROUNDING >= 1:
            self._left -= 1
            together, lanes = self._together(lanes)
            self._give_together({lane: self._waiting[lane] for lane in together}, "age")
        if self._waiting:
            self._set_timer()
        else:
            self._on_late(0.0)

    def _give_together(
        self, lanes: Mapping[WaitingLane, Buffer], reason: Literal["age", "count"]
    ) -> None:
        turn = JoinedTurn(lanes.values()) if len(lanes) > 1 else None
        for lane, buffer in lanes.items():
            buffer.turn = turn
            self._aging.pop(lane, None)
            self._waiting.pop(lane, None)
            self._forget(lane)
            self._given[lane] = reason
            lane.look()

    def _together(self, lanes: list[WaitingLane]) -> tuple[list[WaitingLane], list[WaitingLane]]:
        """Return the lanes of the next turn, and the rest; lanes with few rows have one turn together."""
        if self._waiting[lanes[0]].rows > self._joins:
            return lanes[:1], lanes[1:]
        rows = nbytes = 0
        together: list[WaitingLane] = []
        rest: list[WaitingLane] = []
        for number, lane in enumerate(lanes):
            buffer = self._waiting[lane]
            if buffer.rows > self._joins:
                rest.append(lane)
                continue
            rows, nbytes = rows + buffer.rows, nbytes + buffer.bytes
            if together and (rows > MOST_ROWS or nbytes > MOST_BYTES):
                rest += lanes[number:]
                break
            together.append(lane)
        return together, rest

    def _urgency(self, lane: WaitingLane) -> float:
        """Return the age and the number of the rows, each in units of its limit."""
        buffer = self._waiting[lane]
        age = 0.0 if buffer.since is None else _now() - buffer.since
        limits = buffer.reducer
        return age / (limits.max_age or 1.0) + buffer.rows / (limits.max_rows or DEFAULT_MAX_ROWS)


def _now() -> float:
    """Return the event loop's time, also in a callback of a loop that anyio has not started."""
    return asyncio.get_running_loop().time()
