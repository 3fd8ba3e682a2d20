"""What aiokafka logs, for people: nothing while a command explains its errors itself, else little."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from broker.cli.errors import complain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Sparse", "silence_client", "tell_client_errors"]

_PAUSE = 30.0


def silence_client() -> None:
    """What goes wrong is told by the command, in one line."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@contextmanager
def tell_client_errors() -> Iterator[None]:
    """For what runs long: tell that a broker is gone, but not forty times a second."""
    client = logging.getLogger("aiokafka")
    level, propagate = client.level, client.propagate
    handler = Sparse()
    client.addHandler(handler)
    client.setLevel(logging.ERROR)
    client.propagate = False
    try:
        yield
    finally:
        client.removeHandler(handler)
        client.setLevel(level)
        client.propagate = propagate


class Sparse(logging.Handler):
    """Tells one message of each logger on stderr, then none of it for 30 seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._told: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = self._now()
        if now - self._told.get(record.name, -_PAUSE) >= _PAUSE:
            self._told[record.name] = now
            complain(record.getMessage())
