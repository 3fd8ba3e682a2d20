"""How often a worker that ends is started again, and after how long."""

from __future__ import annotations

from collections import deque
from typing import Final

_FIRST_DELAY: Final = 0.5  # seconds
_LONGEST_DELAY: Final = 30.0  # seconds


class Restarts:
    """The restarts of one worker: each of them within `period` doubles the delay, `most` are allowed.

    Args:
        most: restarts within `period`.
        period: seconds.
    """

    def __init__(self, most: int, period: float) -> None:
        self.most = most
        self.period = period
        self.total = 0
        self._recent: deque[tuple[float, str]] = deque()

    def delay(self, now: float, reason: str) -> float | None:
        """Note that the worker ended; return the seconds until its restart, None if there is none.

        Args:
            now: seconds, of any clock that is always the same.
            reason: why it ended.
        """
        while self._recent and now - self._recent[0][0] >= self.period:
            self._recent.popleft()
        self._recent.append((now, reason))
        restarts = len(self._recent)
        if restarts > self.most:
            return None
        self.total += 1
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (restarts - 1))

    @property
    def first_reason(self) -> str:
        """Why it ended for the first time within the period: later errors may follow from that one."""
        return self._recent[0][1]
