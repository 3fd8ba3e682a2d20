"""A strategy's reducers inside a task, or in the driver: the contract of the worker, one chunk at a time.

Where the worker's stages collect for as long as their limits allow, everything that a chunk brings is
flushed through all reducers before the next chunk: a task may end, or be repeated, after each.
"""

from __future__ import annotations

import inspect
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import structlog
from anyio import to_thread

from framework.buffer import Buffer
from framework.errors import KmrError, SinkError
from framework.failures import original_records
from framework.ranges import subtract_ranges
from framework.record import Rows
from framework.reducer import Empty, Flushed, Poisoned, Reducer, Retry
from framework.results import reason_of
from framework.sinks.clickhouse import ClickHouseWriter
from framework.sinks.spark import SparkWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from framework.reducer import Context, FlushResult

__all__ = ["NAMES_RANGES", "Chain", "Flush", "Summary"]

_log = structlog.get_logger(__name__)

_FIRST_BACKOFF: Final = 0.1
_LAST_BACKOFF: Final = 30.0

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
class Summary:
    """What happened while rows went through a chain."""

    flushes: list[Flush] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)


class Chain:
    """Reducers, each feeding the next. Use it from one event loop, one call at a time.

    Args:
        stages: their names, as in metrics and logs.
    """

    def __init__(self, reducers: Sequence[Reducer], stages: Sequence[str]) -> None:
        self._stages = list(stages)
        self._buffers = [Buffer(_spawn(reducer)) for reducer in reducers]
        self._failed: list[Rows] = []
        self._summary = Summary()

    async def open(self, context: Context) -> None:
        """Connect all. Raises StrategyError for what the user must mend."""
        for stage, buffer in zip(self._stages, self._buffers, strict=True):
            await buffer.reducer.open(replace(context, stage=stage))

    async def close(self) -> None:
        """Disconnect all, also after a failure."""
        for buffer in self._buffers:
            await buffer.reducer.close()

    async def deliver(self, rows: Rows, reason: str) -> tuple[list[Rows], Summary]:
        """Take rows through all reducers; returns the records that a sink can never take.

        Args:
            reason: why the chunk ends here.

        Raises:
            KmrError: a reducer's error, when `on_error` says stop or a retry cannot mend it.
        """
        self._failed, self._summary = [], Summary()
        try:
            await self._feed(0, rows)
            for stage in range(len(self._buffers)):
                await self._flush(stage, reason)
        except BaseException:
            for buffer in self._buffers:
                buffer.clear()
            raise
        return self._failed, self._summary

    async def _feed(self, stage: int, rows: Rows) -> None:
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
            after = _pause(result, attempt)
            if result.reason != trouble:
                trouble = result.reason
                _log.warning(
                    "flush failed, trying again", stage=name, reason=trouble, seconds=after
                )
            self._summary.retries[name] += 1
            await anyio.sleep(after)
        seconds = time.monotonic() - begun
        self._summary.flushes.append(Flush(name, reason, buffer.rows, buffer.bytes, seconds))
        out = self._delivered(buffer, name, result, attempt)
        buffer.clear()
        if out is not None and stage + 1 < len(self._buffers):
            await self._feed(stage + 1, out)

    def _delivered(
        self, buffer: Buffer, name: str, result: Flushed | Empty, attempt: int
    ) -> Rows | None:
        """What goes on to the next reducer; what was refused is kept for the error sink."""
        if isinstance(result, Empty):
            return None
        failed = [
            records
            for poisoned in result.poisoned
            for records in original_records(poisoned.rows, poisoned.reason, name, attempt)
        ]
        self._failed += failed
        if result.out is None or result.out.num_rows == 0:
            return None
        ranges = subtract_ranges(buffer.ranges(), (r for rows in failed for r in rows.ranges))
        return Rows(result.out, ranges, None, buffer.sources())

    async def _attempt(self, buffer: Buffer, name: str) -> FlushResult:
        """One call of the reducer's flush; its exceptions become what the policy says."""
        reducer = buffer.reducer
        try:
            if inspect.iscoroutinefunction(reducer.flush):
                result: Any = await reducer.flush()
            else:
                result = await to_thread.run_sync(cast("Callable[[], FlushResult]", reducer.flush))
        except Exception as error:
            if reducer.on_error == "divert":
                why = reason_of(error)
                return Flushed(poisoned=[Poisoned(rows, why) for rows in buffer.held])
            if isinstance(error, KmrError):
                raise
            if reducer.on_error == "stop":
                raise SinkError(
                    f"{name}: {type(reducer).__name__} failed: {reason_of(error)}"
                ) from error
            return Retry(None, reason_of(error))
        if isinstance(result, Flushed | Empty | Retry):
            return result
        raise SinkError(
            f"{name}: {type(reducer).__name__}.flush returned {type(result).__name__}; "
            "return Flushed(...), Empty() or Retry(...)"
        )


def _spawn(reducer: Reducer) -> Reducer:
    copy = reducer.spawn()
    if isinstance(copy, NAMES_RANGES):
        copy.max_rows = copy.max_bytes = None
    return copy


def _pause(retry: Retry, attempt: int) -> float:
    if retry.after is not None:
        return retry.after
    ceiling = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2.0 ** min(attempt - 1, 20))
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311  spreads retries, nothing secret
