"""Where the user's map function runs: in a thread, in a process, or on the event loop."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_process

from ..service.threads import run_in_thread
from .functions import apply, apply_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..record import Batch
    from ..settings import ExecutorKind
    from .functions import MapSpec
    from .results import MapResult

__all__ = ["Executor"]


class Executor:
    """Applies map functions to batches, with one hand-over to a thread or process per batch.

    Args:
        kind: `thread` (the default: user code never delays heartbeats), `process` (for functions that
            hold the interpreter lock for long; they must be importable), or `inline` (for tests, and for
            functions that are cheaper than a thread).
        workers: how many batches are mapped at a time; None is the number of processors.
    """

    def __init__(self, kind: ExecutorKind = "thread", workers: int | None = None) -> None:
        self.kind = kind
        self._limiter = anyio.CapacityLimiter(workers or os.cpu_count() or 1)
        self._unlimited = anyio.CapacityLimiter(math.inf)

    async def map(
        self,
        function: Callable[..., Any],
        spec: MapSpec,
        batch: Batch,
        on_begin: Callable[[], None] = lambda: None,
    ) -> MapResult:
        """Apply a function to a batch. A coroutine function is awaited on the event loop.

        Args:
            function: marked, as `spec` says.
            spec: how it is called.
            batch: its records are decoded here, if they are not yet.
            on_begin: called when it is this batch's turn to have a thread or process.

        Raises:
            StrategyError: the function returned a value that cannot become rows.
            CorruptRecords: the batch cannot be decoded.
        """
        if self.kind == "inline":
            records = batch.records
        elif self.kind == "thread" and not spec.is_async:
            async with self._limiter:
                on_begin()
                return await run_in_thread(
                    lambda: apply(function, batch.records),
                    abandon_on_cancel=True,
                    limiter=self._unlimited,
                )
        else:
            records = await run_in_thread(
                lambda: batch.records, abandon_on_cancel=True, limiter=self._limiter
            )
        if spec.is_async:
            on_begin()
            return await apply_async(function, records)
        if self.kind == "process":
            async with self._limiter:
                on_begin()
                return await to_process.run_sync(
                    partial(apply, function, records), cancellable=True, limiter=self._unlimited
                )
        on_begin()
        return apply(function, records)
