"""One deadline for the end of a process, and shields against cancellation that end with it."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from anyio import CancelScope, current_time

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterator

_RESERVE: Final = 5.0  # seconds, or a fifth of the deadline
_LAST_PART: Final = 0.25

# Not anyio's `RunVar`: where `sniffio` is installed, that can be read in tasks only, and a timer ends them.
_shields: Final[WeakKeyDictionary[AbstractEventLoop, set[CancelScope]]] = WeakKeyDictionary()


class Deadline:
    """The deadline of a shutdown. It begins once: at the first signal or the first failure.

    A drain has until `drain_at`; commits, leaving the group and closing the sinks have until `end_at`;
    the process has ended at `at`. All three are infinite before `begin`.

    Args:
        seconds: from the beginning to the end of the process.
        clock: seconds; that of the event loop.
        on_begin: called once, in the thread that calls `begin`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.at = math.inf
        self.on_begin: Callable[[], None] = lambda: None
        self._clock = clock
        self._reserve = min(_RESERVE, seconds / 5)

    def begin(self) -> None:
        """Begin, from any thread; further calls have no effect."""
        if self.at == math.inf:
            self.at = self._clock() + self.seconds
            self.on_begin()

    @property
    def drain_at(self) -> float:
        """When a drain is given up."""
        return self.at - self._reserve

    @property
    def end_at(self) -> float:
        """When everything else on the event loop is given up."""
        return self.at - self._reserve * _LAST_PART

    @property
    def left(self) -> float:
        """Seconds until `at`, not below 0."""
        return max(0.0, self.at - self._clock())


@contextmanager
def shield(seconds: float = math.inf) -> Iterator[CancelScope]:
    """Shield a block from cancellation, until `end_shields` is called in this event loop.

    Args:
        seconds: the block is cancelled after so long.
    """
    shields = _shields.setdefault(asyncio.get_running_loop(), set())
    with CancelScope(shield=True, deadline=current_time() + seconds) as scope:
        shields.add(scope)
        try:
            yield scope
        finally:
            shields.discard(scope)


def end_shields() -> None:
    """End all shields of this event loop: what was cancelled meanwhile stops, everything else goes on."""
    for scope in list(_shields.get(asyncio.get_running_loop(), ())):
        scope.shield = False
