"""Ending a map early, between two records."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections import deque
    from typing import Any


class Stop:
    """Ends the map of one batch before its next record. The call under way goes on.

    The map takes its calls out of a queue, and `request` empties it: looking at a flag before each record
    would cost more.
    """

    def __init__(self) -> None:
        self._pending: list[Any] | deque[Any] | None = None
        self._later: deque[Any] | None = None
        self._requested = threading.Event()
        self._sleeping: set[anyio.CancelScope] = set()
        self._parts: list[Stop] = []

    @property
    def requested(self) -> bool:
        """Whether `request` was called."""
        return self._requested.is_set()

    def request(self) -> None:
        """End the map, and pauses between its calls; any number of times.

        From any thread; from that of the event loop if the map runs there.
        """
        self._requested.set()
        self.expire()
        for scope in list(self._sleeping):
            scope.cancel()
        for part in list(self._parts):
            part.request()

    def part(self) -> Stop:
        """Return one for a map of a part of the records, which only `request` ends."""
        part = Stop()
        self._parts.append(part)
        if self.requested:
            part.request()
        return part

    def expire(self) -> None:
        """End the map if its calls have begun: each makes at least one, however slow the decoding is.

        A call that is to be repeated is repeated.
        """
        for queue in (self._pending, self._later):  # the thread of the map may forget them now
            if queue is not None:
                queue.clear()

    def watch(self, pending: list[Any] | deque[Any], later: deque[Any] | None = None) -> None:
        """Let `request` and `expire` empty this queue; emptied at once if `request` was called before.

        Args:
            later: what the map does afterwards; it is emptied, too.
        """
        self._pending, self._later = pending, later
        if self.requested:
            self.expire()

    def ended(self) -> None:
        """Forget the queues: their calls are made, so the arguments may be freed."""
        self._pending = self._later = None

    def sleep(self, seconds: float) -> bool:
        """Block the thread for so long, or until `request`; return whether that was called."""
        return seconds > 0 and self._requested.wait(seconds)

    async def sleep_async(self, seconds: float) -> bool:
        """Sleep for so long, or until `request`; return whether that was called."""
        with anyio.CancelScope() as scope:
            self._sleeping.add(scope)
            try:
                if not self.requested:
                    await anyio.sleep(seconds)
            finally:
                self._sleeping.discard(scope)
        return self.requested
