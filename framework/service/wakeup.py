"""Waiting for the next change of something, as often as it changes."""

from __future__ import annotations

import anyio


class Wakeup:
    """A condition for one event loop: wakes the tasks that wait. It is almost free without waiters.

    A task checks its condition and waits, in a loop. Between the check and `wait` it must not wait for
    anything else, or it can miss the change.
    """

    def __init__(self) -> None:
        self._next: anyio.Event | None = None

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Return at the next `notify`."""
        if self._next is None:
            self._next = anyio.Event()
        await self._next.wait()
