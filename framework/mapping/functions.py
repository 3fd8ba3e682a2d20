"""The decorators that mark map functions, and how a marked function is applied to a batch.

The decorators return the function unchanged, so that tests can call it and pickle finds it by name.
Both engines use `apply` and `apply_async`.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ..errors import StrategyError, reason_of
from ..record import to_records
from .results import NO_OFFSETS, Failure, MapResult, from_columns, from_rows, join, rows_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import pyarrow as pa

__all__ = ["MapSpec", "apply", "apply_async", "map_batch", "map_record", "spec_of"]

F = TypeVar("F", bound="Callable[..., Any]")
MARK = "__kmr_map__"


@dataclass(frozen=True, slots=True)
class MapSpec:
    """How a marked function is called.

    Attributes:
        per: one call per `record`, or one per `batch`.
        is_async: the function is a coroutine function; its calls are awaited on the event loop, in order.
        schema: the columns that a per-record function returns; None infers them from each batch.
    """

    per: Literal["record", "batch"]
    is_async: bool
    schema: pa.Schema | None = None


@overload
def map_record(function: F) -> F: ...
@overload
def map_record(*, schema: pa.Schema | None = None) -> Callable[[F], F]: ...
def map_record(
    function: F | None = None, *, schema: pa.Schema | None = None
) -> F | Callable[[F], F]:
    """Mark a function that is called with one `Record` at a time.

    It returns a `dict` (one row), a list or another iterable of dicts (several rows), or None (the
    record is filtered). A record for which it raises goes to `reduce_err`. The function may be
    `async def`.

    Args:
        function: the function, when the decorator is used without arguments.
        schema: the Arrow schema of the rows. Without it the types are inferred from each batch: in each
            column the type that fits most values wins (`kmr.column_types` has the order of equals), and a
            record with a value that does not fit goes to `reduce_err`. Where batches end depends on what
            was fetched, so a value may fit in one batch and not in another: ClickHouse and other sinks
            with typed columns refuse such values themselves, and reducers that join batches let most
            values decide again. Only with a schema a record always has the same fate.
    """

    def mark(function: F) -> F:
        setattr(function, MARK, MapSpec("record", _is_async(function), schema))
        return function

    return mark if function is None else mark(function)


def map_batch(function: F) -> F:
    """Mark a function that is called with one `pyarrow.RecordBatch` at a time.

    The columns are those of `kmr.record.SCHEMA`. It returns a `RecordBatch` or `Table` that keeps
    the `offset` column, which names the record that each row came from; or a pair of columns and `keep`,
    the input row (from 0) that each output row came from, or a mask of the input rows; or None, when
    every record is filtered. When it raises, the batch is bisected, so that only the records that make
    it raise fail. It may be `async def`.
    """
    setattr(function, MARK, MapSpec("batch", _is_async(function)))
    return function


def spec_of(function: object) -> MapSpec:
    """Return how `function` was marked. Raises StrategyError if it was not."""
    spec = getattr(function, MARK, None)
    if not isinstance(spec, MapSpec):
        name = getattr(function, "__qualname__", repr(function))
        raise StrategyError(f"map={name} is not marked; decorate it with @map_record or @map_batch")
    return spec


def apply(function: Callable[..., Any], records: pa.RecordBatch) -> MapResult:
    """Apply a marked plain function to the records of one batch.

    Raises:
        StrategyError: the function returned a value that cannot become rows.
    """
    calls = _calls(function, records)
    try:
        argument = next(calls)
        while True:
            try:
                result = function(argument)
            except Exception as error:  # noqa: BLE001  the user's function may raise anything
                argument = calls.throw(error)
            else:
                argument = calls.send(result)
    except StopIteration as end:
        mapped: MapResult = end.value
        return mapped


async def apply_async(
    function: Callable[..., Awaitable[Any]], records: pa.RecordBatch
) -> MapResult:
    """Apply a marked coroutine function to the records of one batch, one call after the other.

    Raises:
        StrategyError: the function returned a value that cannot become rows.
    """
    calls = _calls(function, records)
    try:
        argument = next(calls)
        while True:
            try:
                result = await function(argument)
            except Exception as error:  # noqa: BLE001
                argument = calls.throw(error)
            else:
                argument = calls.send(result)
    except StopIteration as end:
        mapped: MapResult = end.value
        return mapped


Calls = Generator[Any, Any, MapResult]


def _calls(function: Callable[..., Any], records: pa.RecordBatch) -> Calls:
    """Yield the argument of each call, and receive its result (`send`) or its exception (`throw`).

    This leaves only the call itself to `apply` and `apply_async`.
    """
    spec = spec_of(function)
    if spec.per == "record":
        return _record_calls(function, records, spec.schema)
    return _batch_calls(function, records)


def _record_calls(
    function: Callable[..., Any], records: pa.RecordBatch, schema: pa.Schema | None
) -> Calls:
    rows: list[Mapping[str, Any]] = []
    offsets: list[int] = []
    failures: list[Failure] = []
    for record in to_records(records):
        try:
            result = yield record
            if type(result) is dict:
                rows.append(result)
                offsets.append(record.offset)
            elif result is not None:
                several = rows_of(function, record.offset, result)
                rows.extend(several)
                offsets.extend([record.offset] * len(several))
        except StrategyError:
            raise
        except Exception as error:  # noqa: BLE001
            failures.append(Failure(record.offset, reason_of(error)))
    return from_rows(schema, rows, offsets, failures)


def _batch_calls(function: Callable[..., Any], records: pa.RecordBatch) -> Calls:
    parts: list[MapResult] = []
    todo = [records] if len(records) else []
    while todo:
        part = todo.pop()
        try:
            result = yield part
        except Exception as error:  # noqa: BLE001
            if len(part) == 1:
                offset = int(part.column("offset")[0].as_py())
                parts.append(MapResult(None, NO_OFFSETS, (Failure(offset, reason_of(error)),)))
            else:
                middle = len(part) // 2
                todo += [part.slice(middle), part.slice(0, middle)]
        else:
            parts.append(from_columns(function, part, result))
    return join(parts)


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ is async too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
