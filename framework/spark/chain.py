"""A strategy's reducers inside a task, or in the driver: the contract of the worker, one chunk at a time.

Where the worker's stages collect for as long as their limits allow, everything that a chunk brings is
flushed through all reducers before the next chunk: a task may end, or be repeated, after each. In the
driver, what a micro-batch brings takes the place of the chunk.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog
from anyio import sleep, to_thread

from framework.attempts import attempt_flush, delivered, pause_before
from framework.buffer import Buffer
from framework.errors import KmrError, SinkError
from framework.reducer import Reducer, Retry
from framework.results import reason_of
from framework.sinks.clickhouse.writer import ClickHouseWriter
from framework.sinks.spark.writer import SparkWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from framework.record import Rows
    from framework.reducer import Context, FlushResult

__all__ = ["NAMES_RANGES", "Chain", "Flush", "Outcome"]

_log = structlog.get_logger(__name__)

NAMES_RANGES: Final = (ClickHouseWriter, SparkWriter)
"""Reducers that name what they write after its offsets: they write a whole chunk, whatever their limits."""


@dataclass(frozen=True, slots=True)
class Flush:
    """One flush of one reducer; the time includes its retries."""

    stage: str
    reason: str
    rows: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class Outcome:
    """What became of rows that went through a chain.

    Attributes:
        out: what the last reducer made.
        failed: the records that a reducer refused, for the error sink.
        retries: flushes that had to be repeated, by stage.
    """

    out: list[Rows] = field(default_factory=list)
    failed: list[Rows] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)


class Chain:
    """Reducers, each feeding the next. Use it from one event loop, one call at a time.

    Args:
        reducers: by the names of their stages, as in metrics and logs. Without any, rows come out as
            they went in.
    """

    def __init__(self, reducers: Mapping[str, Reducer]) -> None:
        self._stages = list(reducers)
        self._buffers = [Buffer(_spawn(reducer)) for reducer in reducers.values()]
        self._outcome = Outcome()

    async def open(self, context: Context) -> None:
        """Connect all. Raises StrategyError for what the user must mend."""
        for stage, buffer in zip(self._stages, self._buffers, strict=True):
            await buffer.reducer.open(replace(context, stage=stage))

    async def close(self) -> None:
        """Disconnect all, also after a failure."""
        for buffer in self._buffers:
            await buffer.reducer.close()

    async def deliver(self, chunk: Iterable[Rows], reason: str) -> Outcome:
        """Take rows through all reducers.

        Args:
            reason: why the chunk ends here.

        Raises:
            KmrError: a reducer's error, when `on_error` says stop or a retry cannot mend it.
        """
        self._outcome = Outcome()
        try:
            for rows in chunk:
                await self._feed(0, rows)
            for stage in range(len(self._buffers)):
                await self._flush(stage, reason)
        except BaseException:
            for buffer in self._buffers:
                buffer.clear()
            raise
        return self._outcome

    async def _feed(self, stage: int, rows: Rows) -> None:
        if stage == len(self._buffers):
            self._outcome.out.append(rows)
            return
        buffer = self._buffers[stage]
        rest: Rows | None = rows
        while rest is not None:
            rest = buffer.add(rest)
            reason = buffer.full() or ("bytes" if rest is not None else None)
            if reason is not None:
                await self._flush(stage, reason)

    async def _flush(self, stage: int, reason: str) -> None:
        buffer, name = self._buffers[stage], self._stages[stage]
        if not buffer.held:
            return
        begun, attempt, trouble = time.monotonic(), 0, ""
        while True:
            attempt += 1
            result = await self._attempt(buffer, name)
            if not isinstance(result, Retry):
                break
            after = pause_before(result, attempt)
            if result.reason != trouble:
                trouble = result.reason
                _log.warning(
                    "flush failed, trying again", stage=name, reason=trouble, seconds=after
                )
            self._outcome.retries[name] += 1
            await sleep(after)
        seconds = time.monotonic() - begun
        self._outcome.flushes.append(Flush(name, reason, buffer.rows, buffer.bytes, seconds))
        # In a thread: the driver reads the records behind rows that were refused once more.
        made = await to_thread.run_sync(delivered, buffer, result, name, attempt)
        self._outcome.failed += made.failed
        buffer.clear()
        if made.forward is not None:
            await self._feed(stage + 1, made.forward)

    async def _attempt(self, buffer: Buffer, name: str) -> FlushResult:
        """One attempt; the reducer's own error becomes one that no other task needs to try again."""
        try:
            return await attempt_flush(buffer, name)
        except KmrError:
            raise
        except Exception as error:
            failed = type(buffer.reducer).__name__
            raise SinkError(f"{name}: {failed} failed: {reason_of(error)}") from error


def _spawn(reducer: Reducer) -> Reducer:
    copy = reducer.spawn()
    if isinstance(copy, NAMES_RANGES):
        copy.max_rows = copy.max_bytes = None
    return copy
