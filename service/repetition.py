"""What comes again and again is said once in a while, with how many times it came."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Repetition"]

_INTERVAL: Final = 10.0  # seconds


class Repetition:
    """Remembers when what was said last; for few different things."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._said: dict[Hashable, float] = {}
        self._unsaid: dict[Hashable, int] = {}

    def times(self, what: Hashable) -> int:
        """Count it; how many times it came since it was last said, if it should be said now, else 0."""
        now = self._clock()
        count = self._unsaid.get(what, 0) + 1
        if what in self._said and now - self._said[what] < _INTERVAL:
            self._unsaid[what] = count
            return 0
        self._said[what] = now
        self._unsaid[what] = 0
        return count
