"""Whether what a broker has to do all the time goes on: that it answers alone says little."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STALL_SECONDS", "Progress", "unwatched"]

STALL_SECONDS: Final = 30.0
"""A task that is so much later than it should be stands still."""


def unwatched() -> None:
    """The beat of a task that nobody watches."""


class Progress:
    """The tasks that are expected to show signs of life, from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._due: dict[str, float] = {}

    def expect(self, task: str, every: float) -> Callable[[], None]:
        """What `task` has to call every so many seconds, or it stands still; counts from now on."""

        def beat() -> None:
            self._due[task] = self._clock() + every

        beat()
        return beat

    @property
    def problem(self) -> str:
        """Which tasks stand still, and for how long; "" if none does."""
        now = self._clock()
        late = [
            f"{task} has not moved for {now - due:.0f} seconds"
            for task, due in self._due.items()
            if now > due + STALL_SECONDS
        ]
        return "; ".join(late)
