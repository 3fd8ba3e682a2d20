"""A process beside this one, which ends it after a signal if Python's interpreter lock is never free again.

A call that holds the lock (a regular expression that backtracks, a C extension) keeps every thread from
running, also those that handle signals and deadlines. But the interpreter writes each signal to a pipe
(`signal.set_wakeup_fd`) without the lock. The watchdog reads it. When the deadline has passed, or a
supervisor abandons the process, it lets the process print its stacks and exit: both are done by C code.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

SAME_SIGNAL: Final = 0.5
"""Seconds in which a repeated signal counts as the same one: `timeout` and some init processes send each
signal to the process and to its group."""

_GRACE: Final = 1.0
"""Seconds that the watchdog waits after the deadline. If the lock is free, the process has ended itself by
then, with a message that says more. At most a tenth of the deadline where a supervisor waits, too."""

ABANDON: Final = signal.SIGUSR1
"""What a supervisor sends to a worker that hangs: it prints its stacks, and ends at once."""

_STACKS: Final = signal.SIGUSR2
_EXIT: Final = signal.SIGQUIT
"""Its number is the exit code: the handler is `_exit` of the C library, which gets the number."""

SIGNALS: Final = (ABANDON, _STACKS, _EXIT)
"""What the watchdog and a supervisor send to this process."""

_CODE: Final = """
import os, select, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
worker, seconds, grace, same, note, abandon, stacks, end, *ending = os.getppid(), *map(float, sys.argv[1:])
signalled, begun, at, why = None, None, None, ""
while True:
    left = None if at is None else max(0.0, at - time.monotonic())
    if not select.select([0], [], [], left)[0]:
        break
    numbers = os.read(0, 64)
    if not numbers:
        sys.exit()
    for number in numbers:
        now = time.monotonic()
        if number == abandon:
            at, why = now, "abandoned by its supervisor"
        if number and number not in ending:
            continue
        if begun is None:
            begun, at = now, now + seconds + grace
        if number:
            if signalled is not None and now - signalled > same:
                at = min(at, now + grace)
            signalled = signalled or now
os.kill(worker, int(stacks))
time.sleep(0.5)
said = os.pread(int(note), 1000, 0).decode(errors="replace").strip()
why = why or (f"not ended {time.monotonic() - begun:.0f} s after the shutdown began: a call holds Python's "
    "interpreter lock")
text = (f"kmr: {why} (the last that began: {said}); its stack is above. Records that are not committed come "
    "again")
os.write(2, text.encode() + bytes([10]))
os.kill(worker, int(end))
"""

_note: int | None = None
_signals: int | None = None
_process: subprocess.Popen[bytes] | None = None


def watch(seconds: float, ending: Collection[signal.Signals], *, once: bool = False) -> None:
    """Start the watchdog. Call it in the main thread, once in a process.

    Args:
        seconds: from the first signal to the end of the process.
        ending: the signals that end the process; the watchdog reads all, and must ignore the others.
        once: a second signal has no effect; a supervisor kills the process soon after the deadline.
    """
    global _note, _signals, _process  # noqa: PLW0603  one for the process, as signals are
    if _signals is not None or signal.getsignal(_STACKS) is not signal.SIG_DFL:
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(_EXIT, ctypes.cast(libc["_exit"], ctypes.c_void_p))
    with suppress(OSError, ValueError, AttributeError):  # stderr is no file
        faulthandler.register(_STACKS, all_threads=True)
    heard, _signals = os.pipe()
    os.set_blocking(_signals, False)
    with tempfile.TemporaryFile() as file:
        _note = os.dup(file.fileno())
    signal.signal(ABANDON, lambda *_: None)  # only handled signals are written to the pipe
    same = math.inf if once else SAME_SIGNAL
    grace = min(_GRACE, seconds / 10) if once else _GRACE
    numbers = (seconds, grace, same, _note, *map(int, (ABANDON, _STACKS, _EXIT, *ending)))
    _process = subprocess.Popen(  # noqa: S603  it ends when the pipe is closed, with this process
        [sys.executable, "-I", "-S", "-c", _CODE, *map(str, numbers)],
        stdin=heard,
        stdout=subprocess.DEVNULL,
        pass_fds=[_note],
    )
    os.close(heard)
    signal.set_wakeup_fd(_signals, warn_on_full_buffer=False)


def note(call: str) -> None:
    """Note a call of the user's that begins, for the message; it costs a system call."""
    if _note is not None:
        os.pwrite(_note, f"{call:<200.200}".encode()[:1000], 0)


def leave() -> None:
    """Leave the watchdog to the process that was forked: a signal of the fork says nothing of it."""
    global _note, _signals  # noqa: PLW0603  one for the process, as signals are
    for descriptor in (_note, _signals):
        if descriptor is not None:
            os.close(descriptor)
    _note = _signals = None


def begin() -> None:
    """Let the time begin without a signal: after a failure."""
    if _signals is not None:
        with suppress(OSError):
            os.write(_signals, bytes(1))
