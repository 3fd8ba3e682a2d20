"""The contract of reducers.

A reducer collects rows and flushes them: as new rows for the next reducer, or into a sink
(`kmr.reducers.sink`). The engines do the rest: they count rows, bytes and age, freeze a buffer before its
first flush, retry, settle offsets and apply the policies (`kmr.reducers.flushing`).
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from ..arguments import Checked
from ..config.schema import Duration, parse_duration
from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ..record import Rows, TopicPartition

ERROR_STAGE: Final = "reduce-err"
"""The name of the stage of `reduce_err`."""

WhenFull = Literal["flush", "backpressure"]
OnShutdown = Literal["flush", "drop"]
OnError = Literal["retry", "divert", "stop"]

DEFAULT_MAX_ROWS = 32_768
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
DEFAULT_MAX_AGE = 4.0


class Policies(TypedDict, total=False):
    """The policies of `Reducer`, for reducers that pass them on: `**policies: Unpack[Policies]`."""

    when_full: WhenFull
    on_shutdown: OnShutdown
    on_error: OnError


class SizeLimits(Policies, total=False):
    """The policies and limits of `Reducer`, but for `max_age`."""

    max_rows: int | None
    max_bytes: int | None


class Limits(SizeLimits, total=False):
    """The limits and policies of `Reducer`: `**limits: Unpack[Limits]`. Type checkers find a misspelt one."""

    max_age: Duration | None


def _unknown(_stage: str) -> None:
    """Return no columns."""


def _untold(_stage: str, _types: Mapping[str, pa.DataType]) -> None:
    """Ignore what a sink stores."""


def _uncounted(_stage: str, _what: str, _values: int) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What the writers of `kmr.sinks` need beyond `Context`; it may change with every version.

    Attributes:
        client: options of the Kafka connection (security, client id).
        prepare: whether a sink may alter its table, if its delivery needs that.
        opened: a copy of the reducer that is open already and closes last, whose connection may be
            shared; None except in the lane of a partition.
        session: the `SparkSession` to write with, in the driver of the Spark engine; None elsewhere.
        generations: the generation of each partition's offsets, kept up to date; a part of every
            deduplication token. A partition that is missing has generation 0.
        schema_of: returns the columns of the rows that reach a stage; None if they are not known yet. It
            may block.
        has_schema_ids: the records' values begin with the id of a schema, see `ValueFormat`.
        transactional_id: of this worker, for a sink whose transactions commit the input's offsets.
        session_timeout: seconds after which the group takes the worker's partitions away; None: unknown.
        takes_refused: whether `reduce_err` takes rows that a sink refuses.
        count_left_out: called with a stage, `fields`, `digits` or `rows`, and the number of values that its
            sink left out on purpose.
        tell_types: called with a stage and what its sink stores, by the names of its columns.
    """

    client: Mapping[str, object] = field(default_factory=dict)
    prepare: bool = False
    opened: Reducer | None = None
    session: SparkSession | None = None
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)
    schema_of: Callable[[str], pa.Schema | None] = _unknown
    has_schema_ids: bool = False
    transactional_id: str = ""
    session_timeout: float | None = None
    takes_refused: bool = True
    count_left_out: Callable[[str, str, int], None] = _uncounted
    tell_types: Callable[[str, Mapping[str, pa.DataType]], None] = _untold


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a reducer: the argument of `Reducer.open`.

    Attributes:
        group: the consumer group.
        stage: the stage's name, as in metrics and logs: `reduce-1`, `reduce-err`.
        bootstrap_servers: the brokers that the records come from, `host:port,...`.
        strategy: `module:attribute`; empty if the strategy was not started by its name.
        strategy_version: `Strategy.version`; empty without one.
        for_sinks: for the writers of `kmr.sinks`.
    """

    group: str
    stage: str
    bootstrap_servers: str = ""
    strategy: str = ""
    strategy_version: str = ""
    for_sinks: SinkContext = field(default_factory=SinkContext)

    def with_sinks(self, **changes: Any) -> Context:
        """Return a copy with changes of `for_sinks`."""
        return replace(self, for_sinks=replace(self.for_sinks, **changes))


class Retry(Exception):
    """Raised by `Reducer.flush`: it failed for now, and is called again with the same rows.

    Args:
        reason: why, in one line, for the log and the status.
        after: seconds to wait at least; None: exponential backoff with jitter.
        may_double: rows may have been written that the next call would write once more. With
            `at-most-once` the rows then go to `reduce_err` instead. Set it to False only if nothing was
            written, or if the sink recognises rows that it has.
    """

    def __init__(self, reason: str, *, after: float | None = None, may_double: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after
        self.may_double = may_double


class Reducer(metaclass=Checked):
    """Collects rows and flushes them, into a sink or to the next reducer.

    `max_rows`, `max_bytes` and `max_age` trigger a flush; the policies cover full buffers, shutdown and
    errors. A stage works with deep copies (`copy.deepcopy`) of the reducer in the strategy: while one is
    being flushed, the next one collects. The order of calls on one copy is: `open`, then rounds of `reset`,
    `add` (once or more), `flush` (again after every `Retry`, with nothing added in between), and at last
    `close`. Calls on one copy never overlap.

    Args:
        max_rows: flush when this many rows are collected; a flush never has more, except that the rows
            of one record stay together.
        max_bytes: flush when the collected columns have this size.
        max_age: flush when the oldest collected row has waited this long, in seconds, as text with a
            unit (`"5m"`) or as a `timedelta`. The time for which its record was left at the broker,
            to gather with others, counts.
        when_full: at a limit of rows or bytes, `flush`, or hold back input until `max_age` is reached
            (`backpressure`), or until a rebalance, the drain or another stage waits for the rows.
        on_shutdown: `flush` the collected rows, or `drop` them unsettled: they are delivered again later.
        on_error: after an exception of `flush`, `retry` until it succeeds, `divert` the rows to `reduce_err`,
            or `stop` the worker. With `retry`, a mistake of code or data (`TypeError`, `KeyError`,
            `ValueError`, ...) that comes five times in a row ends the worker.

    Attributes:
        keeps_rows: a flush returns all added rows in their order, so that each row still belongs to its
            record.

    Raises:
        StrategyError: a limit or policy is not allowed.
    """

    keeps_rows: bool = False

    def __init__(
        self,
        *,
        max_rows: int | None = DEFAULT_MAX_ROWS,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        max_age: Duration | None = DEFAULT_MAX_AGE,
        when_full: WhenFull = "flush",
        on_shutdown: OnShutdown = "flush",
        on_error: OnError = "retry",
    ) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        name = type(self).__name__
        self.max_age = None if max_age is None else parse_duration(max_age, f"{name}: max_age")
        self.when_full = when_full
        self.on_shutdown = on_shutdown
        self.on_error = on_error
        _check_limits(self)

    async def open(self, context: Context) -> None:
        """Connect and check. The engine calls it once, on its event loop, before anything is consumed.

        It may take long, but must not block: other reducers open meanwhile. Raise `StrategyError` if the
        strategy does not fit the sink (a missing table, a wrong column): the worker stops with that message.
        """

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Collect rows. Called on the event loop for each batch: it must be cheap, and never block."""

    @abstractmethod
    def flush(self) -> pa.Table | Awaitable[pa.Table | None] | None:
        """Deliver all rows that were added since `reset`; called only if there are any.

        A plain function runs in a thread and may block, a coroutine function runs on the event loop. When it
        is called again after `Retry` or an exception, the rows are the same as before.

        Returns:
            Rows for the next reducer; None, or no rows, ends the chain for these records.

        Raises:
            Retry: not now; the engine calls it again.
            Exception: `on_error` decides about the rows.
        """

    def schema_after(self, schema: pa.Schema) -> pa.Schema | None:
        """Return the columns of the rows that come out for rows with these; None if they are not known."""
        return schema if self.keeps_rows else None

    @abstractmethod
    def reset(self) -> None:
        """Forget the collected rows. Called on the event loop, before the first `add` and after each flush.

        Make new containers: the old ones may still be in use. It must not block.
        """

    async def close(self) -> None:
        """Disconnect. The engine calls it once, at the end, also after a failure, even one of `open`."""


async def close_all(closes: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call the `close` of several reducers, the last one first, also after one of them raises."""
    async with AsyncExitStack() as stack:
        for close in closes:
            stack.push_async_callback(close)


def limits_of(reducer: Reducer) -> Limits:
    """Return the limits and policies of a reducer, to make another reducer with them."""
    return Limits(
        max_rows=reducer.max_rows,
        max_bytes=reducer.max_bytes,
        max_age=reducer.max_age,
        when_full=reducer.when_full,
        on_shutdown=reducer.on_shutdown,
        on_error=reducer.on_error,
    )


def _check_limits(reducer: Reducer) -> None:
    """Raise StrategyError unless limits and policies are allowed together."""
    name = type(reducer).__name__
    limits = {name: getattr(reducer, name) for name in ("max_rows", "max_bytes", "max_age")}
    if all(limit is None for limit in limits.values()):
        raise StrategyError(f"{name} has no limit; set one of max_rows, max_bytes, max_age")
    for limit, value in limits.items():
        if value is not None and value <= 0:
            raise StrategyError(f"{name}: {limit} must be above 0, not {value}")
    if reducer.when_full == "backpressure" and reducer.max_age is None:
        raise StrategyError(
            f"{name}: when_full='backpressure' needs max_age: without it nothing is ever flushed"
        )
