"""Make the calls of a per-record function as its options say: in threads or in tasks, and in a window.

Each thread or task takes the next call as soon as it has finished one, so a slow call holds up no other.
The outcomes are in the order of the calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from ..errors import StrategyError, as_exception
from .calls import rate_limit_of
from .stop import Stop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from .calls import CallOptions


class Repeated(Exception):
    """A call failed, and not for the first time.

    Attributes:
        error: the last one.
        attempts: the number of calls.
    """

    def __init__(self, error: Exception, attempts: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempts = attempts


@dataclass(slots=True)
class CallOutcome:
    """The result of one call, or its error."""

    attempts: int
    result: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        """Return the result, or raise the error: as `Repeated` if there was more than one attempt."""
        error = self.error
        if error is None:
            return self.result
        if self.attempts > 1 and type(error) is not StrategyError:
            raise Repeated(error, self.attempts) from error
        raise error


class _BatchCalls:
    """The calls of one batch: those that have not begun, and the outcomes of the others."""

    def __init__(self, calls: Sequence[Any], options: CallOptions, stop: Stop | None) -> None:
        self.stop = stop or Stop()
        self.size = min(options.concurrency, len(calls))
        self._options = options
        self._rate = None if options.rate_limit is None else rate_limit_of(options.rate_limit)
        self._waiting = deque(enumerate(calls))
        self._outcomes: list[CallOutcome | None] = [None] * len(calls)
        self.stop.watch(self._waiting)

    def next(self) -> tuple[int, tuple[Any, ...]] | None:
        """Take the next call, with its number; None after the last one."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def turn(self) -> float:
        """Return the seconds to wait before a call."""
        return 0.0 if self._rate is None else self._rate.reserve()

    def done(self, number: int, outcome: CallOutcome) -> float | None:
        """Keep the outcome of a call; return the seconds after which it is to be repeated, or None."""
        retry, error = self._options.retry, outcome.error
        if retry is not None and error is not None and retry.repeats(error, outcome.attempts):
            return retry.pause(outcome.attempts)
        self._outcomes[number] = outcome
        return None

    def outcomes(self) -> list[CallOutcome]:
        """Return the outcomes up to the first call that has none: it was interrupted, or has not begun."""
        found = []
        for outcome in self._outcomes:
            if outcome is None:
                break
            found.append(outcome)
        return found


def make_calls(
    function: Callable[..., Any],
    calls: Sequence[Any],
    options: CallOptions,
    stop: Stop | None,
) -> list[CallOutcome]:
    """Call a plain function with each of the arguments, in this thread and in others.

    Args:
        stop: lets no further call begin, and interrupts pauses.

    Returns:
        The outcomes in the order of the calls; fewer than calls if it was stopped.
    """
    window = _BatchCalls(calls, options, stop)

    def work() -> None:
        while (taken := window.next()) is not None:
            number, argument = taken
            attempts, pause = 0, window.turn()
            while True:
                if window.stop.sleep(pause):
                    break
                attempts += 1
                outcome = CallOutcome(attempts)
                try:
                    outcome.result = _listed(function(argument))
                except BaseException as error:  # noqa: BLE001  raised by `CallOutcome.get`
                    outcome.error = as_exception(error)
                again = window.done(number, outcome)
                if again is None:
                    break
                pause = again + window.turn()

    threads = [
        threading.Thread(target=copy_context().run, args=(work,), name="kmr call", daemon=True)
        for _ in range(window.size - 1)
    ]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    return window.outcomes()


async def make_calls_async(
    function: Callable[..., Awaitable[Any]],
    calls: Sequence[Any],
    options: CallOptions,
    stop: Stop | None,
) -> list[CallOutcome]:
    """Call a coroutine function with each of the arguments, in tasks. See `make_calls`."""
    window = _BatchCalls(calls, options, stop)

    async def call(argument: Any) -> Any:
        if options.timeout is None:
            return _listed(await function(argument))
        with anyio.move_on_after(options.timeout) as scope:
            return _listed(await function(argument))
        if scope.cancelled_caught:
            raise TimeoutError(f"the call took longer than timeout={options.timeout:g} s")
        raise AssertionError("unreachable")

    async def work() -> None:
        while (taken := window.next()) is not None:
            number, argument = taken
            attempts, pause = 0, window.turn()
            while True:
                if pause and await window.stop.sleep_async(pause):
                    break
                attempts += 1
                outcome = CallOutcome(attempts)
                try:
                    outcome.result = await call(argument)
                except BaseException as error:  # noqa: BLE001  raised by `CallOutcome.get`
                    outcome.error = as_exception(error)
                again = window.done(number, outcome)
                if again is None:
                    break
                pause = again + window.turn()

    async with anyio.create_task_group() as tasks:
        for _ in range(window.size):
            tasks.start_soon(work)
    return window.outcomes()


def _listed(result: Any) -> Any:
    """Run a generator here, where its calls are made, repeated and timed."""
    return list(result) if isinstance(result, Iterator) else result
