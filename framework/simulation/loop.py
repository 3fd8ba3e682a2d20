"""An event loop with virtual time, whose callbacks belong to processes that can sleep."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_MOST_TURNS: Final = 400_000


class NothingLeft(Exception):
    """All tasks wait, and no timer is set that could wake one; or they run on and time stands still."""


class Process:
    """A process of the operating system, as far as the event loop is concerned.

    All callbacks of its tasks carry it in their context. While it sleeps they are held back, like those of a
    process that was stopped by a signal; they run when it wakes, however late that is.
    """

    def __init__(self) -> None:
        self.asleep = False
        self._held: list[_Callback] = []

    def fall_asleep(self, loop: SimulationLoop) -> None:
        """Hold back what it does from now on."""
        self.asleep = True
        loop.sleeping += 1

    def hold(self, callback: _Callback) -> None:
        """Keep a callback until `wake`."""
        self._held.append(callback)

    def wake(self, loop: SimulationLoop) -> None:
        """Run what was held back."""
        self.asleep = False
        loop.sleeping -= 1
        held, self._held = self._held, []
        loop.run_again(held)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Callback(msgspec.Struct, eq=False):
    """A callback that is to be run; with `asyncio.TimerHandle`'s methods."""

    at: float
    callback: Callable[..., Any]
    arguments: Any
    context: Context
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.arguments = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.at

    def run(self, loop: SimulationLoop) -> None:
        context = self.context
        if loop.sleeping and (process := context.get(PROCESS)) is not None and process.asleep:
            process.hold(self)
            return
        try:
            context.run(self.callback, *self.arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            process = context.get(PROCESS)
            if process is None:
                raise  # a fault of a model would make every result worthless
            message = f"Exception in callback {self.callback!r}"
            loop.call_exception_handler(
                {"message": message, "exception": error, "process": process}
            )


def _nothing() -> None:
    """Stand in for the callback of one that was cancelled."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set follows from its number: cancellations have one order."""

    __slots__ = ("_number",)

    def __init__(self, number: int, *arguments: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        """Return its name: each cancellation takes it for its reason, and asyncio's own text is slow."""
        return self.get_name()


class SimulationLoop(asyncio.BaseEventLoop):
    """An event loop without files and threads. Its time moves when no callback is ready.

    Attributes:
        now: the virtual time, in seconds.
        turns: how often it has run what was ready.
        sleeping: the number of processes that sleep.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0
        self.sleeping = 0
        self._callbacks: deque[_Callback] = deque()
        self._timers: list[tuple[float, int, _Callback]] = []
        self._numbers = itertools.count()  # timers of one time run in the order of their numbers
        self._task_numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def run_again(self, held: list[_Callback]) -> None:
        """Run callbacks that were held back."""
        self._callbacks.extend(held)

    def close(self) -> None:
        """Close it, and forget what was to be run."""
        super().close()
        self._callbacks.clear()
        self._timers.clear()
        self.set_exception_handler(None)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> _Task:  # type: ignore[override]
        return _Task(next(self._task_numbers), coro, loop=self, **options)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> _Callback:
        timer = _Callback(when, callback, args, copy_context() if context is None else context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> _Callback:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Callback:
        context = copy_context() if context is None else context
        made = _Callback(self.now, callback, args, context)
        self._callbacks.append(made)
        return made

    def _run_once(self) -> None:
        """Run what is ready, or else what comes next; asyncio's own looks after files, too."""
        callbacks, timers = self._callbacks, self._timers
        while timers and timers[0][2].is_cancelled:
            heappop(timers)
        if not callbacks:
            if not timers:
                raise NothingLeft
            self.now = max(self.now, timers[0][0])
        self.turns += 1
        if self.turns > _MOST_TURNS:
            raise NothingLeft
        while timers and timers[0][0] <= self.now:
            callbacks.append(heappop(timers)[2])
        for _ in range(len(callbacks)):
            callback = callbacks.popleft()
            if not callback.is_cancelled:
                callback.run(self)

    def _process_events(self, events: list[Any]) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        """Do nothing: nothing waits."""
