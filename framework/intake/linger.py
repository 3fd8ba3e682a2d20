"""How long intake lets quiet partitions gather records, so that work falls as load rises.

A poll, a request to the brokers and a hand-over to a thread cost as much for one record as for many. An idle
worker takes a record at once. One whose event loop is busy, and that has many partitions with few records
each, waits for some milliseconds before it polls again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..record import Batch

LONGEST: Final = 0.05
"""Seconds that records wait at most."""

_MANY: Final = 32  # partitions; fewer cost little
_LITTLE_BYTES: Final = 64 * 1024  # of a batch, on average
_WINDOW: Final = 0.2  # seconds over which the load is measured
_IDLE: Final = 0.25  # processor time of the event loop's thread by wall time
_BUSY: Final = 0.75


class Linger:
    """Measures how busy the thread of the event loop is; call it from there, after each poll.

    Args:
        worked: processor time of this thread, in seconds.
        clock: a monotonic clock.

    Attributes:
        seconds: the present pause; 0 for none.
    """

    def __init__(
        self,
        worked: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worked = worked
        self._clock = clock
        self._since: tuple[float, float] | None = None
        self._load = 0.0
        self.seconds = 0.0

    def after(self, batches: Sequence[Batch], partitions: int) -> float:
        """Return the seconds to wait before the next poll.

        Args:
            batches: of the last poll.
            partitions: how many are assigned.
        """
        self._measure()
        is_quiet = partitions >= _MANY and sum(b.nbytes for b in batches) <= _LITTLE_BYTES * len(
            batches
        )
        share = (self._load - _IDLE) / (_BUSY - _IDLE)
        self.seconds = LONGEST * min(1.0, max(0.0, share)) if is_quiet else 0.0
        return self.seconds

    def _measure(self) -> None:
        now, worked = self._clock(), self._worked()
        if self._since is None:
            self._since = now, worked
        elif (passed := now - self._since[0]) >= _WINDOW:
            self._load = (worked - self._since[1]) / passed
            self._since = now, worked
