"""Reducers that make rows of rows: larger ones, or whatever a function of the user makes of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from anyio import to_thread

from framework.errors import StrategyError
from framework.reducer import Empty, Flushed, FlushResult, Reducer
from framework.reducers.tables import one_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from framework.record import Rows

__all__ = ["Batcher", "Collect", "Collecting"]


class Collecting(Reducer):
    """A reducer that keeps its rows until they are flushed: the base of most reducers.

    Takes the limits and policies of `Reducer`.
    """

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.rows: list[Rows] = []

    def add(self, rows: Rows) -> None:
        self.rows.append(rows)

    def reset(self) -> None:
        self.rows = []


class Batcher(Collecting):
    """Puts the rows of many batches together, for a next reducer that wants few and large ones.

    Takes the limits and policies of `Reducer`; they decide how large.
    """

    def flush(self) -> FlushResult:
        if not self.rows:
            return Empty()
        return Flushed(out=one_table(self.rows).combine_chunks())


class Collect(Collecting):
    """Gives everything that was collected to a function, and what it returns to the next reducer.

    Args:
        function: called with a `pyarrow.Table`; returns a table (or a record batch) of rows for the
            next reducer, or None when there are none, for example because it delivered them itself.
            A plain function runs in a thread; it may be `async def`. When it raises, `on_error`
            decides; a retry calls it with the same rows.
        limits: the limits and policies of `Reducer`.

    Raises:
        StrategyError: from `flush`: it returned something else.
    """

    def __init__(self, function: Callable[[pa.Table], Any], **limits: Any) -> None:
        super().__init__(**limits)
        self.function = function

    async def flush(self) -> FlushResult:
        if not self.rows:
            return Empty()
        table = one_table(self.rows)
        if inspect.iscoroutinefunction(self.function):
            out = await cast("Callable[[pa.Table], Awaitable[Any]]", self.function)(table)
        else:
            out = await to_thread.run_sync(self.function, table)
        if isinstance(out, pa.RecordBatch):
            out = pa.Table.from_batches([out])
        if out is not None and not isinstance(out, pa.Table):
            name = getattr(self.function, "__qualname__", repr(self.function))
            raise StrategyError(
                f"Collect({name}): the function returned {type(out).__name__}; "
                "return a pyarrow Table or RecordBatch, or None"
            )
        return Flushed(out=out)
