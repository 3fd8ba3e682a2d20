"""How a broker's process ends: in good order by the first signal, at once by the second or too late."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEADLINE_EXCEEDED", "StopSignal", "deadline"]

DEADLINE_EXCEEDED: Final = 3
"""Exit code of a process that did not stop in time."""

logger = structlog.get_logger(__name__)


class StopSignal:
    """Waits for SIGTERM or SIGINT; a second one ends the process with 128 + its number."""

    def __init__(self) -> None:
        self._received = asyncio.Event()
        self.name = ""
        """Of the first signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._receive, number)

    async def wait(self) -> None:
        await self._received.wait()

    def _receive(self, number: signal.Signals) -> None:
        if self._received.is_set():
            os._exit(128 + number)
        self.name = number.name
        self._received.set()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """End the process if what is inside takes longer, whatever it hangs in: a disk, the event loop."""
    timer = threading.Timer(seconds, _give_up, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float) -> None:
    logger.error(
        "the broker could not stop in time and is ended; its logs are checked at the next start",
        deadline_seconds=seconds,
    )
    os._exit(DEADLINE_EXCEEDED)
