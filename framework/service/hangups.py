"""A SIGHUP that comes while a process starts: remembered, because without a handler it ends the process."""

from __future__ import annotations

import signal

_held: list[int] = []


def hold_hangups() -> None:
    """Remember SIGHUP until somebody takes over the signal, unless it is ignored (nohup)."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, _: _held.append(number))


def take_hangup() -> bool:
    """Return whether one was remembered, and forget it. Call it when the signal has a new handler."""
    came = bool(_held)
    _held.clear()
    return came
