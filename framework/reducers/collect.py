"""Reducers that make new rows: `Batcher` joins them, `Collect` applies a function of the user."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Unpack, cast

import pyarrow as pa

from ..columns.column_types import joined_rows
from ..errors import StrategyError
from ..service.threads import run_in_thread
from ..tagged_rows import is_tagged, join_tagged
from .reducer import Reducer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..record import Rows
    from .reducer import Limits


def one_table(rows: Sequence[Rows]) -> pa.Table:
    """Join rows, in order, to one table; a column that only some have is null in the others.

    Different types of a column become the wider one (int32 and int64, a type and null).

    Raises:
        MixedTypes: a column has incompatible types, such as numbers and text. Raised from `flush`, it sends
            the rows that do not fit to `reduce_err`, and `flush` is called again without them.
        StrategyError: a value does not fit the wider type.
    """
    tables = [each.table for each in rows]
    if tables and is_tagged(tables[0].schema):
        return join_tagged(tables, joined_rows)
    return joined_rows(tables)


class Collecting(Reducer):
    """A reducer that keeps its rows until they are flushed: the base of most reducers.

    Takes the limits and policies of `Reducer`.
    """

    def __init__(self, **limits: Unpack[Limits]) -> None:
        super().__init__(**limits)
        self.rows: list[Rows] = []

    def add(self, rows: Rows) -> None:
        self.rows.append(rows)

    def reset(self) -> None:
        self.rows = []


class Batcher(Collecting):
    """Joins the rows of many batches to larger ones for the next reducer.

    Takes the limits and policies of `Reducer`; they set the size.

    Example:
        ```python
        from kmr import Batcher
        from kmr.sinks import ParquetWriter

        reduce = [Batcher(max_rows=500_000, max_age=60), ParquetWriter("hits")]
        ```
    """

    keeps_rows = True

    def flush(self) -> pa.Table:
        return one_table(self.rows).combine_chunks()


class Collect(Collecting):
    """Applies a function to all collected rows, and sends its result to the next reducer.

    Example:
        ```python
        from kmr import Collect

        largest = Collect(lambda rows: rows.sort_by([("size", "descending")]).slice(0, 10), max_age=60)
        ```

    Args:
        function: called with a `pyarrow.Table`; returns a table (or a record batch) of rows for the
            next reducer, or None if there are none, for example because it delivered them itself.
            A plain function runs in a thread; it may be `async def`. An exception is handled by
            `on_error`; a retry calls it with the same rows.
        limits: the limits and policies of `Reducer`.

    Raises:
        StrategyError: from `flush`: the function returned another type.
    """

    def __init__(self, function: Callable[[pa.Table], Any], **limits: Unpack[Limits]) -> None:
        super().__init__(**limits)
        self.function = function

    async def flush(self) -> pa.Table | None:
        table = one_table(self.rows)
        if inspect.iscoroutinefunction(self.function):
            out = await cast("Callable[[pa.Table], Awaitable[Any]]", self.function)(table)
        else:
            out = await run_in_thread(self.function, table)
        if isinstance(out, pa.RecordBatch):
            out = pa.Table.from_batches([out])
        if out is not None and not isinstance(out, pa.Table):
            name = getattr(self.function, "__qualname__", repr(self.function))
            raise StrategyError(
                f"Collect({name}): the function returned {type(out).__name__}; "
                "return a pyarrow Table or RecordBatch, or None"
            )
        return out
