"""The maps of partitions that have little, together: one hand-over to a thread for all of them.

Each partition keeps its map in order, its ledger and its lane; what arrived together travels together. A
partition whose map takes long leaves: the others go on without it, and its next batches are mapped by its
own stage (`kmr.map`), until their map is quick again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

from .errors import no_escape
from .mapping.executor import LONGEST
from .mapping.stop import Stop
from .observe.tracing import OFF
from .service import watchdog
from .service.threads import run_in_thread
from .service.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anyio.abc import TaskGroup

    from .intake.backpressure import MapInboxes
    from .map import MapStage
    from .mapping.together import MappedBatch, Together
    from .parts import MapParts
    from .record import Batch, TopicPartition

LITTLE: Final = 500
"""Offsets of a batch up to which it is little."""

_LITTLE_BYTES: Final = 64 * 1024
_MOST: Final = 20_000  # offsets in one round
_PART_OF_BUDGET: Final = 4  # rounds that fit into it, as parts of a batch do
_TICK: Final = 0.02
"""Seconds: a map that goes on from one tick to the next is not quick, and leaves the round."""

_LONGEST_ROUND: Final = 0.1
_LONGEST_DECODING: Final = 0.5


class Share:
    """The part of one partition: its batches that wait, and whether one is being mapped.

    Attributes:
        waiting: its batches, in order.
        is_busy: a batch of it is in a round, or its rows wait for the next stage.
        is_dropped: the partition is lost.
        alone: how many batches went to its own stage.
        scopes: of what goes on for it after a round; cancelled when the partition is lost.
    """

    def __init__(self, stage: MapStage) -> None:
        self.stage = stage
        self.waiting: deque[Batch] = deque()
        self.is_busy = False
        self.is_dropped = False
        self.alone = 0
        self.scopes: set[anyio.CancelScope] = set()
        self._freed = Wakeup()

    @property
    def may_take(self) -> bool:
        """Whether the next batch may be mapped with those of others."""
        return not self.is_dropped and self.stage.may_share(self.alone)

    def free(self) -> None:
        """Note that its batch is mapped and sent on."""
        self.is_busy = False
        self._freed.notify()

    def drop(self) -> None:
        """Forget its batches: the partition is lost, or nothing more is mapped."""
        self.is_dropped = True
        self.waiting.clear()
        for scope in self.scopes:
            scope.cancel()

    async def wait_free(self) -> None:
        """Return when none of its batches is being mapped; those that wait are dropped."""
        self.waiting.clear()
        while self.is_busy:
            await self._freed.wait()


class SharedMap:
    """Maps batches that are little, of all partitions.

    Args:
        inboxes: of the stages, for batches that are mapped alone.

    Attributes:
        shares: of the partitions that take part.
    """

    def __init__(self, inboxes: MapInboxes, parts: MapParts) -> None:
        self._map_parts = parts
        self._inboxes = inboxes
        self._parts = parts.shared
        self.shares: dict[TopicPartition, Share] = {}
        self._ready: dict[Share, None] = {}  # shares whose batches wait, the oldest first
        self._running: set[_Round] = set()
        self._changed = Wakeup()
        self._at_gate = anyio.CancelScope()
        self._closing = False

    def add(self, partition: TopicPartition, stage: MapStage) -> None:
        """Let a stage take part, if its map may."""
        if self._map_parts.executor.can_share(stage.spec) and self._parts.metrics.tracing is OFF:
            self.shares[partition] = stage.share = Share(stage)

    def remove(self, partition: TopicPartition) -> None:
        """Forget a partition, and its batches that wait."""
        share = self.shares.pop(partition, None)
        if share is not None:
            self._ready.pop(share, None)
            share.drop()

    def offer(self, batch: Batch) -> bool:
        """Take a batch, or return False: its own stage maps it."""
        share = self.shares.get(batch.topic_partition)
        if share is None or self._closing:
            return False
        if not (share.is_busy or share.waiting) and not (is_little(batch) and share.may_take):
            share.alone += 1
            return False
        share.waiting.append(batch)
        self._wake(share)
        return True

    @property
    def is_draining(self) -> bool:
        """Whether nothing more is mapped."""
        return self._closing

    def waiting(self, partition: TopicPartition) -> int:
        """Return how many batches of a partition wait."""
        share = self.shares.get(partition)
        return 0 if share is None else len(share.waiting)

    def drain(self) -> None:
        """Map nothing more; maps end before their next record."""
        self._closing = True
        self._at_gate.cancel()
        for each in self._running:
            each.stop.request()
        self._changed.notify()

    async def run(self) -> None:
        """Map until `drain` was called and nothing is under way. Raises KmrError: as `MapStage.run`."""
        async with anyio.create_task_group() as tasks:
            while True:
                while not self._closing and not self._ready:
                    await self._changed.wait()
                if self._closing:
                    break
                if not self._parts.gate.is_open:
                    with anyio.CancelScope() as self._at_gate:
                        async with self._parts.gate:
                            pass
                    continue
                items = self._next()
                if items:
                    each = _Round(self, self._map_parts, items, tasks)
                    self._running.add(each)
                    tasks.start_soon(each.run)
                    await each.released.wait()

    def _wake(self, share: Share) -> None:
        if not share.is_busy:
            self._ready[share] = None
            self._changed.notify()

    def _next(self) -> list[tuple[Share, Batch]]:
        """Take the batches of the next round, all of one topic; others are mapped alone, or later."""
        items: list[tuple[Share, Batch]] = []
        budget, offsets, bytes_ = self._parts.budget, 0, 0.0
        topic: str | None = None
        for share in list(self._ready):
            if share.waiting and topic not in (None, share.waiting[0].topic):
                continue
            if offsets >= _MOST:
                break
            del self._ready[share]
            while share.waiting:
                batch = share.waiting[0]
                more = budget.expected(batch)
                if not (share.may_take and is_little(batch)) or not budget.has_room(bytes_ + more):
                    if not share.is_busy:
                        self.leave(share)
                    break
                if bytes_ + more > budget.limit / _PART_OF_BUDGET and items:
                    if not share.is_busy:
                        self._ready[share] = None
                    return items
                topic = batch.topic
                items.append((share, share.waiting.popleft()))
                share.is_busy = True
                offsets, bytes_ = offsets + batch.last + 1 - batch.first, bytes_ + more
                self._inboxes.taken(batch.topic_partition)
        return items

    def leave(self, share: Share, rests: Sequence[Batch] = ()) -> None:
        """Let its own stage map the batches that wait, after the rests of those that were begun."""
        for batch in (*rests, *share.waiting):
            share.alone += 1
            self._inboxes.put_alone(batch)
        share.waiting.clear()

    def free(self, share: Share) -> None:
        """Note that the batch of a partition is mapped and sent on."""
        share.free()
        if share.waiting:
            self._wake(share)

    def ended(self, each: _Round) -> None:
        """Forget a round that has ended."""
        self._running.discard(each)


def is_little(batch: Batch) -> bool:
    """Return whether a batch has so few records that it is mapped with those of other partitions."""
    return batch.last - batch.first < LITTLE and batch.nbytes <= _LITTLE_BYTES


class _Round:
    """One map of batches of several partitions.

    Attributes:
        released: set when the next round may begin: all are mapped, or what is left goes on by itself.
    """

    def __init__(
        self,
        shared: SharedMap,
        parts: MapParts,
        items: list[tuple[Share, Batch]],
        tasks: TaskGroup,
    ) -> None:
        self._shared = shared
        self._parts, self._executor = parts.shared, parts.executor
        self._items = items
        self._tasks = tasks
        self._scope = anyio.CancelScope()
        self._begun: float | None = None
        self._seen = -2
        self._seen_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._only: int | None = None  # the number of the batch that it was left with
        self._sent_before = anyio.Event()  # the rows of the batches before it are sent on
        budget = self._parts.budget
        self._expected = sum(budget.expected(batch) for _, batch in items)
        self.stop = Stop()
        self.released = anyio.Event()
        first = items[0][0].stage
        self._together: Together = self._executor.together(
            first.function, first.spec, [batch for _, batch in items], self.stop
        )

    async def run(self) -> None:
        parts = self._parts
        parts.budget.reserve(self._expected, maps=1)
        try:
            with self._failing(), self._scope, no_escape():
                await self._executor.map_together(self._together, self._begin)
                self._cancel_timer()
                if self._begun is not None:
                    parts.metrics.map_seconds.observe(anyio.current_time() - self._begun)
                if self._only is None:
                    self._note(0, len(self._items))
                    self._deliver(0, len(self._items))
                else:
                    await self._sent_before.wait()
                    self._note(self._only, self._only + 1)
                    self._deliver(self._only, self._only + 1)
        finally:
            parts.budget.reserve(-self._expected, maps=-1)
            self._cancel_timer()
            self.released.set()
            self._shared.ended(self)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Report what ends the worker before anything is closed."""
        try:
            yield
        except Exception as error:
            self._parts.on_failure(error)
            raise

    def _begin(self) -> None:
        self._begun = anyio.current_time()
        more = f" and of {len(self._items) - 1} more partitions" if len(self._items) > 1 else ""
        watchdog.note(f"map {self._items[0][1]!r}{more}")
        if self._executor.kind != "inline":
            self._timer = asyncio.get_running_loop().call_later(_TICK, self._look)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Detach the batch whose map takes long, if there is one."""
        assert self._begun is not None  # noqa: S101
        now, at = anyio.current_time(), self._together.at
        loop = asyncio.get_running_loop()
        is_slow = at == self._seen >= 0
        too_long = now - self._begun > (_LONGEST_ROUND if at >= 0 else _LONGEST_DECODING)
        if at < len(self._items) and (is_slow or too_long):
            self._detach(is_slow=is_slow, since=self._seen_at if is_slow else now)
            return
        self._seen, self._seen_at = at, self._seen_at if is_slow else now
        self._timer = loop.call_later(_TICK, self._look)

    def _detach(self, *, is_slow: bool, since: float) -> None:
        at = self._together.detach()
        if at >= len(self._items):
            return
        shared = self._shared
        for share, batch in reversed(self._items[at + 1 :]):
            share.waiting.appendleft(batch)
        for share in dict.fromkeys(share for share, _ in self._items[at + 1 :]):
            if at >= 0 and share is self._items[at][0]:
                continue
            if not share.is_dropped:
                share.is_busy = False
                if at < 0:  # the decoding is slow, and any partition may be the cause: all leave
                    shared.leave(share)
                shared.free(share)
        if at < 0:
            self._scope.cancel()
        else:
            self._only = at
            share, batch = self._items[at]
            share.scopes.add(self._scope)
            budget = self._parts.budget
            budget.reserve(budget.expected(batch) - self._expected)
            self._expected = budget.expected(batch)
            share.stage.detached(since, is_slow=is_slow)
            watchdog.note(f"map {batch!r}")
            self._timer = asyncio.get_running_loop().call_later(LONGEST, self._expire)
            if at:
                self._tasks.start_soon(self._finish, at)
            else:
                self._sent_before.set()
        self.released.set()

    def _expire(self) -> None:
        self.stop.expire()
        self._timer = asyncio.get_running_loop().call_later(LONGEST, self._expire)

    async def _finish(self, end: int) -> None:
        """Deliver the rows of the batches before the slow one: those of its own partition before its rows."""
        slow = self._items[end][0]
        own = next(number for number, (share, _) in enumerate(self._items) if share is slow)
        with self._failing():
            await run_in_thread(self._together.finish, end, abandon_on_cancel=True)
            self._note(0, end)
            self._deliver(0, own)
            await self._send(slow, self._mapped(own, end))
            self._sent_before.set()

    def _note(self, begin: int, end: int) -> None:
        """Count the rows of some batches."""
        done = [
            (share.stage, batch, outcome)
            for (share, batch), outcome in self._outcomes(begin, end)
            if not isinstance(outcome, Exception) and not share.is_dropped
        ]
        for stage, batch, outcome in done:
            stage.note_mapped(batch, outcome)
        done = [each for each in done if each[2].result.rest != each[1].first]
        if not done:
            return
        budget, metrics = self._parts.budget, self._parts.metrics
        made = sum(outcome.made for _, _, outcome in done)
        peak = max(outcome.made / max(1, batch.nbytes) for _, batch, outcome in done)
        nbytes = sum(batch.nbytes for _, batch, _ in done)
        topic = done[0][1].topic
        budget.learn(topic, nbytes, made)
        budget.learn_peak(topic, peak)
        records = sum(outcome.records for _, _, outcome in done)
        filtered = sum(outcome.result.filtered(outcome.records) for _, _, outcome in done)
        metrics.count_mapped(records, filtered)
        done[0][0].count_mapped(records - filtered)

    def _outcomes(
        self, begin: int, end: int
    ) -> Sequence[tuple[tuple[Share, Batch], MappedBatch | Exception]]:
        pairs = zip(self._items[begin:end], self._together.outcomes[begin:end], strict=True)
        return [(item, outcome) for item, outcome in pairs if outcome is not None]

    def _mapped(self, begin: int, end: int) -> list[tuple[Batch, MappedBatch]]:
        """Return the batches of one partition with what they became; raise the error of a map."""
        items: list[tuple[Batch, MappedBatch]] = []
        for (_, batch), outcome in self._outcomes(begin, end):
            if isinstance(outcome, Exception):
                raise outcome
            items.append((batch, outcome))
        return items

    def _deliver(self, begin: int, end: int) -> None:
        """Send the rows on. Raises the error of a map that ends the worker, after the others are sent."""
        errors: list[Exception] = []
        blocked: dict[Share, list[tuple[Batch, MappedBatch]]] = {}
        for (share, batch), outcome in self._outcomes(begin, end):
            if share.is_dropped:
                continue
            if isinstance(outcome, Exception):
                errors.append(outcome)
            elif share in blocked or not share.stage.send_now(batch, outcome):
                blocked.setdefault(share, []).append((batch, outcome))
        for share in dict.fromkeys(share for share, _ in self._items[begin:end]):
            if share in blocked:
                self._tasks.start_soon(self._send_and_end, share, blocked[share])
            elif not share.is_dropped:
                self._end(share)
        if errors:
            raise errors[0]

    async def _send_and_end(self, share: Share, items: list[tuple[Batch, MappedBatch]]) -> None:
        with self._failing():
            await self._send(share, items)
        if not share.is_dropped:
            self._end(share)

    async def _send(self, share: Share, items: list[tuple[Batch, MappedBatch]]) -> None:
        """Send rows to a stage that is full, or failed records; it ends with the partition."""
        with anyio.CancelScope() as scope, no_escape():
            share.scopes.add(scope)
            for batch, mapped in items:
                if share.is_dropped:
                    return
                if not share.stage.send_now(batch, mapped):
                    await share.stage.send_shared(batch, mapped)

    def _end(self, share: Share) -> None:
        share.scopes.clear()
        rests = share.stage.take_rests()
        if rests and not self._shared.is_draining:
            self._shared.leave(share, rests)
        self._shared.free(share)
