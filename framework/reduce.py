"""The reduce stage: collects rows in one copy of its reducer while the other copy is being flushed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import anyio
import structlog

from framework.attempts import attempt_flush, delivered, pause_before
from framework.buffer import Buffer
from framework.errors import SinkError
from framework.record import Cut, Rows
from framework.reducer import Retry
from framework.status import StageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from framework.backpressure import Budget, Gate
    from framework.failures import ErrorPort
    from framework.ledger import Ledgers
    from framework.promises import Promise
    from framework.record import Range, TopicPartition
    from framework.reducer import Context, Empty, Flushed, FlushReason, FlushResult, Reducer
    from framework.telemetry import Metrics

__all__ = ["ReduceStage"]

_log = structlog.get_logger(__name__)


class ReduceStage:
    """Runs one reducer of a strategy.

    Two tasks: one collects rows until a limit is reached, the other flushes, one buffer at a time, so
    that offsets settle in order. What is handed to the second task is frozen: a retry has the same rows.

    Args:
        out: the next stage's inbox, None for the last of a chain.
        errors: for rows that the sink can never take; None in the error stage itself.
        partition: whose chain the stage belongs to; None for that of all partitions.
        promise: what is done before the stage writes, if its chain is that of one partition.
        replaying: up to the first mark everything belongs to one range, whatever the limits say.
        on_stale: told of ranges that were lost together with rows of a partition that is gone.
        on_progress: called after every attempt to flush, whatever came of it.
    """

    def __init__(
        self,
        name: str,
        reducer: Reducer,
        inbox: MemoryObjectReceiveStream[Rows | Cut],
        out: MemoryObjectSendStream[Rows | Cut] | None,
        errors: ErrorPort | None,
        *,
        ledgers: Ledgers,
        gate: Gate,
        budget: Budget,
        metrics: Metrics,
        on_stale: Callable[[Iterable[Range]], None],
        on_progress: Callable[[], None],
        promise: Promise | None = None,
        partition: TopicPartition | None = None,
        replaying: bool = False,
    ) -> None:
        self.name = name
        self._shown_as = name if partition is None else f"{name} {partition}"
        self._inbox = inbox
        self._out = out
        self._errors = errors
        self._ledgers = ledgers
        self._gate = gate
        self._budget = budget
        self._metrics = metrics
        self._on_stale = on_stale
        self._on_progress = on_progress
        self._promise = promise
        self._replaying = replaying
        self._collecting = Buffer(reducer.spawn())
        self._buffers = [self._collecting, Buffer(reducer.spawn())]
        self._free_send, self._free = anyio.create_memory_object_stream[Buffer](2)
        self._full, self._frozen = anyio.create_memory_object_stream[tuple[Buffer, "FlushReason"]](
            1
        )
        self._free_send.send_nowait(self._buffers[1])
        self._waiting = anyio.CancelScope()
        self._draining = anyio.Event()
        self._flushing_through = False
        self._awaited = 0
        self._flushing_since: float | None = None
        self._trouble: str | None = None

    async def open(self, context: Context) -> None:
        """Connect the reducer. Raises StrategyError for what the user must mend."""
        for buffer in self._buffers:
            await buffer.reducer.open(context)

    async def close(self) -> None:
        """Disconnect the reducer, also after a failure."""
        for stream in (
            self._inbox,
            self._free_send,
            self._free,
            self._full,
            self._frozen,
            self._out,
        ):
            if stream is not None:
                stream.close()
        if self._errors is not None:
            self._errors.close()
        for buffer in self._buffers:
            await buffer.reducer.close()

    def flush_through(self, *, on: bool) -> None:
        """While it is on, nothing is collected: rows are flushed as soon as no more are waiting."""
        self._flushing_through = on
        self._waiting.cancel()

    def awaited(self, on: bool) -> None:
        """While anybody waits for what is collected here, it is flushed as soon as no more are waiting."""
        self._awaited += 1 if on else -1
        self._waiting.cancel()

    def make_room(self) -> None:
        """The in-flight budget is used up: flush what is collected unless more is on its way."""
        self._waiting.cancel()

    def drain(self) -> None:
        """No more waiting for `max_age`: what is collected is flushed when the inbox ends."""
        self._draining.set()

    async def run(self) -> None:
        """Collect and flush until the inbox is closed and empty.

        Raises:
            KmrError: the reducer's error, when `on_error` says stop or it cannot be mended by retrying.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._flush_frozen)
            with self._full:
                await self._collect()

    async def _collect(self) -> None:
        while True:
            event = await self._next()
            if isinstance(event, Rows):
                await self._take(event)
            elif isinstance(event, Cut):
                self._replaying = False
                await self._hand_over("replay")
            elif event == "shutdown":
                break
            elif self._collecting.held:
                await self._hand_over(event)
        # A part of a range that is replayed is dropped: it is written whole, by whoever reads it again.
        keep = self._collecting.reducer.on_shutdown == "flush" and not self._replaying
        if self._collecting.held and keep:
            await self._full.send((self._collecting, "shutdown"))

    async def _next(self) -> Rows | Cut | FlushReason:
        """The next rows, or the reason to flush what is there."""
        deadline = math.inf if self._replaying else self._collecting.deadline
        while True:
            if anyio.current_time() >= deadline:
                return "age"
            if self._collecting.held and not self._replaying and (reason := self._hurry()):
                return reason
            with anyio.CancelScope(deadline=deadline) as self._waiting:
                try:
                    return await self._inbox.receive()
                except anyio.EndOfStream:
                    return "shutdown"

    def _hurry(self) -> FlushReason | None:
        """Why not to wait for a limit, when no more rows are in the inbox."""
        if self._inbox.statistics().current_buffer_used:
            return None
        if self._flushing_through:
            return "revoke"
        if self._awaited:
            return "awaited"
        if self._budget.exhausted and self._collecting.reducer.when_full == "flush":
            return "bytes"  # Nothing more can arrive: these rows use up the budget.
        return None

    async def _take(self, rows: Rows) -> None:
        """Collect rows, and flush as often as a limit is reached on the way."""
        rest: Rows | None = rows
        while rest is not None:
            if not self._ledgers.is_current(rest.ranges):
                self._on_stale(rest.ranges)
                return
            if self._replaying:
                self._collecting.add(rest, limited=False)
                return
            rest = self._collecting.add(rest)
            reason = self._collecting.full()
            if reason is None and rest is not None:
                reason = "bytes"
            if reason is not None:
                await self._hand_over(reason)

    async def _hand_over(self, reason: FlushReason) -> None:
        """Freeze the buffer for flushing, and go on with the other one."""
        if reason in ("count", "bytes") and self._collecting.reducer.when_full == "backpressure":
            with anyio.move_on_at(self._collecting.deadline):
                await self._draining.wait()
            reason = "age"
        await self._full.send((self._collecting, reason))
        self._collecting = await self._free.receive()

    async def _flush_frozen(self) -> None:
        try:
            async for buffer, reason in self._frozen:
                self._flushing_since = anyio.current_time()
                if buffer.held:
                    await self._flush(buffer, reason)
                if reason == "replay" and self._out is not None:
                    await self._out.send(Cut())
                self._flushing_since = self._trouble = None
                buffer.clear()
                self._free_send.send_nowait(buffer)
        finally:
            if self._out is not None:
                self._out.close()
            if self._errors is not None:
                self._errors.close()

    async def _flush(self, buffer: Buffer, reason: FlushReason) -> None:
        """Attempt until the rows are delivered, then settle them or send on what the reducer made."""
        attempt = 0
        while True:
            attempt += 1
            if self._promise is not None:
                await self._promise.wait_turn(buffer)
            async with self._gate:
                # Again until nothing is stale: a partition that is read again makes its other rows so.
                while stale := buffer.drop_stale(self._ledgers.is_current):
                    for rows in stale:
                        self._on_stale(rows.ranges)
                if not buffer.held:
                    return
                try:
                    result = await self._attempt(buffer)
                finally:
                    self._on_progress()
                if not isinstance(result, Retry):
                    forward, failed = self._delivered(buffer, result, attempt)
                    break
            await self._back_off(result, attempt)
        self._count(buffer, reason)
        if forward is not None and self._out is not None:
            await self._out.send(forward)
        if self._errors is not None:
            for records in failed:
                await self._errors.send(records, self.name)

    async def _attempt(self, buffer: Buffer) -> FlushResult:
        promise = self._promise
        if promise is None:
            return await attempt_flush(buffer, self.name)
        return await promise.before_write(buffer) or await attempt_flush(
            buffer, self.name, again=promise.repeats
        )

    def _delivered(
        self, buffer: Buffer, result: Flushed | Empty, attempt: int
    ) -> tuple[Rows | None, list[Rows]]:
        """Settle, still behind the gate, so that a commit sees it; returns what goes on, and what failed."""
        forward, ranges, failed = delivered(buffer, result, self.name, attempt)
        if failed and self._errors is None:
            reason = failed[0].table.column("reason")[0].as_py()
            raise SinkError(f"{self.name}: the error sink refused rows: {reason}")
        if self._out is None or forward is None:
            self._ledgers.settle(ranges)
            return None, failed
        return forward, failed

    async def _back_off(self, retry: Retry, attempt: int) -> None:
        after = pause_before(retry, attempt)
        if self._trouble is None or self._trouble != retry.reason:
            _log.warning(
                "flush failed, trying again", stage=self.name, reason=retry.reason, seconds=after
            )
        self._trouble = retry.reason
        self._metrics.flush_retries.labels(self.name).inc()
        await anyio.sleep(after)

    def _count(self, buffer: Buffer, reason: FlushReason) -> None:
        metrics = self._metrics
        metrics.flushes.labels(self.name, reason).inc()
        metrics.flush_records.labels(self.name).observe(buffer.rows)
        metrics.flush_bytes.labels(self.name).observe(buffer.bytes)
        if self._flushing_since is not None:
            metrics.flush_seconds.labels(self.name).observe(
                anyio.current_time() - self._flushing_since
            )

    def status(self) -> StageStatus:
        """What the stage does now."""
        activity: Literal["idle", "collecting", "flushing", "retrying", "held"]
        since = self._flushing_since
        if since is None:
            since = self._collecting.since
            activity = "idle" if since is None else "collecting"
        elif not self._gate.is_open:
            activity = "held"
        else:
            activity = "flushing" if self._trouble is None else "retrying"
        return StageStatus(
            name=self._shown_as,
            activity=activity,
            queued=self._inbox.statistics().current_buffer_used,
            rows=sum(buffer.rows for buffer in self._buffers),
            bytes=sum(buffer.bytes for buffer in self._buffers),
            seconds=0.0 if since is None else anyio.current_time() - since,
            reason=self._trouble,
        )
