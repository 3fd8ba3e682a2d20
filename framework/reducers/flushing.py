"""The flush rule: when rows are flushed and why, and how a flush is tried until it is done.

    reason     a flush begins when
    count      `max_rows` rows are collected, or four times as many in lanes that are written together
    bytes      `max_bytes` are collected, or the collected rows use up the in-flight budget
    age        the oldest row has waited for `max_age`, and it is the lane's turn (`kmr.reducers.turns`); with
               `when_full="backpressure"` a full buffer waits for this too, or for one of the next two
    awaited    another stage waits until these rows are settled, and no more are queued
    revoke     a rebalance waits until nothing is collected, and no more are queued
    replay     an announced range is read again to its end: one flush, without limits
    shutdown   the inbox has ended, and `on_shutdown` is not `drop`
    trigger    a micro-batch of the Spark engine has ended

`Buffer.add` (`kmr.reducers.buffer`) applies the limits of rows and bytes, `FlushTrigger` all other reasons,
and `retry_flush` tries again until `attempt_flush` succeeds. The worker's reduce stage (`kmr.reduce`) uses
all of them. On Spark (`kmr.spark.engine.chain`) the ends of chunks and micro-batches replace `FlushTrigger`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar, cast

import anyio
import numpy as np
import pyarrow as pa
import structlog

from ..columns.column_types import MixedTypes
from ..delivery.failures import original_records, settled_together
from ..delivery.ranges import subtract_ranges
from ..delivery.row_letters import row_letters
from ..errors import (
    Escaped,
    KmrError,
    SinkError,
    UnexpectedDuplicate,
    is_of_code,
    no_escape,
    place_of,
    reason_of,
)
from ..record import Rows
from ..service.threads import run_in_thread
from .pauses import Pauses
from .reducer import Retry
from .sink import Refusal, RowsRefused, Sink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream

    from ..intake.backpressure import Budget
    from ..record import Range, ReplayEnd
    from .buffer import Buffer, FlushReason
    from .reducer import Reducer
    from .sink import Write
    from .turns import Turns

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class FlushTrigger:
    """Decides when a stage of the worker flushes the rows that it collects.

    The stage calls `next` for its next rows or a reason to flush. The other methods may be called at any
    time; they wake `next` if there may be a reason now.

    Args:
        inbox: the stage's inbox.
        budget: while it is exhausted, no more rows can arrive.
        replaying: the inbox begins with an announced range, up to a `ReplayEnd`.
        turns: rows of their age wait for one; None: they do not.

    Attributes:
        replaying: set it to False at the `ReplayEnd`.
    """

    def __init__(
        self,
        inbox: MemoryObjectReceiveStream[Rows | ReplayEnd],
        budget: Budget,
        *,
        replaying: bool,
        turns: Turns | None = None,
    ) -> None:
        self.replaying = replaying
        self._turns = turns
        self._inbox = inbox
        self._budget = budget
        self._waiting = anyio.CancelScope()
        self._draining = False
        self._revoking = False
        self._awaiting = 0

    def revoke(self, *, on: bool) -> None:
        """While on, collect nothing: flush as soon as no more rows are queued."""
        self._revoking = on
        if on:
            self._waiting.cancel()

    def awaited(self, *, on: bool) -> None:
        """While on, flush as soon as no more rows are queued; calls from several stages are counted."""
        self._awaiting += 1 if on else -1
        if on:
            self._waiting.cancel()

    def budget_exhausted(self) -> None:
        """Look at the budget again: it is exhausted now."""
        self._waiting.cancel()

    def drain(self) -> None:
        """Hold back no full buffer any longer."""
        self._draining = True
        self._waiting.cancel()

    @property
    def is_patient(self) -> bool:
        """Whether `next` waits for rows, none are queued, and nothing waits for those that are collected."""
        if self.replaying or self._wanted or self._draining or self._budget.exhausted:
            return False
        return self._inbox.statistics().tasks_waiting_receive > 0

    def look(self) -> None:
        """Look at the buffer again: it is its turn."""
        self._waiting.cancel()

    def collected(self, buffer: Buffer, *, first: bool = False) -> None:
        """Note that rows were added to a buffer; `first`: it was empty."""
        if self._turns is not None:
            self._turns.collect(self, buffer)
        elif first:
            self._waiting.cancel()  # it has a deadline now

    def leave(self, buffer: Buffer) -> None:
        """Wait for no turn: the rows are flushed, or dropped."""
        if self._turns is not None:
            self._turns.leave(self, buffer)

    def late(self, buffer: Buffer, now: float) -> float:
        """Return the seconds for which a buffer has waited for its turn; `now` is the event loop's time."""
        if self._turns is None or not self._turns.waits(self):
            return 0.0
        return max(0.0, now - buffer.deadline)

    async def next(self, buffer: Buffer) -> Rows | ReplayEnd | FlushReason:
        """Wait for the next rows, or for a reason to flush the buffer.

        Returns:
            The next item of the inbox, or the reason; "shutdown" when the inbox has ended.
        """
        while True:
            if buffer.held and not self.replaying:
                self.collected(buffer)
            if reason := self._reason(buffer):
                return reason
            deadline = math.inf if self.replaying or self._turns is not None else buffer.deadline
            with anyio.CancelScope(deadline=deadline) as self._waiting:
                try:
                    return await self._inbox.receive()
                except anyio.EndOfStream:
                    return "shutdown"

    def _reason(self, buffer: Buffer) -> FlushReason | None:
        """Return the reason to flush now, None to wait for more rows."""
        if self.replaying or not buffer.held:
            return None
        if self._turns is not None:
            if given := self._turns.take_given(self):
                return given
        elif anyio.current_time() >= buffer.deadline:
            return "age"
        if self._inbox.statistics().current_buffer_used:
            return None
        if wanted := self._wanted:
            return wanted
        if self._budget.exhausted and buffer.reducer.when_full == "flush":
            return "bytes"  # No more rows can arrive: these use up the budget.
        return None

    @property
    def _wanted(self) -> Literal["revoke", "awaited"] | None:
        """The reason to flush because something waits for the collected rows."""
        if self._revoking:
            return "revoke"
        return "awaited" if self._awaiting else None

    async def hold_back(self, buffer: Buffer, reason: FlushReason) -> FlushReason:
        """With `when_full="backpressure"`, hold a full buffer until its age, the drain, or a wait for it.

        Returns:
            The reason for which it is flushed in the end.
        """
        self.leave(buffer)
        if reason == "revoke" or (reason == "bytes" and self._budget.exhausted):
            self._end_together(buffer)
        if reason not in ("count", "bytes") or buffer.reducer.when_full != "backpressure":
            return reason
        while not self._draining and anyio.current_time() < buffer.deadline:
            if wanted := self._wanted:
                return wanted
            with anyio.CancelScope(deadline=buffer.deadline) as self._waiting:
                await anyio.sleep_forever()
        return "age"

    def flushes_at_end(self, buffer: Buffer) -> bool:
        """Return whether the buffer is flushed when the inbox has ended.

        A part of a replayed range is dropped: the next owner of the partition writes it as a whole.
        """
        self.leave(buffer)
        keeps = buffer.reducer.on_shutdown == "flush" and not self.replaying
        if keeps:
            self._end_together(buffer)
        return bool(buffer.held) and keeps

    def _end_together(self, buffer: Buffer) -> None:
        """Let a buffer be written with those of the other lanes that end now."""
        if self._turns is not None:
            buffer.turn = self._turns.end(buffer)


_MOST_OF_CODE: Final = 5  # attempts; an odd answer of a server may lead to an error of code, once


class MistakeRetry(Retry):
    """A retry after an exception that is a mistake of code (`is_of_code`), its cause."""


async def retry_flush(
    attempt: Callable[[int], Awaitable[T]], stage: str, on_retry: Callable[[Retry], None]
) -> T:
    """Call `attempt` with 1, 2, ... until it raises no `Retry`, and pause in between; return its result.

    Args:
        attempt: called with the number of the attempt.
        stage: as that of `Pauses`.
        on_retry: called before each pause.

    Raises:
        SinkError: several attempts in a row ended with the same mistake of code.
    """
    pauses, alike = Pauses(stage, "flush failed, trying again"), 1
    while True:
        try:
            return await attempt(pauses.attempts + 1)
        except Retry as retry:
            alike = alike + 1 if retry.reason == pauses.reason else 1
            if alike == _MOST_OF_CODE and isinstance(retry, MistakeRetry):
                raise _mistake(stage, retry) from retry
            seconds = pauses.next(retry.reason, anyio.current_time(), retry.after)
            on_retry(retry)
        await anyio.sleep(seconds)


def _mistake(stage: str, retry: MistakeRetry) -> SinkError:
    cause = retry.__cause__
    assert cause is not None  # noqa: S101  see its class
    return SinkError(
        f"{stage}: each of {_MOST_OF_CODE} attempts to flush raised {retry.reason} ({place_of(cause)}), "
        "which is a mistake of code or data: correct it; or set on_error='divert', which sends the rows to "
        "reduce_err. What may succeed later raises Retry(reason), or another error than this"
    )


class FlushOutcome(NamedTuple):
    """The rows and offsets of a flush that is done.

    Attributes:
        forward: rows for the next reducer; None if there are none.
        ranges: the offsets of the flush, without those of failed records.
        failed: the records that the reducer refused, for the error sink.
        again: whether the others are flushed again, without those that failed.
        accepted: the number of rows that the reducer did not refuse.
    """

    forward: Rows | None
    ranges: tuple[Range, ...]
    failed: list[Rows]
    again: bool = False
    accepted: int = 0


async def attempt_flush(
    buffer: Buffer, stage: str, number: int, write: Write, *, may_repeat: bool = True
) -> FlushOutcome:
    """Call the reducer's `flush` once, and apply `on_error` to an exception.

    Args:
        number: of the attempt, for the failed records.
        write: for a sink.
        may_repeat: False if rows that may have been written must not be written again: then `retry`
            means `divert`, and so does a `Retry`, unless it says that nothing can be doubled.

    Raises:
        Retry: the reducer's own, or for its exception with `on_error="retry"`.
        Exception: the reducer's own, with `on_error="stop"`. A KmrError is raised with `retry` too: a
            retry cannot succeed.
        UnexpectedDuplicate: the reducer's own, with every `on_error`.
        SinkError: `flush` returned something else than a table or None, or refused rows name no sources.
    """
    reducer = buffer.reducer
    out, refusals = None, []
    records: list[Rows] = []
    try:
        out = await _flush(buffer, write)
    except RowsRefused as refused:
        out, refusals, records = refused.out, list(refused.refusals), list(refused.records)
    except Exception as error:  # noqa: BLE001  raised again unless it diverts
        refusals = _refused_by(buffer, error, may_repeat=may_repeat)
    if out is not None and not isinstance(out, pa.Table):
        raise SinkError(
            f"{stage}: {type(reducer).__name__}.flush returned {type(out).__name__}; "
            "return a pyarrow Table, or None, or raise Retry(reason)"
        )
    accepted = buffer.rows - sum(map(len, records)) - sum(len(each.rows) for each in refusals)
    records += await _records([*buffer.set_aside, *refusals], stage, number, write)
    if len(records) > 1:
        records = settled_together(records)
    ranges = subtract_ranges(buffer.ranges(), (r for rows in records for r in rows.ranges))
    if out is None or out.num_rows == 0:
        return FlushOutcome(None, ranges, records, accepted=accepted)
    return FlushOutcome(_made(out, ranges, buffer), ranges, records, accepted=accepted)


def _made(table: pa.Table, ranges: tuple[Range, ...], buffer: Buffer) -> Rows:
    """Return the rows for the next reducer, with their records, if the reducer keeps rows."""
    made, held = Rows(table, ranges, None, buffer.sources()), buffer.held
    if not buffer.reducer.keeps_rows:
        return made
    owners = {r.topic_partition for r in ranges}
    offsets = [rows.offsets for rows in held if rows.offsets is not None and rows.places is None]
    if len(owners) == 1 and len(offsets) == len(held):
        return replace(made, offsets=np.concatenate(offsets))
    places = [each for rows in held if (each := rows.coordinates) is not None]
    return replace(made, places=pa.concat_tables(places) if len(places) == len(held) else None)


def _refused_by(buffer: Buffer, error: Exception, *, may_repeat: bool) -> list[Refusal]:
    """Apply `on_error`: return all rows if it diverts them, else raise as `attempt_flush`."""
    on_error = buffer.reducer.on_error
    if isinstance(error, Escaped) and isinstance(error.error, asyncio.CancelledError):
        error = Retry(reason_of(error))  # of a library that has given up
    if isinstance(error, Retry):
        if may_repeat or not error.may_double:
            raise error
        return _divert(buffer, f"these rows may have been written: {error.reason}")
    if isinstance(error, UnexpectedDuplicate):
        raise error
    if on_error == "divert" or (on_error == "retry" and not may_repeat):
        return _divert(buffer, reason_of(error), error)
    if on_error == "stop" or isinstance(error, KmrError):
        raise error
    raise (MistakeRetry if is_of_code(error) else Retry)(reason_of(error)) from error


async def _flush(buffer: Buffer, write: Write) -> pa.Table | None:
    """Flush the rows, if there are any; those whose types do not fit the others' are set aside."""
    while buffer.rows:
        try:
            return await call_flush(buffer.reducer, write)
        except MixedTypes:
            if not buffer.set_misfits_aside():
                raise
    return None


async def call_flush(reducer: Reducer, write: Write) -> pa.Table | None:
    """Call `flush` on the event loop if it is a coroutine function, else in a thread."""
    arguments = (write,) if isinstance(reducer, Sink) else ()
    if inspect.iscoroutinefunction(reducer.flush):
        with no_escape():
            out: pa.Table | None = await reducer.flush(*arguments)
        return out
    return await run_in_thread(cast("Callable[..., pa.Table | None]", reducer.flush), *arguments)


def _divert(buffer: Buffer, reason: str, error: Exception | None = None) -> list[Refusal]:
    return [Refusal(rows, reason, error) for rows in buffer.held]


async def _records(
    refusals: Sequence[Refusal], stage: str, attempt: int, write: Write
) -> list[Rows]:
    if not refusals:
        return []
    # In a thread: on Spark, the driver reads the records behind refused rows once more.
    return await run_in_thread(_failed, refusals, stage, attempt, write)


def _failed(refusals: Sequence[Refusal], stage: str, attempt: int, write: Write) -> list[Rows]:
    """Make rows for `reduce_err` of refused rows: of their records, or of rows that are made of many."""
    found: list[Rows] = []
    for each in refusals:
        rows = each.rows
        # A transaction settles all records below its last one: those of a row that it lacks fail before it.
        if rows.coordinates is not None or write.transaction is not None:
            found += original_records(rows, each.reason, stage, attempt, each.error)
            continue
        made_of = rows.ranges
        if (announced := write.announcement) is not None:
            made_of = tuple(
                r._replace(first=announced.first, last=announced.last) for r in rows.ranges[:1]
            )
        found.append(row_letters(rows, each.reason, stage, attempt, each.error, made_of))
    return found
