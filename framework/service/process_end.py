"""The end of a process: signals, the deadline, and an exit that nothing delays."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NoReturn

from . import watchdog
from .forks import release_forks
from .hangups import take_hangup

if TYPE_CHECKING:
    from collections.abc import Callable

    from .deadline import Deadline

_FLUSH_TIMEOUT: Final = 1.0  # seconds


class ExitCode:
    """Exit codes of a process; a second signal ends it with 128 plus its number."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    DEADLINE_EXCEEDED = 3
    HUNG_UP = 128 + signal.SIGHUP  # drained, to be started again


@dataclass(eq=False)
class ProcessEnd:
    """Ends this process in time, even if other threads hang.

    The first SIGTERM, SIGINT or SIGHUP begins the deadline and requests a shutdown. A second one ends the
    process at once, and so does the deadline, also if the shutdown was over and only a thread of user code or
    an exit handler still runs. All that happens in a daemon thread: the event loop may stand still. Where a
    call never gives up Python's interpreter lock, a process beside this one does it (`kmr.service.watchdog`).

    Args:
        deadline: may also begin without a signal, after a failure.
        request: called in that thread with the name of the first signal.
        undone: called in that thread when the deadline has passed; describes what is not done.
        once: further signals have no effect, nor has SIGHUP, because the parent process decides.

    Attributes:
        code: the exit code of a shutdown that succeeds.
    """

    deadline: Deadline
    request: Callable[[str], None]
    undone: Callable[[], str]
    once: bool = False
    code: int = field(default=ExitCode.CLEAN, init=False)
    # A signal handler may interrupt anything: `SimpleQueue.put` is the one thing it may do.
    _events: SimpleQueue[signal.Signals | None] = field(default_factory=SimpleQueue, init=False)

    def arm(self, *, hangup: bool = True) -> None:
        """Take over the signals for the rest of the process. Call it in the main thread.

        Args:
            hangup: False: the caller has taken over SIGHUP.
        """
        self.deadline.on_begin = self._begun
        numbers = [signal.SIGTERM, signal.SIGINT]
        if self.once:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        elif hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            numbers.append(signal.SIGHUP)
        watchdog.watch(self.deadline.seconds, numbers, once=self.once)
        for number in numbers:
            signal.signal(number, lambda number, _: self._events.put(signal.Signals(number)))
        if signal.SIGHUP in numbers and take_hangup():
            self._events.put(signal.SIGHUP)
        release_forks([*numbers, *watchdog.SIGNALS], watchdog.leave)
        threading.Thread(target=self._watch, name="process end", daemon=True).start()

    def _begun(self) -> None:
        self._events.put(None)
        watchdog.begin()

    def _watch(self) -> None:
        first = math.inf
        while True:
            left = self.deadline.left
            try:
                number = self._events.get(timeout=None if left == math.inf else left)
            except Empty:
                exit_now(ExitCode.DEADLINE_EXCEEDED, self.undone())
            now = time.monotonic()
            if number is None:
                pass  # the deadline has begun
            elif first == math.inf:
                first = now
                if number == signal.SIGHUP:
                    self.code = ExitCode.HUNG_UP
                self.deadline.begin()
                self.request(number.name)
            elif now - first > watchdog.SAME_SIGNAL and not self.once:
                exit_now(
                    128 + number,
                    f"second signal ({number.name}): ended without a drain; records that are not "
                    "committed will be delivered again",
                )


def exit_now(code: int, message: str) -> NoReturn:
    """Print a message on stderr, flush all output, and end the process; its other threads are not waited for.

    A pipe that is full and not read delays it by one second.
    """
    speaker = threading.Thread(target=_say, args=[message], daemon=True)
    speaker.start()
    speaker.join(_FLUSH_TIMEOUT)
    os._exit(code)


def _say(message: str) -> None:
    print(f"kmr: {message}", file=sys.stderr, flush=True)  # noqa: T201  the user's message
    sys.stdout.flush()
    logging.shutdown()
