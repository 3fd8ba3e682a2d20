"""An attempt to flush: what a reducer's answer, or its exception, means, and when to try again.

The policy of both engines: a stage of the worker (`framework.reduce`) and a task on Spark
(`framework.spark.chain`) differ in what they wait for and in what they settle, not in this.
"""

from __future__ import annotations

import inspect
import random
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from anyio import to_thread

from framework.errors import KmrError, SinkError
from framework.failures import original_records
from framework.ranges import subtract_ranges
from framework.record import Rows
from framework.reducer import Empty, Flushed, Poisoned, Retry
from framework.results import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from framework.buffer import Buffer
    from framework.record import Range
    from framework.reducer import FlushResult

__all__ = ["Delivered", "attempt_flush", "delivered", "pause_before"]

_FIRST_BACKOFF: Final = 0.1
_LAST_BACKOFF: Final = 30.0
_MOST_DOUBLINGS: Final = 20  # far beyond the last backoff; keeps the power small


class Delivered(NamedTuple):
    """What became of the rows of a flush.

    Attributes:
        forward: rows for the next reducer; None if there are none.
        ranges: the offsets behind the flush, without those that failed.
        failed: the records that the reducer refused, for the error sink.
    """

    forward: Rows | None
    ranges: tuple[Range, ...]
    failed: list[Rows]


async def attempt_flush(buffer: Buffer, stage: str, *, again: bool = True) -> FlushResult:
    """Call the reducer's flush once; an exception becomes what `on_error` says.

    Args:
        again: False: rows that may have been written are never written again, so `retry` means
            `divert` after an exception.

    Raises:
        Exception: the reducer's own, when `on_error` says stop; KmrErrors also when it says retry: they
            are for the user to mend.
        SinkError: it returned something else than a result.
    """
    reducer = buffer.reducer
    try:
        if inspect.iscoroutinefunction(reducer.flush):
            result: FlushResult = await reducer.flush()
        else:
            result = await to_thread.run_sync(cast("Callable[[], FlushResult]", reducer.flush))
    except Exception as error:
        if reducer.on_error == "divert" or (reducer.on_error == "retry" and not again):
            why = reason_of(error)
            return Flushed(poisoned=[Poisoned(rows, why) for rows in buffer.held])
        if reducer.on_error == "stop" or isinstance(error, KmrError):
            raise
        return Retry(None, reason_of(error))
    if not isinstance(result, Flushed | Empty | Retry):
        raise SinkError(
            f"{stage}: {type(reducer).__name__}.flush returned {type(result).__name__}; "
            "return Flushed(...), Empty() or Retry(...)"
        )
    return result


def pause_before(retry: Retry, attempt: int) -> float:
    """Seconds until the next attempt, when this one was the given number, counted from 1."""
    if retry.after is not None:
        return retry.after
    ceiling = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS))
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311  spreads retries, nothing secret


def delivered(buffer: Buffer, result: Flushed | Empty, stage: str, attempt: int) -> Delivered:
    """Divide what a reducer made of its rows into what goes on, and what it refused.

    Raises:
        SinkError: rows were refused that name no sources.
    """
    if isinstance(result, Empty):
        result = Flushed()
    failed = [
        records
        for poisoned in result.poisoned
        for records in original_records(poisoned.rows, poisoned.reason, stage, attempt)
    ]
    ranges = subtract_ranges(buffer.ranges(), (r for rows in failed for r in rows.ranges))
    if result.out is None or result.out.num_rows == 0:
        return Delivered(None, ranges, failed)
    return Delivered(Rows(result.out, ranges, None, buffer.sources()), ranges, failed)
