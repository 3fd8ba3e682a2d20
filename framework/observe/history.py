"""An hour of a worker's figures, in memory: a sample every five seconds, for the page."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .status import WorkerStatus

STEP: Final = 5.0
"""Seconds between two samples."""

_HOUR: Final = 3_600.0


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """The figures of one moment, and of the step before it.

    Attributes:
        time: in seconds since 1970.
        consumed: records per second.
        settled: offsets per second.
        lag: records between the watermarks and the ends of the partitions; None while an end is unknown.
        failed: records that failed in the step.
        repeated: attempts to flush, and commits, that failed in the step and are repeated.
    """

    time: float
    consumed: float
    settled: float
    lag: int | None
    inflight_bytes: int
    failed: int
    repeated: int


class HistoryAnswer(msgspec.Struct, frozen=True):
    """The answer of `/history`: samples, the oldest one first."""

    step: float
    samples: tuple[Sample, ...]


class StatusHistory:
    """Samples the status of a worker, or of several; the oldest sample goes after an hour.

    Args:
        status: returns the present status; it may take long.
    """

    def __init__(self, status: Callable[[], Awaitable[WorkerStatus]]) -> None:
        self._status = status
        self._samples: deque[Sample] = deque(maxlen=int(_HOUR / STEP))
        self._last: tuple[float, WorkerStatus] | None = None

    async def run(self) -> None:
        """Take a sample at every step until cancelled."""
        while True:
            now = anyio.current_time()
            self.note(await self._status(), now, time.time())
            await anyio.sleep_until(now + STEP)

    def note(self, status: WorkerStatus, now: float, wall: float) -> None:
        """Add the sample of a status; the first one only begins the first step.

        Args:
            now: its time by a clock that never goes back, in seconds;
            wall: by the wall clock, in seconds since 1970.
        """
        last, self._last = self._last, (now, status)
        if last is None or now <= last[0]:
            return
        before, seconds = last[1], now - last[0]
        lags = [each.lag for each in status.partitions]
        known = [lag for lag in lags if lag is not None]
        self._samples.append(
            Sample(
                time=round(wall, 3),
                consumed=round(max(0, status.consumed - before.consumed) / seconds, 2),
                settled=round(max(0, status.settled - before.settled) / seconds, 2),
                lag=sum(known) if known and len(known) == len(lags) else None,
                inflight_bytes=status.inflight_bytes,
                failed=max(0, status.failed - before.failed),
                repeated=max(0, status.repeated - before.repeated),
            )
        )

    def past(self, after: float = 0.0) -> HistoryAnswer:
        """Return the samples that are newer than `after`, in seconds since 1970."""
        return HistoryAnswer(STEP, tuple(each for each in self._samples if each.time > after))
