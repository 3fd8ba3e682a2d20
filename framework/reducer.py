"""The contract of a reducer: what a stage of a strategy must be able to do.

A reducer collects rows and flushes them: into a sink, or as new rows for the next reducer. The stage
around it (`framework.reduce`) does the rest: it counts rows, bytes and age, freezes what is flushed,
retries, settles offsets and applies the policies.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

from framework.errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    import pyarrow as pa

    from framework.announcement import Announcement
    from framework.record import Rows

__all__ = [
    "Context",
    "Delivery",
    "Empty",
    "FlushReason",
    "FlushResult",
    "Flushed",
    "OnError",
    "OnShutdown",
    "Poisoned",
    "Reducer",
    "Retry",
    "WhenFull",
]

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]
FlushReason = Literal["count", "bytes", "age", "awaited", "replay", "revoke", "shutdown"]
WhenFull = Literal["flush", "backpressure"]
OnShutdown = Literal["flush", "drop"]
OnError = Literal["retry", "divert", "stop"]

DEFAULT_MAX_ROWS = 32_768
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
DEFAULT_MAX_AGE = 4.0


@dataclass(frozen=True, slots=True)
class Context:
    """Where a reducer runs: given to `Reducer.open`.

    Attributes:
        group: the consumer group, a part of every deduplication token.
        bootstrap_servers: the brokers that the records come from, `host:port,...`.
        stage: the stage's name, as in metrics and logs: `reduce-1`, `reduce-err`.
        client: options of the Kafka connection (security, client id) for reducers that write to Kafka.
        prepare: a sink may alter its table, where its delivery needs that.
        opened: where each partition has copies of its own, a copy that is open already and closes last:
            its connection may be shared.
    """

    group: str
    bootstrap_servers: str
    stage: str
    client: dict[str, object]
    prepare: bool = False
    opened: Reducer | None = None


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Rows that a sink can never take, though it takes the others.

    Attributes:
        rows: what they were added as (`offsets` name the records).
        reason: why, for the error sink: one line.
    """

    rows: Rows
    reason: str


@dataclass(frozen=True, slots=True)
class Flushed:
    """The collected rows are delivered.

    Attributes:
        out: what the next reducer is given; None, or no rows, ends the chain for these records.
        poisoned: rows that were *not* delivered and go to `reduce_err` instead.
    """

    out: pa.Table | None = None
    poisoned: Sequence[Poisoned] = ()


@dataclass(frozen=True, slots=True)
class Empty:
    """There was nothing to deliver: the records behind what was added are settled."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Not now: call `flush` again with the same rows, not sooner than `after` seconds from now.

    `after=None` leaves the pace to the stage: exponential, with jitter.
    """

    after: float | None
    reason: str


FlushResult = Flushed | Empty | Retry


class Reducer(ABC):
    """Collects rows and flushes them; limits say when, policies say what if.

    A stage works with copies (`spawn`) of the reducer in the strategy: while one is being flushed, the
    next one collects. The order of calls on one copy is: `open`, then rounds of `reset`, `add` (any
    number), `flush` (again after every `Retry`, with nothing added in between), and at last `close`.
    Calls on one copy never overlap.

    Args:
        max_rows: flush when this many rows are collected; a flush never has more, except that the rows
            of one record stay together.
        max_bytes: flush when the collected columns are this large.
        max_age: flush when the oldest collected row has waited this long, in seconds.
        when_full: at a limit of rows or bytes, `flush`, or hold back input until `max_age` is reached.
        on_shutdown: `flush` what is collected, or `drop` it unsettled (it is delivered again later).
        on_error: what an exception of `flush` means: `retry` it for ever, `divert` the rows to
            `reduce_err`, or `stop` the worker.

    Attributes:
        block_rows: the most rows that the sink takes at once, all or none; announced with larger flushes.
        delivery: what the reducer can promise as the last one of a chain. With `exactly-once`, each
            flush has the rows of one partition only, and is announced before (`announce`).

    Raises:
        StrategyError: the limits or policies make no sense.
    """

    block_rows: int = 2**31
    delivery: Delivery = "at-least-once"

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
        """Raise StrategyError unless limits and policies make sense together."""
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
                f"{name}: when_full='backpressure' needs max_age, or nothing would ever be flushed"
            )

    def spawn(self) -> Self:
        """A copy that shares no state with this one; called before `open`."""
        return copy.deepcopy(self)

    async def open(self, context: Context) -> None:  # noqa: B027  nothing to connect by default
        """Connect and check: called once, before anything is consumed.

        Raise `StrategyError` for what the user must mend (a missing table, a wrong column): the worker
        stops with that message.
        """

    async def close(self) -> None:  # noqa: B027  nothing to disconnect by default
        """Disconnect: called once, also after a failure."""

    def announce(self, announcement: Announcement, *, replayed: bool) -> None:  # noqa: B027
        """The next flush, and its retries, write what was announced; called with `exactly-once` only.

        The same announcement may come again from another process: a sink must then recognise by its
        token what it has already. `replayed`: this is such a repetition.
        """

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Take rows in. Called on the event loop: keep it cheap, and never block."""

    @abstractmethod
    def flush(self) -> FlushResult | Awaitable[FlushResult]:
        """Deliver everything that was added since `reset`.

        A plain function runs in a thread, a coroutine function on the event loop. When it is called
        again after `Retry` or an exception, what was added is the same as before.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget what was added; make new containers instead of clearing those given away."""
