"""Ending a map early, between two records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableSequence
    from typing import Any

__all__ = ["Stop"]


class Stop:
    """Ends the map of one batch before its next record. The call under way goes on.

    The map takes its calls out of a queue, and `request` empties it: looking at a flag before each record
    would cost more.

    Attributes:
        requested: whether `request` was called.
    """

    def __init__(self) -> None:
        self.requested = False
        self._pending: MutableSequence[Any] | None = None

    def request(self) -> None:
        """End the map; from any thread, at any time, any number of times."""
        self.requested = True
        if self._pending is not None:
            self._pending.clear()

    def expire(self) -> None:
        """End the map if its calls have begun; each map makes at least one, however slow the decoding is."""
        if self._pending is not None:
            self.request()

    def watch(self, pending: MutableSequence[Any]) -> None:
        """Let `request` empty this queue; it is emptied at once if that was called before."""
        self._pending = pending
        if self.requested:
            pending.clear()
