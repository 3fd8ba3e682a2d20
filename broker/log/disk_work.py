"""Work on a log whose slow parts, such as syncs and deletions of files, may run in another thread.

Such work is a generator: what it does itself belongs to the thread of the log, what it yields may run
elsewhere. An exception of a yielded call is raised where it was yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

DiskWork: TypeAlias = Generator[Callable[[], object], None, T]


def do_now(work: DiskWork[T]) -> T:
    """Do everything in this thread; return the result."""
    try:
        call = next(work)
        while True:
            try:
                call()
            except Exception as error:  # noqa: BLE001  raised where the call was yielded
                call = work.throw(error)
            else:
                call = next(work)
    except StopIteration as done:
        result: T = done.value
        return result


async def do_in_thread(work: DiskWork[T], *, limiter: CapacityLimiter | None = None) -> T:
    """Do the slow parts in another thread, one of those that `limiter` allows; return the result."""
    try:
        call = next(work)
        while True:
            try:
                await to_thread.run_sync(call, limiter=limiter)
            except Exception as error:  # noqa: BLE001  raised where the call was yielded
                call = work.throw(error)
            else:
                call = next(work)
    except StopIteration as done:
        result: T = done.value
        return result
