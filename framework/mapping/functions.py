"""The decorators that mark map functions, and how a marked function is applied to a batch.

The decorators return the function unchanged, so that tests can call it and pickle finds it by name.
Both engines use `apply` and `apply_async`.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import pyarrow as pa

from ..arguments import checked
from ..columns.kinds import has_values
from ..config.schema import Duration, parse_duration
from ..errors import StrategyError, as_exception
from ..frames import check_kind, frame_maker
from ..lookups.table import NoRow
from ..record import RECORD_OFFSET, SCHEMA
from ..service.forks import ends_forks
from ..service.threads import run_in_thread
from ..values.schemas import row_type
from .annotations import frame_of, row_class_of
from .branching import join
from .calls import CallOptions
from .collecting import CollectedRows
from .concurrency import CallOutcome, Repeated, make_calls, make_calls_async
from .dividing import DividedRows
from .inputs import RAW, Inputs
from .results import (
    NO_OFFSETS,
    Failure,
    MapResult,
    columns_of,
    from_columns,
    tables_of,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ..frames import Frame
    from ..values.schemas import RowType
    from .branching import Branching
    from .calls import Retries
    from .inputs import Arguments
    from .stop import Stop

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")
MARK = "__kmr_map__"


@dataclass(frozen=True, slots=True)
class MapSpec:
    """How a marked function is called.

    Attributes:
        per: one call per `record`, or one per `batch`; `value`: there is no function, the columns of the
            values are the rows; `result`: the function is called with the records and `stop`, and returns a
            `MapResult` (`kmr.dead_letters.replay`).
        is_async: the function is a coroutine function; its calls are awaited on the event loop, in order.
        schema: the columns that a per-record function returns; None infers them from each batch.
        row_class: the class of the rows that a per-record function returns, if its annotation names one.
        inputs: how records become the arguments.
        calls: how the calls of a per-record function are made; None: one after the other, each once.
        branching: how rows find their branches; None: there are none.
        frame: what a per-batch function is called with (`kmr.frames`).
        across: a per-batch function may be called with records of several partitions.
        sink_types: what sinks store, by branch ("" without branches) and column; known when they are open.
    """

    per: Literal["record", "batch", "value", "result"]
    is_async: bool
    schema: pa.Schema | None = None
    row_class: type | None = None
    inputs: Inputs = RAW
    calls: CallOptions | None = None
    branching: Branching | None = None
    frame: str = "pyarrow"
    across: bool = False
    sink_types: dict[str, Mapping[str, pa.DataType]] = field(default_factory=dict, compare=False)

    def caller(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of one item of each of `Arguments.lists`, or of a batch."""
        if self.frame != "pyarrow":
            make = frame_maker(self.frame)
            return lambda batch: function(make(batch))
        return self.inputs.caller(function)

    def columns(
        self, records: pa.RecordBatch, numbered: pa.RecordBatch | None = None
    ) -> tuple[pa.RecordBatch, list[Failure]]:
        """Return the columns for a per-batch function, as `Inputs.columns` does.

        The column `offset` never names the records of a function that takes those of several partitions.
        """
        return self.inputs.columns(
            records, records if self.across and numbered is None else numbered
        )

    @property
    def row_type(self) -> RowType | None:
        """The rows of a per-record function as columns, if its annotation names their class."""
        return None if self.row_class is None else row_type(self.row_class)


@overload
def map_record(function: F) -> F: ...
@overload
def map_record(
    *,
    schema: pa.Schema | None = None,
    concurrency: int = 1,
    retry: Retries | None = None,
    timeout: Duration | None = None,
    rate_limit: float | None = None,
) -> Callable[[F], F]: ...
@checked("map_record")
def map_record(
    function: F | None = None,
    *,
    schema: pa.Schema | None = None,
    concurrency: int = 1,
    retry: Retries | None = None,
    timeout: Duration | None = None,
    rate_limit: float | None = None,
) -> F | Callable[[F], F]:
    """Give options to a per-record map. A plain function is called with one record at a time, too.

    Its argument is a `Record`; or, in a strategy with `value=`, the value as an object of the user's type,
    and the `Record` too if it has a second parameter. It returns a row, a list or another iterable of rows,
    or None (the record is filtered). A row is a dict, a msgspec Struct, a dataclass or a pydantic model. A
    record for which it raises goes to `reduce_err`. The function may be `async def`.

    Example:
        ```python
        import msgspec
        from kmr import map_record

        @map_record
        def words(record):
            for word in record.value.decode().split():
                yield {"word": word, "at": record.timestamp}

        @map_record(concurrency=64, timeout=5)
        async def checked(record):
            return msgspec.json.decode(record.value)
        ```

    Args:
        function: the function, when the decorator is used without arguments.
        schema: the Arrow schema of the rows. Without it, the return annotation is the schema if it names a
            class of rows (`-> Row | None`, `-> list[Row]`, `-> Iterator[Row]`; also a TypedDict). Without
            that too, the types are inferred from each batch: in each column the type that fits most values
            wins (`kmr.columns.column_types` has the order of equals), and a
            record with a value that does not fit goes to `reduce_err`. Where batches end depends on what
            was fetched, so a value may fit in one batch and not in another: ClickHouse and other sinks
            with typed columns refuse such values themselves, and reducers that join batches let most
            values decide again. Only with a schema a record always has the same fate.
        concurrency: how many records of a partition are mapped at a time: in tasks if the function is
            `async def`, else in threads. Rows keep the order of their records.
        retry: which calls are repeated before the record counts as failed.
        timeout: for one call, which then fails with TimeoutError: seconds, or "5s". Only for `async def`: a
            thread cannot be stopped, so give a plain function's client its own timeout.
        rate_limit: the most calls in a second, repetitions included. It holds for each process: for a
            worker, but with `executor = "process"` and on Spark for each of their processes.

    Raises:
        StrategyError: an option is not allowed.
    """
    seconds = None if timeout is None else parse_duration(timeout, "map_record: timeout")
    options = CallOptions(concurrency, retry, seconds, rate_limit)
    calls = None if options == CallOptions() else options

    def mark(function: F) -> F:
        return _marked(function, _per_record(_require_function(function), schema, calls))

    return mark if function is None else mark(function)


@overload
def map_batch(function: F) -> F: ...
@overload
def map_batch(*, input: Frame | None = None, across: bool = False) -> Callable[[F], F]: ...
@checked("map_batch")
def map_batch(
    function: F | None = None,
    *,
    input: Frame | None = None,  # noqa: A002  the word of the users
    across: bool = False,
) -> F | Callable[[F], F]:
    """Mark a function that is called with the columns of many records at a time.

    The columns are those of `kmr.types.SCHEMA`; or, in a strategy with `value=` or `key=`, those of the
    value and the key, and topic, partition, offset, timestamp, key and headers of the record, except where
    the value has a field of that name. The column `kmr_offset` names the record of each row.

    It returns a table that keeps `kmr_offset`, which is not written: rows may be dropped, repeated and
    ordered anew. Or it returns a pair of a table and `keep`, the input row (from 0) that each output row
    came from, or a mask of the input rows; or None, when every record is filtered. A table is anything
    with Arrow's PyCapsule interface: of pyarrow, Polars, DuckDB, pandas, nanoarrow. When the function
    raises, the batch is bisected, so that only the records that make it raise fail. It may be `async def`.

    Example:
        ```python
        import pyarrow.compute as pc
        from kmr import map_batch

        @map_batch
        def errors(hits):  # with value=Json(Hit): the columns of Hit, and topic, partition, offset, ...
            return hits.filter(pc.greater_equal(hits["status"], 500)).select(["path", "kmr_offset"])
        ```

    Args:
        function: the function, when the decorator is used without arguments.
        input: what it is called with: a `pyarrow` RecordBatch, a `polars` DataFrame, a `pandas` DataFrame
            or a `duckdb` relation. None: as the parameter is annotated, else pyarrow; there `pa.Table` and
            `polars.LazyFrame` are known, too.
        across: it may be called with records of several partitions of a topic at a time, when they have
            few each: one call for all costs less than one for each. `kmr_offset` is then the number of the
            record in the call, so the table has to keep it, or `keep` is returned; `topic`, `partition` and
            `offset` are those of the record, as always. Partitions wait for a call together.

    Raises:
        StrategyError: the input is unknown, or its library is not installed.
    """

    def mark(function: F) -> F:
        frame = input or frame_of(_require_function(function)) or "pyarrow"
        check_kind(frame)
        return _marked(function, MapSpec("batch", _is_async(function), frame=frame, across=across))

    return mark if function is None else mark(function)


def _per_record(
    function: object, schema: pa.Schema | None = None, calls: CallOptions | None = None
) -> MapSpec:
    row_class = row_class_of(function) if schema is None else None
    if row_class is not None:
        row_type(row_class)
    is_async = _is_async(function)
    if calls is not None and calls.timeout is not None and not is_async:
        raise StrategyError(
            f"timeout={calls.timeout:g} needs an async function: a thread cannot be stopped; "
            "set a timeout of the client that the function uses"
        )
    return MapSpec("record", is_async, schema, row_class, calls=calls)


def spec_of(function: object) -> MapSpec:
    """Return how a map is called: as it is marked, else once for each record.

    Raises:
        StrategyError: it cannot be called.
    """
    spec = getattr(function, MARK, None)
    if isinstance(spec, MapSpec):
        if spec.per != "record" or spec.schema is not None or spec.row_class is not None:
            return spec
        # Its class of rows may be defined after it.
        return _per_record(function, calls=spec.calls)
    return _per_record(_require_function(function))


def _require_function(function: T) -> T:
    if callable(function) and not isinstance(function, type):
        return function
    raise StrategyError(
        f"map={function!r} is not a function; pass one that takes a record and returns a row, or None"
    )


def _marked(function: F, spec: MapSpec) -> F:
    try:
        setattr(function, MARK, spec)
    except AttributeError:
        raise StrategyError(
            f"{function!r} cannot be decorated; define a function that calls it"
        ) from None
    return function


@ends_forks
def apply(
    function: Callable[..., Any] | None,
    records: pa.RecordBatch,
    spec: MapSpec | None = None,
    stop: Stop | None = None,
    numbered: pa.RecordBatch | None = None,
) -> MapResult:
    """Apply a marked plain function to the records of one batch.

    Args:
        function: None if the columns of the values are the rows.
        spec: how it is called; None: as it is marked.
        stop: ends a per-record map before its next record, a per-batch map before its call. The result says
            what is left (`MapResult.rest`).
        numbered: the same records with other numbers in the place of their offsets, which the result has
            then: for records of several partitions. Not for per-record functions.

    Raises:
        StrategyError: the function returned a value that cannot become rows.
    """
    if stop is not None and stop.requested:
        return _unmapped(records)
    if function is None:
        return (spec or VALUES).inputs.rows(records if numbered is None else numbered)
    spec = spec or spec_of(function)
    if spec.per == "result":
        mapped: MapResult = function(records, stop)
        return mapped
    call = spec.caller(function)
    if spec.per == "batch":
        columns, failures = spec.columns(records, numbered)
        return _run(_batch_calls(function, spec, columns, failures), call)
    if spec.calls is not None:
        arguments = spec.inputs.arguments(records)
        outcomes = make_calls(_of_items(call), arguments.items, spec.calls, stop)
        return _of_outcomes(spec, arguments, outcomes)
    rows = _collected(spec)
    undecoded: list[Failure] = []
    parts = spec.inputs.parts(records)
    done, rest = 0, None
    while rest is None:
        try:
            part = parts.popleft()
        except IndexError:  # all are mapped, or `stop` has emptied the queue just now
            break
        arguments = spec.inputs.arguments(part, later=True)
        if stop is not None:
            stop.watch(arguments.first, parts)
        calls = rows.call_each(call, arguments.lists, arguments.offsets, arguments.decoding)
        undecoded += arguments.failures
        rest = _first_left(arguments, calls)
        rows.gather()
        done += len(part)
    if stop is not None:
        stop.ended()
    if rest is None and done < len(records):
        rest = records.column("offset")[done].as_py()
    return _converted(spec, rows, undecoded, rest)


def _of_items(call: Callable[..., T]) -> Callable[[Any], T]:
    """Return a function of one item of `Arguments.items`."""
    return lambda items: call(*items)


def _run(calls: Calls, function: Callable[[Any], Any]) -> MapResult:
    try:
        argument = next(calls)
        while True:
            try:
                result = function(argument)
            except BaseException as error:  # noqa: BLE001  the user's function may raise anything
                argument = calls.throw(as_exception(error))
            else:
                argument = calls.send(result)
    except StopIteration as end:
        mapped: MapResult = end.value
        return mapped


async def apply_async(
    function: Callable[..., Awaitable[Any]],
    records: pa.RecordBatch,
    spec: MapSpec | None = None,
    stop: Stop | None = None,
    *,
    decode_in_thread: bool = True,
) -> MapResult:
    """Apply a marked coroutine function to the records of one batch, one call after the other.

    Args:
        spec: how it is called; None: as it is marked.
        stop: as for `apply`.
        decode_in_thread: decode the values in a thread, not on the event loop.

    Raises:
        StrategyError: the function returned a value that cannot become rows.
    """
    if stop is not None and stop.requested:
        return _unmapped(records)
    spec = spec or spec_of(function)
    if spec.per == "result":
        made: MapResult = await function(records, stop)
        return made
    call = spec.caller(function)

    async def prepare(step: Callable[[], T]) -> T:
        return await run_in_thread(step, abandon_on_cancel=True) if decode_in_thread else step()

    if spec.per == "record":
        arguments = await prepare(partial(spec.inputs.arguments, records))
        if spec.calls is not None:
            outcomes = await make_calls_async(_of_items(call), arguments.items, spec.calls, stop)
            return _of_outcomes(spec, arguments, outcomes)
        rows = _collected(spec)
        if stop is not None:
            stop.watch(arguments.first)
        count = await rows.await_each(call, arguments.lists, arguments.offsets)
        if stop is not None:
            stop.ended()
        return _converted(spec, rows, arguments.failures, _first_left(arguments, count))
    columns, failures = await prepare(partial(spec.columns, records))
    calls = _batch_calls(function, spec, columns, failures)
    try:
        argument = next(calls)
        while True:
            try:
                result = await call(argument)
            except BaseException as error:  # noqa: BLE001
                argument = calls.throw(as_exception(error))
            else:
                argument = calls.send(result)
    except StopIteration as end:
        mapped: MapResult = end.value
        return mapped


def _unmapped(records: pa.RecordBatch) -> MapResult:
    rest = int(records.column("offset")[0].as_py()) if len(records) else None
    return MapResult(None, NO_OFFSETS, rest=rest)


Calls = Generator[Any, Any, MapResult]


def _collected(spec: MapSpec) -> CollectedRows:
    """Return what calls the function and collects its rows."""
    if spec.branching is not None:
        return DividedRows(spec.branching, _failure)
    return CollectedRows(spec.row_type, _failure, spec.schema, spec.sink_types.get("", {}))


def _first_left(arguments: Arguments, calls: int) -> int | None:
    """Return the first offset that is not mapped, if the calls were stopped after so many."""
    offsets = arguments.offsets
    if calls == len(offsets):
        return None
    return offsets[calls - 1] + 1 if calls else offsets[0]


def _converted(
    spec: MapSpec, collected: CollectedRows, undecoded: list[Failure], rest: int | None
) -> MapResult:
    """Convert the rows to columns. `rest`: the first offset that is not mapped."""
    failures = undecoded + collected.failures
    if rest is not None:
        failures = [failure for failure in failures if failure.offset < rest]
    failures.sort()
    if spec.branching is not None:
        assert isinstance(collected, DividedRows)  # noqa: S101
        mapped = spec.branching.from_rows(collected.branches, failures, spec.sink_types)
    else:
        mapped = collected.columns(failures)
    return mapped if rest is None else replace(mapped, rest=rest)


def _of_outcomes(spec: MapSpec, arguments: Arguments, outcomes: list[CallOutcome]) -> MapResult:
    """Convert the outcomes of the first calls to columns."""
    rows = _collected(spec)
    calls = rows.call_each(CallOutcome.get, (outcomes,), arguments.offsets)
    mapped = _converted(spec, rows, arguments.failures, _first_left(arguments, calls))
    return replace(mapped, retries=sum(each.attempts - 1 for each in outcomes))


def _failure(offset: int, error: Exception) -> Failure:
    if isinstance(error, Repeated):
        return Failure.of(offset, error.error, error.attempts)
    return Failure.of(offset, error)


def _batch_calls(
    function: Callable[..., Any], spec: MapSpec, records: pa.RecordBatch, failures: list[Failure]
) -> Calls:
    parts = [MapResult(None, NO_OFFSETS, tuple(failures))] if failures else []
    todo = [records] if len(records) else []
    while todo:
        part = todo.pop()
        try:
            found = tables_of(function, (yield part), named=spec.branching is not None)
        except StrategyError:
            raise
        except Exception as error:  # noqa: BLE001
            missing = error.records if isinstance(error, NoRow) else {}
            offsets = part.column(RECORD_OFFSET).to_numpy()
            lacks = np.isin(offsets, list(missing))
            if lacks.any():
                failed = offsets[lacks].tolist()
                letters = tuple(_failure(offset, missing[offset]) for offset in failed)
                parts.append(MapResult(None, NO_OFFSETS, letters))
                todo += [] if lacks.all() else [part.filter(pa.array(~lacks))]
            elif len(part) == 1:
                offset = int(part.column(RECORD_OFFSET)[0].as_py())
                parts.append(MapResult(None, NO_OFFSETS, (_failure(offset, error),)))
            else:
                middle = len(part) // 2
                todo += [part.slice(middle), part.slice(0, middle)]
        else:
            made = {name: from_columns(function, part, *each) for name, each in found.items()}
            parts.append(made[""] if spec.branching is None else spec.branching.from_tables(made))
    return join(parts)


def schema_of_batch_map(function: Callable[..., Any] | None, spec: MapSpec) -> pa.Schema | None:
    """Return the columns that a per-batch map makes, by calling it with no rows.

    None where that fails, or where a column has no type without values, as one that is made of a list.
    """
    if function is None or spec.is_async:
        return None
    try:
        batch, _ = spec.columns(pa.RecordBatch.from_pylist([], schema=SCHEMA))
        columns, _ = columns_of(function, spec.caller(function)(batch))
    except Exception:  # noqa: BLE001  the user's function may raise anything
        return None
    if columns is None or not all(has_values(field.type) for field in columns.schema):
        return None
    return pa.schema([field for field in columns.schema if field.name != RECORD_OFFSET])


VALUES = MapSpec("value", is_async=False)
"""The spec of a strategy without a map function: the columns of the values are the rows."""


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ is async too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
