"""The reducers of a strategy in a chain, inside a task or in the driver, one chunk at a time.

A stage of the worker collects until there is a reason to flush. Here, everything that a chunk brings is
flushed through all reducers before the next chunk, because a task may end, or be repeated, after each. In
the driver the rows of a micro-batch take the place of the chunk. Limits and retries are those of
`kmr.reducers.flushing`.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ...errors import KmrError, SinkError, reason_of
from ...memory.window import Window
from ...reducers.buffer import Buffer
from ...reducers.flushing import attempt_flush, retry_flush
from ...reducers.reducer import Retry, close_all
from ...reducers.sink import Write, capabilities_of
from ...service.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...record import Rows
    from ...reducers.buffer import FlushReason
    from ...reducers.flushing import FlushOutcome
    from ...reducers.reducer import Context, Reducer
    from .task_memory import OpenWindows


@dataclass(frozen=True, slots=True)
class StageFlush:
    """One flush of one reducer; `seconds` includes its retries."""

    stage: str
    reason: str
    rows: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class ChainResult:
    """The results of one `Chain.deliver`.

    Attributes:
        out: the rows that the last reducer made.
        failed: the records that a reducer refused, for the error sink.
        retries: number of flushes that were repeated, by stage.
    """

    out: list[Rows] = field(default_factory=list)
    failed: list[Rows] = field(default_factory=list)
    flushes: list[StageFlush] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)


class Chain:
    """Reducers, each feeding the next. Use it from one event loop, one call at a time.

    Args:
        reducers: by the names of their stages, as in metrics and logs. Without any, the rows come out
            unchanged.
    """

    def __init__(self, reducers: Mapping[str, Reducer]) -> None:
        self._stages = list(reducers)
        self._buffers = [Buffer(_spawn(reducer)) for reducer in reducers.values()]
        self._outcome = ChainResult()
        self._write = Write()
        self._windows: OpenWindows | None = None

    @property
    def _after_window(self) -> int:
        """The stage that rows of windows begin at."""
        return 1 + next(
            at for at, buffer in enumerate(self._buffers) if isinstance(buffer.reducer, Window)
        )

    async def open(self, context: Context) -> None:
        """Connect all reducers. Raises StrategyError if the strategy does not fit a sink."""
        for stage, buffer in zip(self._stages, self._buffers, strict=True):
            await buffer.reducer.open(replace(context, stage=stage))

    async def close(self) -> None:
        """Disconnect all reducers, also after a failure."""
        await close_all(buffer.reducer.close for buffer in self._buffers)

    async def deliver(
        self,
        chunk: Iterable[Rows],
        reason: FlushReason,
        *,
        replayed: bool = False,
        windows: OpenWindows | None = None,
    ) -> ChainResult:
        """Take rows through all reducers.

        Args:
            reason: why the chunk ends here.
            replayed: an earlier attempt may have written these rows.
            windows: the open windows of the partition, if a `Window` is among the reducers.

        Raises:
            KmrError: a reducer's error, when `on_error` is `stop` or a retry cannot succeed.
        """
        self._outcome = ChainResult()
        self._write, self._windows = Write(repeated=replayed), windows
        try:
            for rows in chunk:
                await self._feed(0 if rows.closes is None else self._after_window, rows)
            for stage in range(len(self._buffers)):
                await self._flush(stage, reason)
        except BaseException:
            for buffer in self._buffers:
                buffer.clear()
            raise
        return self._outcome

    async def _feed(self, stage: int, rows: Rows) -> None:
        """Add rows to a stage, and flush it each time a limit is reached."""
        if stage == len(self._buffers):
            self._outcome.out.append(rows)
            return
        if isinstance(self._buffers[stage].reducer, Window):
            await self._take(stage, rows)
            return
        rest: Rows | None = rows
        while rest is not None:
            rest, reason = self._buffers[stage].add(rest)
            if reason is not None:
                await self._flush(stage, reason)

    async def _take(self, stage: int, rows: Rows) -> None:
        """Add rows to the open windows; pass on the rows of those that close."""
        assert self._windows is not None  # noqa: S101  a strategy with a window has them
        closed, failed = await run_in_thread(self._windows.take, rows, self._stages[stage])
        self._outcome.failed += failed
        if closed is not None:
            await self._feed(stage + 1, closed)

    async def _flush(self, stage: int, reason: FlushReason) -> None:
        buffer, name = self._buffers[stage], self._stages[stage]
        if not buffer.held:
            return
        begun = time.monotonic()
        outcome = await retry_flush(
            partial(_attempt, buffer, name, self._write),
            name,
            lambda _: self._outcome.retries.update([name]),
        )
        seconds = time.monotonic() - begun
        self._outcome.flushes.append(StageFlush(name, reason, buffer.rows, buffer.bytes, seconds))
        self._outcome.failed += outcome.failed
        buffer.clear()
        if outcome.forward is not None:
            await self._feed(stage + 1, outcome.forward)


async def _attempt(buffer: Buffer, name: str, write: Write, number: int) -> FlushOutcome:
    """Flush once; convert the reducer's own error, so that Spark repeats no task for it."""
    try:
        return await attempt_flush(buffer, name, number, write)
    except (KmrError, Retry):
        raise
    except Exception as error:
        failed = type(buffer.reducer).__name__
        raise SinkError(f"{name}: {failed} failed: {reason_of(error)}") from error


def _spawn(reducer: Reducer) -> Reducer:
    copied = copy.deepcopy(reducer)
    if capabilities_of(copied).names_ranges:
        copied.max_rows = copied.max_bytes = None
    return copied
