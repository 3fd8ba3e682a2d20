"""One call of a reducer's `flush`, with what it did as a value."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from kmr.reducers.reducer import Retry
from kmr.reducers.sink import NEW, RowsRefused, Sink
from kmr.service.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from kmr.reducers.reducer import Reducer
    from kmr.reducers.sink import Refusal, Write


@dataclass(frozen=True)
class Flushed:
    """A flush that is done: the rows for the next reducer, and those that were refused."""

    out: pa.Table | None = None
    refusals: Sequence[Refusal] = ()


async def outcome(reducer: Reducer, write: Write = NEW) -> Flushed | Retry:
    """Call `flush` as the engines do; return a `Retry` instead of raising it."""
    arguments = (write,) if isinstance(reducer, Sink) else ()
    call: Callable[..., Any] = cast("Any", reducer.flush)
    try:
        if inspect.iscoroutinefunction(call):
            return Flushed(await call(*arguments))
        return Flushed(await run_in_thread(call, *arguments))
    except RowsRefused as refused:
        return Flushed(None, refused.refusals)
    except Retry as retry:
        return retry


def outcome_now(reducer: Reducer) -> Flushed | Retry:
    """Call a plain `flush`, as `outcome` does."""
    try:
        return Flushed(cast("pa.Table | None", reducer.flush()))
    except RowsRefused as refused:
        return Flushed(None, refused.refusals)
    except Retry as retry:
        return retry
