"""Calls in daemon threads: a call that hangs keeps neither the event loop nor the process from ending."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled

from ..errors import Escaped, no_escape
from .deadline import shield
from .forks import ends_forks

try:  # where it is installed, anyio reads which event loop runs: none does in a new thread
    from sniffio import current_async_library_cvar as _library
except ImportError:
    _library = ContextVar("nothing reads it")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio import CapacityLimiter

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process that runs in a daemon thread; a forked process has its own."""
    return _background_loop(os.getpid())


@lru_cache(maxsize=1)
def _background_loop(_process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="kmr event loop", daemon=True).start()
    return loop


_without: ContextVar[bool] = ContextVar("calls are made on the event loop", default=False)


@contextmanager
def without_threads() -> Iterator[None]:
    """Let `run_in_thread` call functions on asyncio's event loop: for a simulation, which has one thread."""
    without = _without.set(True)
    library = _library.set("asyncio")  # as `anyio.run` does: anyio need not look for the event loop
    try:
        yield
    finally:
        _library.reset(library)
        _without.reset(without)


async def run_in_thread(
    function: Callable[[*Ts], T],
    *arguments: *Ts,
    limiter: CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """Call a function in a daemon thread and return its result.

    Unlike `anyio.to_thread.run_sync`, whose threads keep the process until they end. An abandoned call goes
    on until it returns or the process ends.

    Args:
        limiter: how many calls run at a time; by default anyio's, 40.
        abandon_on_cancel: whether a cancellation abandons the call at once. Otherwise it waits for the
            call, until the deadline of the shutdown (see `kmr.service.deadline.shield`).

    Raises:
        Exception: what the function raised.
        Escaped: it raised what is no `Exception`, such as SystemExit.
    """
    await checkpoint_if_cancelled()
    if _without.get():
        with no_escape():
            return function(*arguments)
    async with limiter or to_thread.current_default_thread_limiter():
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
        try:
            thread = _idle.pop()
        except IndexError:
            thread = _Thread()
            thread.start()
        context = copy_context()
        context.run(_library.set, None)
        thread.calls.put((loop, future, partial(context.run, function, *arguments)))
        with nullcontext() if abandon_on_cancel else shield():
            result, error = await future
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise Escaped(error) from error
    return result  # type: ignore[return-value]  # None only if the function returned it


class _Thread(threading.Thread):
    """Runs one call after the other; it is in `_idle` in between."""

    def __init__(self) -> None:
        super().__init__(name="kmr call", daemon=True)
        self.calls: SimpleQueue[
            tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]]
        ] = SimpleQueue()

    def run(self) -> None:
        while True:
            self._call(*self.calls.get())

    def _call(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
        function: Callable[[], Any],
    ) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = ends_forks(function)()
        except BaseException as raised:  # noqa: BLE001  the caller raises it
            error = raised
        _idle.append(self)
        with suppress(RuntimeError):  # the event loop is closed: the call was abandoned
            loop.call_soon_threadsafe(_report, future, (result, error))


_idle: deque[_Thread] = deque()


def _report(future: asyncio.Future[Any], outcome: tuple[Any, BaseException | None]) -> None:
    if not future.done():  # cancelled if the call was abandoned
        future.set_result(outcome)
