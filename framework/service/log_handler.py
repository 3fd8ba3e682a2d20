"""The handler of a process's logs, which never holds the process up."""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

_PATIENCE: Final = 1.0
"""Seconds that a reader may need for a full pipe, before lines are left out."""
_PIECE: Final = select.PIPE_BUF  # a pipe takes so many bytes whole, or none of them


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines to a stream, and leaves lines out while nobody reads them.

    A full pipe, or a stopped terminal, would hold up the event loop, and with it heartbeats and shutdown. It
    waits a second for the reader; then it drops lines until there is room, and says how many.

    It writes to a descriptor of its own: user code may close `sys.stderr`, and number 2 may then be a socket.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream or sys.stderr)
        self._left_out = 0
        self._number: int | None = None
        with suppress(OSError, ValueError):  # not a file
            self._number = os.dup(self.stream.fileno())

    def close(self) -> None:
        """Close the descriptor; the stream stays open."""
        number, self._number = self._number, None
        if number is not None:
            os.close(number)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line if somebody reads."""
        if self._number is None:
            super().emit(record)
            return
        try:
            self._write(self._number, record)
        except OSError:
            pass  # the reader has closed the pipe
        except Exception:  # noqa: BLE001  as `StreamHandler`
            self.handleError(record)

    def _write(self, number: int, record: logging.LogRecord) -> None:
        wait = _PATIENCE if not self._left_out else 0.0
        if self._left_out and _is_writable(number, 0.0):
            lines = f"lines of the log were left out, because nobody read it ({self._left_out})"
            self._left_out = 0
            self._put(number, self._line(_warning(lines)), wait)
        if not self._put(number, self._line(record), wait):
            self._left_out += 1

    def _line(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + self.terminator).encode(errors="backslashreplace")

    def _put(self, number: int, line: bytes, wait: float) -> bool:
        """Write a line in pieces; return whether all of it was written."""
        until = time.monotonic() + wait
        while line:
            if not _is_writable(number, max(0.0, until - time.monotonic())):
                return False
            line = line[os.write(number, line[:_PIECE]) :]
        return True


def _is_writable(number: int, wait: float) -> bool:
    """Return whether a write does not block, after `wait` seconds at most."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(wait * 1000))


def _warning(text: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
