"""Fails a test whose broker blocks the event loop.

The broker of a guarded test may not sync, rename or delete a file on the loop's thread, and no step of the
loop may use more processor time than the limit: wall time says little on a machine that other programs share.
Steps of the test itself, and the broker's start and stop, do not count. One exception is left: the index of
a segment and the snapshot of producers are saved by the loop, which renames and deletes small files unsynced.

`KMR_LOOP_GUARD=50 pytest tests/broker` guards all tests, with a limit of 50 milliseconds. Tests marked
`loop_guard` are always guarded: against these calls, and with `milliseconds=...` against long steps too. The
first request of an API takes long because its messages are imported then: send one before the guarded one.
"""

from __future__ import annotations

import gc
import os
import traceback
from asyncio import _get_running_loop
from asyncio.events import Handle
from contextlib import contextmanager
from contextvars import Context, ContextVar
from math import inf
from time import thread_time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_of_broker: ContextVar[bool] = ContextVar("_of_broker", default=False)
"""Whether a callback was scheduled by a broker: what it schedules inherits it."""
_EXCEPTIONS = (", in save_index\n", ", in save_producers\n")
"""Functions that may rename and delete files on the loop: found by their names in the stack."""


class LoopGuard:
    """What blocked the event loop, in words; `limit`: seconds of processor time of one step."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.violations: list[str] = []
        self._starting = 0
        self._in_step = False

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Count the callbacks scheduled inside as part of a broker's start."""
        token = _of_broker.set(True)
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            _of_broker.reset(token)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Watch the steps of event loops, and the calls that sync, rename or delete files."""
        run = Handle._run

        def watched_run(handle: Handle) -> None:
            context: Context = handle._context  # type: ignore[attr-defined]
            if self._starting or not context.get(_of_broker):
                run(handle)
                return
            self._in_step = True
            began = thread_time()
            try:
                run(handle)
            finally:
                self._in_step = False
                used = thread_time() - began
                if used > self.limit:
                    self.violations.append(f"{used * 1000:.0f} ms in one step: {handle!r}")

        patch.setattr(Handle, "_run", watched_run)
        for name in ("fsync", "fdatasync", "unlink", "remove", "rename", "replace", "rmdir"):
            patch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, call: Callable[..., object]) -> Callable[..., object]:
        def watched(*arguments: object, **named: object) -> object:
            if self._in_step and _get_running_loop() is not None:
                stack = "".join(traceback.format_stack(limit=12)[:-1])
                if "sync" in call.__name__ or not any(each in stack for each in _EXCEPTIONS):
                    self.violations.append(
                        f"os.{call.__name__} on the thread of the loop:\n{stack}"
                    )
            return call(*arguments, **named)

        return watched


@pytest.fixture
def loop_guard(request: pytest.FixtureRequest) -> Iterator[LoopGuard | None]:
    """None if the test is not guarded."""
    limit, mark = os.environ.get("KMR_LOOP_GUARD"), request.node.get_closest_marker("loop_guard")
    if limit is None and mark is None:
        yield None
        return
    milliseconds = mark.kwargs.get("milliseconds", inf) if mark else inf
    guard = LoopGuard(float(limit or milliseconds) / 1000)
    with pytest.MonkeyPatch.context() as patch:
        guard.install(patch)
        gc.disable()  # it goes through the objects of all tests, and says nothing about the broker
        try:
            yield guard
        finally:
            gc.enable()
    assert not guard.violations, "\n".join(guard.violations)
