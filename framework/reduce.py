"""The reduce stage: one task collects rows in a copy of the reducer while another flushes the other copy.

When a stage flushes, and how it tries again, is in `kmr.reducers.flushing`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import anyio
import structlog

from .branches.branches import Branches
from .errors import SinkError, UnexpectedDuplicate, no_escape
from .observe.status import StageStatus
from .observe.waits import REBALANCE, TURN, Waiting
from .record import ReplayEnd, Rows
from .reducers.buffer import Buffer
from .reducers.flushing import FlushOutcome, FlushTrigger, attempt_flush, retry_flush
from .reducers.reducer import close_all
from .reducers.sink import NEW
from .service import watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .guarantees import Guarantee
    from .observe.tracing import FlushSpan
    from .parts import ReducePorts, SharedParts
    from .record import TopicPartition
    from .reducers.buffer import FlushReason
    from .reducers.reducer import Context, Reducer, Retry
    from .reducers.sink import Write
    from .reducers.turns import Turns

_log = structlog.get_logger(__name__)

_NEXT: Final = "the next stage, whose queue is full"


class ReduceStage:
    """Runs one reducer of a strategy.

    Two tasks: one collects rows until there is a reason to flush, the other flushes, one buffer at a time,
    so that offsets settle in order. A buffer is frozen when it is handed over: a retry has the same rows.

    Args:
        partition: the partition of the lane that the stage belongs to; None if all partitions share it.
        guarantee: of its writes.
        replaying: the inbox begins with an announced range.
        turns: its flushes by age wait for one; None: they do not.
    """

    def __init__(
        self,
        name: str,
        reducer: Reducer,
        ports: ReducePorts,
        shared: SharedParts,
        guarantee: Guarantee,
        *,
        partition: TopicPartition | None = None,
        replaying: bool = False,
        turns: Turns | None = None,
    ) -> None:
        self.name = name
        self._shown_as = name if partition is None else f"{name} {partition}"
        self._ports = ports
        self._guarantee = guarantee
        self._shared = shared
        self._ledgers = shared.ledgers
        self._metrics = shared.metrics
        self._collecting = Buffer(copy.deepcopy(reducer))
        self._buffers = [self._collecting, Buffer(copy.deepcopy(reducer))]
        self._free_send, self._free = anyio.create_memory_object_stream[Buffer](2)
        self._full, self._frozen = anyio.create_memory_object_stream[tuple[Buffer, "FlushReason"]](
            1
        )
        self._free_send.send_nowait(self._buffers[1])
        self._flushing_since: float | None = None
        self._attempt_since: float | None = None
        self._trouble: str | None = None
        self._waits = Waiting()
        self._at_rest = StageStatus(self._shown_as, "idle", queued=0)
        self.trigger = FlushTrigger(ports.inbox, shared.budget, replaying=replaying, turns=turns)

    async def open(self, context: Context) -> None:
        """Connect the reducer. Raises StrategyError if the strategy does not fit the sink."""
        for buffer in self._buffers:
            await buffer.reducer.open(context)

    async def close(self) -> None:
        """Disconnect the reducer, also after a failure."""
        self.trigger.leave(self._collecting)
        for stream in (self._ports, self._free_send, self._free, self._full, self._frozen):
            stream.close()
        await close_all(buffer.reducer.close for buffer in self._buffers)

    async def run(self) -> None:
        """Collect and flush until the inbox is closed and empty.

        Raises:
            KmrError: the reducer's error, when `on_error` is `stop` or a retry cannot succeed.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._flush_frozen)
                with self._full, no_escape():
                    await self._collect()
        except (Exception, BaseExceptionGroup) as error:
            self._shared.on_failure(error)
            raise

    def accept(self, rows: Rows) -> bool:
        """Collect rows at once, past the inbox, and wake no task; return False if they must be queued.

        They must be where others are queued before them, and where they would be a reason to flush.
        """
        collecting = self._collecting
        if not (self.trigger.is_patient and collecting.has_room(rows)):
            return False
        is_first = collecting.since is None
        collecting.add_unlimited(rows)
        self.trigger.collected(collecting, first=is_first)
        return True

    async def _collect(self) -> None:
        while True:
            event = await self.trigger.next(self._collecting)
            if isinstance(event, Rows):
                await self._take(event)
            elif isinstance(event, ReplayEnd):
                self.trigger.replaying = False
                await self._hand_over("replay")
            elif event == "shutdown":
                break
            else:
                await self._hand_over(event)
        if self.trigger.flushes_at_end(self._collecting):
            await self._full.send((self._collecting, "shutdown"))

    async def _take(self, rows: Rows) -> None:
        """Collect rows, and hand the buffer over each time a limit is reached."""
        rest: Rows | None = rows
        while rest is not None:
            if not self._ledgers.is_current(rest.ranges):
                return
            reason = None
            if self.trigger.replaying:
                self._collecting.add_unlimited(rest)
                rest = None
            else:
                rest, reason = self._collecting.add(rest)
            if rows.closes is not None:  # the records in flight do not count these bytes
                self._ledgers.hold(self._collecting, self._collecting.bytes)
            if reason is not None:
                await self._hand_over(reason)

    async def _hand_over(self, reason: FlushReason) -> None:
        """Freeze the buffer for flushing, and continue with the other one."""
        reason = await self.trigger.hold_back(self._collecting, reason)
        await self._full.send((self._collecting, reason))
        try:
            self._collecting = self._free.receive_nowait()
        except anyio.WouldBlock:
            self._collecting = await self._free.receive()

    async def _flush_frozen(self) -> None:
        try:
            with no_escape():
                async for buffer, reason in self._frozen:
                    self._flushing_since = anyio.current_time()
                    if buffer.held:
                        await self._flush(buffer, reason)
                    if reason == "replay" and self._ports.out is not None:
                        with self._waits.on(_NEXT):
                            await self._ports.out.send(ReplayEnd())
                    self._flushing_since = self._trouble = None
                    buffer.clear()
                    buffer.leave_turn()
                    self._ledgers.hold(buffer, 0)
                    self._free_send.send_nowait(buffer)
        finally:
            for buffer in self._buffers:
                self._ledgers.hold(buffer, 0)
                buffer.leave_turn()
            self._ports.close_outputs()

    async def _flush(self, buffer: Buffer, reason: FlushReason) -> None:
        """Flush until it is done, then send on the reducer's output and the failed records."""
        async with self._metrics.tracing.flushing(self.name, reason, buffer.held) as span:
            on_retry = partial(self._on_retry, buffer, span)
            again = True
            while again:
                outcome = await retry_flush(partial(self._attempt, buffer), self.name, on_retry)
                if outcome is None:
                    return
                again = outcome.again
                if not again:
                    self._count(buffer, reason, outcome)
                    if span is not None:
                        await span.flushed()
                await self._send_on(buffer, outcome)

    async def _send_on(self, buffer: Buffer, outcome: FlushOutcome) -> None:
        for records in outcome.failed:
            self._ledgers.charge(records.ranges, records.nbytes, failed=True)
        if letters := sum(records.nbytes for records in outcome.failed if not records.ranges):
            self._ledgers.hold(buffer, buffer.bytes + letters)
        if self._ports.out is not None and outcome.forward is not None:
            if outcome.ranges:  # the rows replace the collected ones
                grown = max(0, outcome.forward.nbytes - buffer.bytes)
                self._ledgers.charge(outcome.ranges, grown)
            with self._waits.on(_NEXT):
                await self._ports.out.send(outcome.forward)
        if self._ports.errors is not None:
            for records in outcome.failed:
                with self._waits.on("reduce-err, or for err_limit"):
                    await self._ports.errors.send(records, self.name)

    async def _attempt(self, buffer: Buffer, number: int) -> FlushOutcome | None:
        """Flush once; None if all rows belong to lost partitions. Raises as `Guarantee.deliver`."""
        try:
            what = "failed records before its rows" if self._shared.gate.is_open else REBALANCE
            with self._waits.on(what):
                return await self._guarantee.deliver(buffer, partial(self._write, buffer, number))
        except UnexpectedDuplicate as error:
            self._metrics.unexpected_duplicates.labels(self.name).inc()
            _log.error("rows were dropped as a repetition", stage=self.name, reason=str(error))
            raise

    async def _write(
        self, buffer: Buffer, number: int, write: Write = NEW, *, may_repeat: bool = True
    ) -> FlushOutcome:
        self._progressed()
        self._waits.what = None
        write = replace(write, progressed=self._progressed)
        watchdog.note(f"flush of {self._shown_as}")
        try:
            outcome = await attempt_flush(buffer, self.name, number, write, may_repeat=may_repeat)
        finally:
            self._attempt_since = None
        if outcome.failed and self._ports.errors is None:
            reason = outcome.failed[0].table.column("reason")[0].as_py()
            raise SinkError(f"{self.name}: the error sink refused rows: {reason}")
        return outcome if self._ports.out is not None else outcome._replace(forward=None)

    def _progressed(self) -> None:
        self._attempt_since = anyio.current_time()

    def _on_retry(self, buffer: Buffer, span: FlushSpan | None, retry: Retry) -> None:
        self._trouble = retry.reason
        if buffer.turn is not None:
            buffer.turn.leave(buffer)
        self._metrics.count_retry(self.name, retry.reason)
        if span is not None:
            span.retried(retry.reason)

    def _count(self, buffer: Buffer, reason: FlushReason, outcome: FlushOutcome) -> None:
        metrics = self._metrics
        if self._ports.out is None and self._ports.errors is not None:
            metrics.done.written += outcome.accepted
        now = anyio.current_time()
        seconds = now - (now if self._flushing_since is None else self._flushing_since)
        metrics.count_flush(self.name, reason, buffer.rows, buffer.bytes, seconds)
        if isinstance(buffer.reducer, Branches):
            for branch, (rows, nbytes) in buffer.reducer.counts.items():
                metrics.count_rows(f"{self.name} {branch}", rows, nbytes)

    def held(self) -> list[Rows]:
        """Return the rows that are collected or being flushed."""
        return [rows for buffer in self._buffers for rows in buffer.held]

    def statuses(self, now: float) -> Iterator[StageStatus]:
        """Return the stage's status, and that of each branch that has not written its part of a flush."""
        yield self.status(now)
        since = self._flushing_since
        if since is None:
            return
        for buffer in self._buffers:
            pending = buffer.reducer.pending if isinstance(buffer.reducer, Branches) else {}
            for branch, (rows, nbytes, reason) in pending.items():
                yield StageStatus(
                    name=self._shown_as.replace(self.name, f"{self.name} {branch}", 1),
                    activity="flushing" if reason is None else "retrying",
                    queued=0,
                    rows=rows,
                    bytes=nbytes,
                    seconds=now - since,
                    reason=reason,
                    branch=branch,
                )

    def status(self, now: float) -> StageStatus:
        """Return the stage's present activity; `now` is the event loop's time."""
        activity: Literal["idle", "waiting", "collecting", "flushing", "retrying", "held"]
        since, attempt = self._flushing_since, self._attempt_since
        queued = self._ports.inbox.statistics().current_buffer_used
        if since is None and self._collecting.since is None and not queued:
            return self._at_rest
        if since is None:
            since = self._collecting.since
            activity = "idle" if since is None else "collecting"
        elif self._trouble is not None:
            activity = "retrying"
        elif attempt is not None:
            activity = "flushing"
        else:
            activity = "waiting" if self._shared.gate.is_open else "held"
        late = self.trigger.late(self._collecting, now)
        return StageStatus(
            name=self._shown_as,
            activity=activity,
            queued=queued,
            rows=sum(buffer.rows for buffer in self._buffers),
            bytes=sum(buffer.bytes for buffer in self._buffers),
            seconds=0.0 if since is None else now - since,
            reason=self._trouble,
            working=0.0 if attempt is None else now - attempt,
            waits_for=self._waits.what or (TURN if late else None),
            waited=self._waits.seconds(now) or late,
        )
