"""Processes that user code forks: they have the memory of this one, and must not act as if they were it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

P = ParamSpec("P")
T = TypeVar("T")

_RETURNED: Final = (
    b"kmr: a function of the strategy called os.fork, and its child returned: the child ends\n"
)


def release_forks(numbers: Collection[int], closed: Callable[[], None]) -> None:
    """Let the forks of this process end by SIGTERM, as `multiprocessing` expects it.

    A terminal signals them, too; they ignore that, because this process decides when they end.

    Args:
        numbers: the signals that this process handles.
        closed: called in each fork, to close what only this process may use.
    """
    os.register_at_fork(after_in_child=partial(_begin, numbers, closed))


def _begin(numbers: Collection[int], closed: Callable[[], None]) -> None:
    signal.set_wakeup_fd(-1)
    for number in numbers:
        of_terminal = number in (signal.SIGINT, signal.SIGHUP)
        signal.signal(number, signal.SIG_IGN if of_terminal else signal.SIG_DFL)
    closed()


def ends_forks(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that calls user code: a fork that the user code returns in ends there."""

    @wraps(call)
    def calls(*arguments: P.args, **named: P.kwargs) -> T:
        process = os.getpid()
        try:
            return call(*arguments, **named)
        finally:
            if os.getpid() != process:
                with suppress(OSError):
                    os.write(2, _RETURNED)
                os._exit(1)

    return calls
