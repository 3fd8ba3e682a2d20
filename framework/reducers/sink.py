"""The contract of sinks: `Capabilities` say what a sink can do, `Write` what the engine knows of its rows."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ..delivery.ranges import ranges_of
from ..service.threads import run_in_thread
from .finding import Finding
from .reducer import DEFAULT_MAX_ROWS, Reducer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from ..delivery.announcement import Announcement
    from ..kafka.transactions import Transactions
    from ..record import Rows
    from .joined_turn import JoinedTurn
    from .reducer import Context

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]

_LARGE_FLUSH: Final = 500_000  # rows
AT_LEAST_ONCE_ON_SPARK: Final = (
    "at least once: a task or micro-batch that is repeated writes its rows again"
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a sink can do. The engines ask for this, never for a class.

    Attributes:
        delivery: the guarantee of a strategy that ends with the sink. With `exactly-once` each flush has
            the rows of one partition only, and is announced before (`Write.announcement`).
        names_ranges: the sink writes under a name made of the rows' offsets (a deduplication token, a
            file name), so that writing them again does not double them. A task of the Spark engine
            flushes a whole chunk into it: its limits have no effect there.
        commits_offsets: the sink writes in transactions that commit the input's offsets with the rows: that
            is its `exactly-once`. A flush has rows of all partitions, nothing is announced, and rows that
            are refused make the stage flush again without them.
        block_rows: the most rows that the sink writes atomically; larger flushes announce this size.
        flushes_per_second: the most flushes by age in a second, of all partitions of a worker where each has
            its own; then `max_age` is a wish. None: as many as there are.
        joins_rows: flushes of up to so many rows that are not full are written together with those of other
            partitions, so that they take one turn. 0: each is written alone.
        shares_tokens: what is written together has one token (`JoinedAnnouncement`); else each part has its
            own, which the sink writes with the rows of all or not at all.
        needs_session: the sink writes with a `SparkSession`: the Spark engine runs it in the driver.
        on_spark: the guarantee when a task or a micro-batch is repeated, for `kmr validate`.
        errors_on_spark: the same where the sink is `reduce_err`.
        forwards: the sink also returns rows for a next reducer.
        in_order: the sink needs the flushes of a partition in the order of offsets, which Spark's tasks do
            not keep: it is refused there.
        difference_on_spark: what differs from the worker; empty if nothing does.
    """

    delivery: Delivery = "at-least-once"
    names_ranges: bool = False
    commits_offsets: bool = False
    block_rows: int = 2**31
    flushes_per_second: float | None = None
    joins_rows: int = 0
    shares_tokens: bool = False
    needs_session: bool = False
    forwards: bool = False
    in_order: bool = False
    on_spark: str = AT_LEAST_ONCE_ON_SPARK
    errors_on_spark: str = "at least once"
    difference_on_spark: str = ""


def _untold() -> None:
    """Do nothing: no stage watches this write."""


@dataclass(frozen=True, slots=True)
class Write:
    """What the engine knows of the rows that a sink is about to write.

    Attributes:
        announcement: the range that the group's committed offset announces; None: nothing is announced.
            Another process may have received the same one: the sink must recognise by its token the rows
            that it has.
        repeated: another process, or an earlier attempt of a task, may have written the rows.
        transaction: the transactions to write in, of a sink that commits offsets; None elsewhere.
        joined: where the flushes of other partitions are met that are written at once with this one; None: it
            is written alone.
        progressed: called by a sink between the steps of a long flush: `/live` sees that it does not hang.
    """

    announcement: Announcement | None = None
    repeated: bool = False
    transaction: Transactions | None = None
    joined: JoinedTurn | None = None
    progressed: Callable[[], None] = _untold


NEW: Final = Write()
"""Rows that nobody has written before, and of which nothing is announced."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rows that a sink refuses for good, though it accepts the others.

    Attributes:
        rows: the rows; their `offsets` or `places` name the records. Without these, the rows are made of many
            records, and have letters of their own (`kmr.delivery.row_letters`).
        reason: why, in one line, for the error sink; or one for each row.
        error: the exception behind it, if there was one.
    """

    rows: Rows
    reason: str | tuple[str, ...]
    error: Exception | None = None


class RowsRefused(Exception):
    """Raised by `flush`: all rows are delivered, or made, but for these, which go to `reduce_err`.

    Args:
        refusals: the rows.
        records: failed records that are rows for `reduce_err` already, with stages of their own.
        out: what `flush` would return without them, of a reducer that is no sink.
    """

    def __init__(
        self,
        refusals: Sequence[Refusal],
        records: Sequence[Rows] = (),
        out: pa.Table | None = None,
    ) -> None:
        super().__init__(*(refusal.reason for refusal in refusals[:1]))
        self.refusals = refusals
        self.records = records
        self.out = out


def refusals_among(parts: Iterable[Rows], refused: Mapping[int, str]) -> list[Refusal]:
    """Return refused rows, given by their number among the rows of all parts, as parts of these."""
    if not refused:
        return []
    numbers = np.array(sorted(refused), dtype=np.int64)
    refusals = []
    begin = 0
    for part in parts:
        end = begin + len(part)
        first, last = np.searchsorted(numbers, [begin, end])
        rows = (numbers[first:last] - begin).tolist()
        reasons = tuple(refused[begin + row] for row in rows)
        if rows:
            same = len(set(reasons)) == 1
            some = part.take(rows) if part.offsets is None else _some(part, rows)
            refusals.append(Refusal(some, reasons[0] if same else reasons))
        begin = end
    return refusals


def _some(part: Rows, rows: Sequence[int]) -> Rows:
    assert part.offsets is not None  # noqa: S101  the caller has checked
    some = part.take(rows)
    return replace(some, ranges=ranges_of(np.unique(part.offsets[rows]), part.ranges[0]))


def with_large_flushes(reducer: Reducer) -> Reducer:
    """Return a sink with flushes of up to 500,000 rows, if its `max_rows` is the default.

    A history has no reader that waits for its rows, and a database takes fewer, larger writes more cheaply.
    """
    if not isinstance(reducer, Sink) or reducer.max_rows != DEFAULT_MAX_ROWS:
        return reducer
    larger = copy(reducer)
    larger.max_rows = _LARGE_FLUSH
    return larger


class Sink(Reducer):
    """A reducer that writes its rows somewhere. It takes the arguments of `Reducer`.

    Attributes:
        capabilities: what the sink can do, as it is configured; final after `open`.
        replaces_by: the columns whose values name a row: a later row with the same ones replaces it. Empty
            if rows are only added.
    """

    capabilities: Capabilities = Capabilities()
    replaces_by: tuple[str, ...] = ()

    @abstractmethod
    def flush(self, write: Write = NEW) -> pa.Table | Awaitable[pa.Table | None] | None:
        """Write all rows that were added since `reset`, as `Reducer.flush`.

        Args:
            write: the same in each call after a `Retry`, but for `repeated`.

        Raises:
            RowsRefused: the sink refuses some of the rows for good; the others are delivered.
            UnexpectedDuplicate: the sink has rows that were never announced.
        """

    def may_join(self) -> bool:
        """Return whether the added rows may be written with those of other partitions.

        Asked where `capabilities` have `joins_rows`. With `shares_tokens`, whether a range was written under
        that token must then show in the sink.
        """
        return False

    def transactions(self, context: Context) -> Transactions:
        """Return new transactions for all copies of the sink; called where it `commits_offsets`."""
        raise NotImplementedError

    @property
    def counts_in(self) -> tuple[str, ...] | None:
        """The name of the table in which the sink counts the rows of a range; None: it counts none."""
        return None

    def topic_written(self, bootstrap_servers: str) -> str | None:
        """Return the topic that the sink writes to, if it is on the cluster with these addresses."""
        return None

    def doubts(self, declared: pa.Schema | None) -> Sequence[str]:
        """Return warnings about rows with these columns; `kmr validate` and the start of a worker show them.

        Args:
            declared: None if the columns are not known.
        """
        return ()

    async def examine(self, context: Context) -> Sequence[Finding]:
        """Check for `kmr doctor` that a worker can open and write; called on a copy that is not opened.

        By default it calls `open`, so a sink whose `open` creates or alters something overrides it.

        Raises:
            KmrError: becomes a `problem`.
        """
        return [await opens(self, context)]


async def opens(reducer: Reducer, context: Context) -> Finding:
    """Open a reducer and close it. Raises what `open` raises."""
    try:
        await reducer.open(context)
    finally:
        await reducer.close()
    return Finding("ok", context.stage, f"{type(reducer).__name__} opens")


async def declared_columns(context: Context) -> pa.Schema | None:
    """Return the columns of the rows that reach the sink's stage; None if the strategy declares none.

    In a thread, because it may ask a schema registry, or call the user's map.
    """
    return await run_in_thread(context.for_sinks.schema_of, context.stage)


def capabilities_of(reducer: Reducer) -> Capabilities:
    """Return what a reducer can do at the end of a chain; one that is no sink only forwards rows."""
    return reducer.capabilities if isinstance(reducer, Sink) else _OF_REDUCERS


_OF_REDUCERS: Final = Capabilities(forwards=True)
