"""Where user code runs: in a thread, in a process, or on the event loop itself."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
from anyio import to_process, to_thread

from framework.mapper import apply, apply_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from framework.mapper import MapSpec
    from framework.record import Batch
    from framework.results import Mapped

__all__ = ["Executor", "ExecutorKind"]

ExecutorKind = Literal["thread", "process", "inline"]


class Executor:
    """Applies map functions, one hand-over a batch.

    Args:
        kind: `thread` (the default: heartbeats never wait for user code), `process` (for maps that
            hold the interpreter lock for long; the function must be importable), or `inline` (tests, and
            maps so small that a thread costs more than they do).
        workers: how many batches are mapped at a time; None is the number of processors.
    """

    def __init__(self, kind: ExecutorKind = "thread", workers: int | None = None) -> None:
        self.kind = kind
        self._limiter = anyio.CapacityLimiter(workers or os.cpu_count() or 1)

    async def map(self, function: Callable[..., Any], spec: MapSpec, batch: Batch) -> Mapped:
        """What the function makes of the batch. A coroutine function is awaited on the event loop.

        Raises:
            StrategyError: the function returned something that cannot be rows.
            CorruptRecords: the batch cannot be decoded.
        """
        if self.kind == "inline":
            records = batch.records
        elif self.kind == "thread" and not spec.is_async:
            return await to_thread.run_sync(
                lambda: apply(function, batch.records),
                abandon_on_cancel=True,
                limiter=self._limiter,
            )
        else:
            records = await to_thread.run_sync(
                lambda: batch.records, abandon_on_cancel=True, limiter=self._limiter
            )
        if spec.is_async:
            return await apply_async(function, records)
        if self.kind == "process":
            return await to_process.run_sync(
                partial(apply, function, records), cancellable=True, limiter=self._limiter
            )
        return apply(function, records)
