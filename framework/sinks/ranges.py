"""The contract of a sink that can answer "is this range there?", and so can be exactly once.

The engines do three things. Before a range of offsets is written, they announce it: the committed offset, or
the checkpoint of Spark, says which range. After a crash exactly that range is read and mapped again. And
they tell the sink that the range may be there already. `RangeWriter` divides a flush into ranges, asks
`has` where a range may be there, and calls `write` where it is not.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, Unpack

import anyio
import structlog

from ..delivery.announcement import next_generation
from ..errors import RecordFailed, SinkError, StrategyError, UnexpectedDuplicate, as_exception
from ..reducers.collect import Collecting
from ..reducers.reducer import ERROR_STAGE, Retry
from ..reducers.sink import NEW, Capabilities, RowsRefused, Sink
from ..service.threads import run_in_thread
from .answers import Patience, SetUp
from .planning import RangeRows, join_ranges, plan_ranges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..columns.fitted import Fitted
    from ..record import TopicPartition
    from ..reducers.reducer import Context, Limits
    from ..reducers.sink import Refusal, Write


T = TypeVar("T")

RangeDelivery = Literal["exactly-once", "at-least-once"]


class RangeWriter(Collecting, Sink):
    """A sink that writes ranges: the rows of one partition in a flush, under a name made of their offsets.

    A subclass has three methods. Each gets a `RangeRows`: `rows.table` are the rows, `rows.token` and
    `rows.file_name` are names of the range, `rows.span` says which offsets it is. Plain functions run in a
    thread, coroutine functions on the event loop; several ranges may be written at the same time. Each
    may raise what `Reducer.flush` may raise, such as `Retry`.

    - `has(rows)`: is the range there? It is asked where the range may be there (`rows.repeated`), and for
      the first range of each partition.
    - `write(rows)`: write the range and its name at once: both or neither, whenever the process is killed.
      A range that is there is left alone, or replaced by the same rows: a process that was suspended may
      write its range after another process has. Returns the rows that cannot be stored, if any.
    - `refused(rows)`: the rows that `write` refused when the range was written. Only for a sink that
      refuses rows.

    Exactly once needs a map that makes the same rows of the same records.

    Args:
        delivery: `exactly-once`: each partition has its own flushes, which are announced. Or
            `at-least-once`: a flush has the rows of all partitions, so that there are fewer and larger ones
            and no commit before each; after a crash the records are divided into other ranges, and some
            may be written twice.
        concurrency: the most ranges that are written at a time.
        inserts_per_second: the most ranges that a worker writes in a second for their age, where each
            partition has its own: the oldest and largest first. So `max_age` is a wish where a worker has
            more partitions than turns in that time. Full ranges do not wait. None: no limit.
        limits: the limits and policies of `Reducer`.

    Attributes:
        range_name: the word for the name of a range in the sink, for `kmr validate`.
        joins_ranges: with at least once, ranges with few rows of several partitions are written as one.

    Raises:
        StrategyError: an argument is not allowed.
    """

    range_name: ClassVar[str] = "token"
    joins_ranges: ClassVar[bool] = False

    def __init__(
        self,
        *,
        delivery: RangeDelivery = "exactly-once",
        concurrency: int = 4,
        inserts_per_second: float | None = None,
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(**limits)
        name = type(self).__name__
        if concurrency < 1:
            raise StrategyError(f"{name}: concurrency must be at least 1, not {concurrency}")
        if inserts_per_second is not None and inserts_per_second <= 0:
            raise StrategyError(
                f"{name}: inserts_per_second must be above 0, not {inserts_per_second}; None: no limit"
            )
        self.capabilities = Capabilities(
            delivery=delivery,
            flushes_per_second=inserts_per_second,
            names_ranges=True,
            on_spark=(
                f"exactly once, by one {self.range_name} per range of offsets; in the driver, per micro-batch"
            ),
            errors_on_spark="exactly once",
        )
        self.concurrency = concurrency
        self.takes_letters = False  # is this reduce-err, which must accept every failed record?
        self._stage, self._takes_refused = "", True
        self.set_up, self._patience = SetUp(), Patience()
        self.leaving_out = LeavingOut()
        self._group = ""
        self._generations: Mapping[TopicPartition, int] = {}
        self._otherwise = 0
        self._limiter: anyio.CapacityLimiter | None = None
        self._tried = False  # since the last complete flush
        self._written: dict[str, Sequence[Refusal]] = {}  # since the last complete flush, by token
        self._proven: set[TopicPartition] = set()  # their first range was not there

    @abstractmethod
    def has(self, rows: RangeRows) -> bool | Awaitable[bool]:
        """Return whether the range is there, as a whole."""

    @abstractmethod
    def write(
        self, rows: RangeRows
    ) -> Mapping[int, str] | Awaitable[Mapping[int, str] | None] | None:
        """Write the range; return the numbers of rows that cannot be stored, with the reasons."""

    def refused(self, rows: RangeRows) -> Mapping[int, str] | Awaitable[Mapping[int, str]]:
        """Return what `write` returned when it wrote this range, which is there."""
        return {}

    async def write_together(self, ranges: Sequence[RangeRows]) -> Sequence[Mapping[int, str]]:
        """Write ranges of several partitions at once: all or none, but those that are there.

        Only for a sink whose `capabilities` have `joins_rows`, and ranges of which `may_join` was true. With
        `shares_tokens` they have one token (`rows.shared`), under which one of them alone may have been
        written: then none of the others is.

        Returns:
            What `write` returns, for each.
        """
        raise NotImplementedError

    async def found_among(self, ranges: Sequence[RangeRows]) -> Sequence[RangeRows]:
        """Return the ranges that are there, of some that are about to be written together."""
        return [rows for rows in ranges if await _call(self.has, rows)]

    def __str__(self) -> str:
        return type(self).__name__

    async def open(self, context: Context) -> None:
        """See `Reducer.open`; call it first in a subclass."""
        for_sinks = context.for_sinks
        self._group, self._generations = context.group, for_sinks.generations
        self.leaving_out = LeavingOut(context.stage, for_sinks.count_left_out)
        self.takes_letters = context.stage == ERROR_STAGE
        self._stage = context.stage
        self._takes_refused = for_sinks.takes_refused or self.takes_letters
        # Letters are not announced: those of a topic that is created anew must not have the old tokens. Spark
        # repeats a micro-batch with its tokens, also in another process.
        is_new = self.takes_letters and for_sinks.session is None
        self._otherwise = next_generation() if is_new else 0
        self._patience = Patience()  # of this copy
        opened = for_sinks.opened
        if isinstance(opened, RangeWriter):
            self._limiter, self._proven = opened._limiter, opened._proven  # noqa: SLF001  of our class
            self.capabilities, self.leaving_out = opened.capabilities, opened.leaving_out
            self.set_up = opened.set_up
        else:
            self._limiter, self._proven = anyio.CapacityLimiter(self.concurrency), set()

    async def flush(self, write: Write = NEW) -> None:
        """Write the added rows, except ranges that are there.

        Raises:
            RowsRefused: some rows cannot be stored.
            UnexpectedDuplicate: a range is there that was not announced.
        """
        limiter = self._limiter
        if limiter is None:
            raise SinkError(f"{self} is used before it was opened")
        tried, self._tried = self._tried, True

        async def deliver(rows: RangeRows) -> None:
            try:
                refusals = await self._deliver(rows, limiter)
                self._written |= {rows.token: refusals} | dict.fromkeys(rows.joined, ())
            except Retry as retry:  # the other ranges continue
                retries.append(retry)
            except BaseException as error:  # noqa: BLE001
                errors.append(as_exception(error))

        planned = plan_ranges(
            self.rows,
            self._group,
            self._generations,
            write,
            repeated=tried,
            otherwise=self._otherwise,
        )
        if self.joins_ranges and write.announcement is None:
            planned = join_ranges(planned, self._written)
        retries: list[Exception] = []
        errors: list[Exception] = []
        left = [rows for rows in planned if rows.token not in self._written]
        if len(left) == 1:
            await deliver(left[0])
        else:
            async with anyio.create_task_group() as tasks:
                for rows in left:
                    tasks.start_soon(deliver, rows)
        for failure in (*errors, *retries):
            raise failure
        ours = {r.topic_partition for rows in self.rows for r in rows.ranges}
        refusals = [
            refused
            for some in self._written.values()
            for refused in some
            if not ours.isdisjoint(r.topic_partition for r in refused.rows.ranges)
            or not refused.rows.ranges
        ]
        self._forget()
        if refusals:
            raise RowsRefused(refusals)

    def _forget(self) -> None:
        """Forget the written ranges: the flush is complete."""
        self._tried = False
        self._written = {}
        self._patience.forget()

    async def _deliver(self, rows: RangeRows, limiter: anyio.CapacityLimiter) -> Sequence[Refusal]:
        turn = rows.write.joined
        if turn is not None and not rows.repeated:
            outcome = await turn.write(rows, self._deliver_together)
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not None:
                return rows.refusals(outcome)
            rows = replace(rows, repeated=True)  # others have taken the token
        async with limiter:
            return await self._deliver_alone(rows)

    async def _deliver_together(
        self, ranges: Sequence[RangeRows]
    ) -> Sequence[Mapping[int, str] | Exception]:
        """Write ranges at once, but those that are unexpectedly there; return the outcome of each."""
        limiter = self._limiter
        outcomes: dict[str, Mapping[int, str] | Exception] = {}
        assert limiter is not None  # noqa: S101  `flush` has looked
        async with limiter:
            firsts = [rows for rows in ranges if self._is_first(rows)]
            for rows in await self.found_among(firsts) if firsts else ():
                outcomes[rows.token] = self._unexpected(rows)
            if new := [rows for rows in ranges if rows.token not in outcomes]:
                refused = await self.write_together(new)
                outcomes |= {rows.token: each for rows, each in zip(new, refused, strict=True)}
                self._proven |= {rows.span.topic_partition for rows in new if rows.span is not None}
        return [outcomes[rows.token] for rows in ranges]

    def require_taken(self, rows: RangeRows, refused: Mapping[int, str]) -> None:
        """Call it before a range is written of which rows are refused, by number, with the reasons.

        Raises:
            RecordFailed: the strategy has no `reduce_err`. The worker ends, and a worker that starts when the
                table is altered writes the range as a whole: a part of it would count as all of it.
        """
        if refused and not self._takes_refused:
            first = rows.refusals(dict([min(refused.items())]))[0]
            reason = first.reason if isinstance(first.reason, str) else first.reason[0]
            raise RecordFailed.without_sink(first.rows.ranges[0], self._stage, reason)

    async def _deliver_alone(self, rows: RangeRows) -> Sequence[Refusal]:
        first = self._is_first(rows)
        if (rows.repeated or first) and await _call(self.has, rows):
            if not rows.repeated:
                raise self._unexpected(rows)
            return rows.refusals(await _call(self.refused, rows))
        rows = replace(rows, divides_later=self._patience.is_over(rows.token))
        try:
            refused = await _call(self.write, rows)
        except Retry as retry:
            self._patience.note(rows.token, retry.reason)
            raise
        if first and rows.span is not None:
            self._proven.add(rows.span.topic_partition)
        return rows.refusals(refused or {})

    def _is_first(self, rows: RangeRows) -> bool:
        """Return whether this is the first range that this process announces for its partition.

        The sink must not have it. False for a generation above 0, whose ranges are all new, and for a range
        that was announced before, which the sink may have.
        """
        if rows.write.announcement is None or rows.write.repeated or rows.span is None:
            return False
        return not rows.span.generation and rows.span.topic_partition not in self._proven

    def _unexpected(self, rows: RangeRows) -> UnexpectedDuplicate:
        span, announced = rows.span, rows.write.announcement
        assert span is not None and announced is not None  # noqa: S101, PT018  only announced ranges are
        where = f"--group {self._group} {span.topic_partition.flags}"
        return UnexpectedDuplicate(
            f"{self}: the rows of {span.topic_partition}[{announced.first}..{announced.last}] were not "
            f"written: it has rows of these offsets, though group {self._group} has announced none. Did "
            "another group write them? Give each group a table of its own. Or another tool than kmr moved "
            "the committed offsets back, or the topic was created anew: to write the records again, run "
            f"kmr offsets reset {where} --to-offset {announced.first}, which begins new tokens; to keep what "
            f"was written, run kmr offsets reset {where} --to-offset {announced.last + 1}"
        )


async def _call(method: Callable[[RangeRows], T | Awaitable[T]], rows: RangeRows) -> T:
    """Call a method on the event loop if it is a coroutine function, else in a thread."""
    if inspect.iscoroutinefunction(method):
        return await method(rows)  # type: ignore[no-any-return]
    return await run_in_thread(method, rows)  # type: ignore[arg-type]


_log = structlog.get_logger(__name__)


class LeavingOut:
    """Logs and counts what the flushes of one stage leave out.

    Args:
        count: called with the stage, `fields`, `digits` or `rows`, and a number of values.
    """

    def __init__(
        self, stage: str = "", count: Callable[[str, str, int], None] | None = None
    ) -> None:
        self._stage = stage
        self._count = count
        self._said: set[tuple[str, str]] = set()

    def of(self, destination: object, fitted: Fitted) -> None:
        """Log and count what rows lost when they were fitted to a destination."""
        self._note(
            destination,
            "fields",
            fitted.left_out,
            "values are not written: there is no place for them",
        )
        self._note(
            destination, "digits", fitted.cut, "times are cut to the precision of their column"
        )

    def of_table(self, destination: object, rows: int) -> None:
        """Log and count rows that the destination has accepted and not stored: a trigger left them out."""
        counts = {"whole rows": rows} if rows > 0 else {}
        event = "rows are not stored: a trigger of the table leaves them out"
        self._note(destination, "rows", counts, event)

    def _note(self, destination: object, what: str, counts: Mapping[str, int], event: str) -> None:
        if new := sorted(name for name in counts if (what, name) not in self._said):
            self._said |= {(what, name) for name in new}
            _log.warning(event, stage=self._stage, destination=str(destination), columns=new)
        if self._count is not None and (values := sum(counts.values())):
            self._count(self._stage, what, values)
