"""The contract of reducers and sinks.

A reducer collects rows and flushes them: into a sink, or as new rows for the next reducer. The engines do
the rest: they count rows, bytes and age, freeze a buffer before its first flush, retry, settle offsets
and apply the policies (`kmr.reducers.flushing`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self, TypedDict, get_args

from ..errors import StrategyError
from .finding import Finding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ..delivery.announcement import Announcement
    from ..kafka.transactions import Transactions
    from ..record import Rows, TopicPartition

__all__ = [
    "Context",
    "Delivery",
    "Empty",
    "FlushResult",
    "Flushed",
    "Limits",
    "OnError",
    "OnShutdown",
    "Poisoned",
    "Policies",
    "Reducer",
    "Retry",
    "SizeLimits",
    "SparkPlace",
    "WhenFull",
]

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]
WhenFull = Literal["flush", "backpressure"]
OnShutdown = Literal["flush", "drop"]
OnError = Literal["retry", "divert", "stop"]
SparkPlace = Literal["task", "driver", "reduce_err"]
"""Where a reducer runs on Spark: in each task, in the driver once for a micro-batch, or as the error sink
(in the driver too, once for each group of failed records)."""

DEFAULT_MAX_ROWS = 32_768
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
DEFAULT_MAX_AGE = 4.0
AT_LEAST_ONCE_ON_SPARK = (
    "at least once: a task or micro-batch that is repeated writes its rows again"
)


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

    max_age: float | None


def _unknown(_stage: str) -> None:
    """Return no columns."""


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a reducer: the argument of `Reducer.open`.

    Attributes:
        group: the consumer group, a part of every deduplication token.
        bootstrap_servers: the brokers that the records come from, `host:port,...`.
        stage: the stage's name, as in metrics and logs: `reduce-1`, `reduce-err`.
        strategy: `module:attribute`; empty if the strategy was not started by its name.
        strategy_version: `Strategy.version`; empty without one.
        has_schema_ids: the records' values begin with the id of a schema, see `ValueFormat`.
        client: options of the Kafka connection (security, client id) for reducers that write to Kafka.
        prepare: whether a sink may alter its table, if its delivery needs that.
        opened: a copy of the reducer that is open already and closes last, whose connection may be
            shared; None except in the lane of a partition.
        session: the `SparkSession` to write with, in the driver of the Spark engine; None elsewhere.
        generations: the generation of each partition's offsets, kept up to date; a part of every
            deduplication token. A partition that is missing has generation 0.
        schema_of: returns the columns of the rows that reach a stage; None if they are not known yet. It
            may block.
        transactional_id: of this worker, for a sink whose transactions commit the input's offsets.
        session_timeout: seconds after which the group takes the worker's partitions away; None: unknown.
        transactions: what `Reducer.transactions` returned, open; None if nothing is written with them.
    """

    group: str
    bootstrap_servers: str
    stage: str
    client: dict[str, object]
    prepare: bool = False
    opened: Reducer | None = None
    session: SparkSession | None = None
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)
    schema_of: Callable[[str], pa.Schema | None] = _unknown
    strategy: str = ""
    strategy_version: str = ""
    has_schema_ids: bool = False
    transactional_id: str = ""
    session_timeout: float | None = None
    transactions: Transactions | None = None


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Rows that a sink refuses for good, though it accepts the others.

    Attributes:
        rows: the rows; their `offsets`, or else their `ranges`, name the records.
        reason: why, in one line, for the error sink.
        error: the exception behind it, if there was one.
    """

    rows: Rows
    reason: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Flushed:
    """The collected rows are delivered.

    Attributes:
        out: rows for the next reducer; None, or no rows, ends the chain for these records.
        poisoned: rows that were *not* delivered and go to `reduce_err` instead.
    """

    out: pa.Table | None = None
    poisoned: Sequence[Poisoned] = ()


@dataclass(frozen=True, slots=True)
class Empty:
    """There was nothing to deliver; the offsets of the collected rows are settled."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The flush failed for now: call `flush` again with the same rows.

    Attributes:
        after: seconds to wait at least; None: exponential backoff with jitter.
        reason: why, in one line, for the log and the status.
        may_double: rows may have been written that the next call would write once more. With
            `at-most-once` the rows then go to `reduce_err` instead. Set it to False only if nothing was
            written, or if the sink recognises rows that it has.
    """

    after: float | None
    reason: str
    may_double: bool = True


FlushResult = Flushed | Empty | Retry


class Reducer(ABC):
    """Collects rows and flushes them, into a sink or to the next reducer.

    `max_rows`, `max_bytes` and `max_age` trigger a flush; the policies cover full buffers, shutdown and
    errors. The other attributes say what a sink can do: the engines ask for them, never for a class.

    A stage works with copies (`spawn`) of the reducer in the strategy: while one is being flushed, the
    next one collects. The order of calls on one copy is: `open`, then rounds of `reset`, `add` (any
    number), `flush` (again after every `Retry`, with nothing added in between), and at last `close`.
    Calls on one copy never overlap.

    Args:
        max_rows: flush when this many rows are collected; a flush never has more, except that the rows
            of one record stay together.
        max_bytes: flush when the collected columns have this size.
        max_age: flush when the oldest collected row has waited this long, in seconds.
        when_full: at a limit of rows or bytes, `flush`, or hold back input until `max_age` is reached
            (`backpressure`), or until a rebalance, the drain or another stage waits for the rows.
        on_shutdown: `flush` the collected rows, or `drop` them unsettled: they are delivered again later.
        on_error: after an exception of `flush`, `retry` without end, `divert` the rows to `reduce_err`,
            or `stop` the worker.

    Attributes:
        block_rows: the most rows that the sink writes atomically; larger flushes announce this size.
        delivery: the guarantee of the reducer as the last one of a chain. With `exactly-once`, each
            flush has the rows of one partition only, and is announced before (`announce`).
        commits_offsets: the sink writes with `Context.transactions`, which commit the input's offsets with
            the rows: that is its `exactly-once`. A flush has rows of all partitions, nothing is announced,
            and rows that are refused (`Flushed.poisoned`) make the stage flush again without them.
        names_ranges: the sink writes under a name made of the rows' offsets (a deduplication token, a
            file name), so that writing them again does not double them. A task of the Spark engine
            flushes a whole chunk into it: its limits have no effect there.
        replayed: another process, or an earlier attempt of a task, may have written the rows of the next
            flush. The engines set it before a flush: the worker by `announce`, Spark directly.

    Raises:
        StrategyError: a limit or policy is not allowed.
    """

    block_rows: int = 2**31
    delivery: Delivery = "at-least-once"
    commits_offsets: bool = False
    names_ranges: bool = False
    replayed: bool = False

    def __init__(
        self,
        *,
        max_rows: int | None = DEFAULT_MAX_ROWS,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        max_age: float | None = DEFAULT_MAX_AGE,
        when_full: WhenFull = "flush",
        on_shutdown: OnShutdown = "flush",
        on_error: OnError = "retry",
    ) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.max_age = max_age
        self.when_full = when_full
        self.on_shutdown = on_shutdown
        self.on_error = on_error
        self.check_limits()

    def check_limits(self) -> None:
        """Raise StrategyError unless limits and policies are allowed together."""
        name = type(self).__name__
        limits = {"max_rows": self.max_rows, "max_bytes": self.max_bytes, "max_age": self.max_age}
        if all(limit is None for limit in limits.values()):
            raise StrategyError(f"{name} has no limit; set one of max_rows, max_bytes, max_age")
        for limit, value in limits.items():
            if value is not None and value <= 0:
                raise StrategyError(f"{name}: {limit} must be above 0, not {value}")
        for policy, choice, allowed in (
            ("when_full", self.when_full, get_args(WhenFull)),
            ("on_shutdown", self.on_shutdown, get_args(OnShutdown)),
            ("on_error", self.on_error, get_args(OnError)),
        ):
            if choice not in allowed:
                raise StrategyError(f"{name}: {policy} must be one of {allowed}, not {choice!r}")
        if self.when_full == "backpressure" and self.max_age is None:
            raise StrategyError(
                f"{name}: when_full='backpressure' needs max_age: without it nothing is ever flushed"
            )

    def spawn(self) -> Self:
        """Return a copy that shares no rows with this one; called before `open`."""
        return copy.deepcopy(self)

    async def open(self, context: Context) -> None:  # noqa: B027  nothing to connect by default
        """Connect and check; called once, before anything is consumed.

        Raise `StrategyError` if the strategy does not fit the sink (a missing table, a wrong column):
        the worker stops with that message.
        """

    async def close(self) -> None:  # noqa: B027  nothing to disconnect by default
        """Disconnect; called once, also after a failure."""

    def announce(self, announcement: Announcement, *, replayed: bool) -> None:  # noqa: B027
        """Receive the announcement of the next flush and its retries; called with `exactly-once` only.

        Another process may have received the same announcement, and written: the sink must recognise
        by the token the rows that it already has. `replayed` is True if that is possible.
        """

    def transactions(self, context: Context) -> Transactions:
        """Return new transactions for all copies of this reducer; called where `commits_offsets`."""
        raise StrategyError(f"{context.stage}: {type(self).__name__} has no transactions")

    @property
    def needs_session(self) -> bool:
        """Whether the reducer writes with a `SparkSession`: the Spark engine then runs it in the driver."""
        return False

    def topic_written(self, bootstrap_servers: str) -> str | None:
        """Return the topic that the sink writes to, if it is on the cluster with these addresses."""
        return None

    def schema_of_output(self, schema: pa.Schema) -> pa.Schema | None:
        """Return the columns of the rows for the next reducer, if they follow from those of this one."""
        return None

    def guarantee_on_spark(self, place: SparkPlace) -> str:
        """Describe what holds when a task or a micro-batch is repeated, for `kmr validate`.

        Empty for a reducer that only makes rows for the next one.
        """
        match place:
            case "reduce_err":
                return "at least once"
            case "driver":
                return AT_LEAST_ONCE_ON_SPARK
            case "task":
                return f"{AT_LEAST_ONCE_ON_SPARK}; each task has a copy with its own state"

    def difference_on_spark(self, place: SparkPlace) -> str:
        """Describe what differs from the worker, for `kmr validate`; empty if nothing does."""
        return ""

    async def examine(self, context: Context) -> Sequence[Finding]:
        """Check for `kmr doctor` what a worker would meet; called on a copy that is not opened.

        By default it calls `open`, so a sink whose `open` creates or alters something overrides it.

        Raises:
            KmrError: becomes a `problem`.
        """
        try:
            await self.open(context)
        finally:
            await self.close()
        return [Finding("ok", context.stage, f"{type(self).__name__} opens")]

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Collect rows. Called on the event loop: it must be cheap, and never block."""

    @abstractmethod
    def flush(self) -> FlushResult | Awaitable[FlushResult]:
        """Deliver all rows that were added since `reset`.

        A plain function runs in a thread, a coroutine function on the event loop. When it is called
        again after `Retry` or an exception, the rows are the same as before.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget the collected rows. Make new containers: the old ones may still be in use."""
