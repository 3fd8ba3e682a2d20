"""An event loop with virtual time, whose callbacks belong to processes that can sleep."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["PROCESS", "NothingLeft", "Process", "SimulationLoop"]

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
        self._held: list[asyncio.Handle] = []

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback until `wake`."""
        self._held.append(handle)

    def wake(self, loop: SimulationLoop) -> None:
        """Run what was held back."""
        self.asleep = False
        held, self._held = self._held, []
        loop.run_again(held)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None and process.asleep:
            process.hold(self)
        else:
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None and process.asleep:
            process.hold(self)
        else:
            super()._run()


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address: cancellations have one order."""

    _numbers = itertools.count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


class _Selector:
    """Instead of waiting for files, moves the time to the next timer."""

    def __init__(self, loop: SimulationLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        loop = self._loop
        if timeout is None:
            raise NothingLeft
        loop.turns += 1
        if loop.turns > _MOST_TURNS:
            raise NothingLeft
        loop.now += timeout
        return []


class SimulationLoop(asyncio.BaseEventLoop):
    """An event loop without files and threads. Its time moves when no callback is ready.

    Attributes:
        now: the virtual time, in seconds.
        turns: how often it has run what was ready.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """See `now`."""
        return self.now

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        """Run handles that were held back."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.BaseEventLoop.call_at`."""
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001  as asyncio does
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.BaseEventLoop.call_later`."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio.BaseEventLoop.call_soon`."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def _process_events(self, events: list[Any]) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        """Do nothing: nothing waits."""


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> _Task:
    return _Task(coroutine, loop=loop, **options)
