"""A model of a client that is a member of a model group."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..errors import CommitFenced, CommitRefused, ConsumerError
from ..kafka.group_offsets import Membership
from ..record import Batch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

    import pyarrow as pa

    from ..kafka.consumer import CommitOffset, RebalanceListener
    from .group import ModelGroup
    from .world import SimulatedMember, World

SESSION: Final = 10.0
_HEARTBEAT: Final = 1.0
_COMMIT_TIMEOUT: Final = 5.0
_UNSTABLE: Final = 0.1
_LEAVES_HEARD: Final = 0.3
_FETCHES: Final = (1, 1, 2, 3, 5, 10)


class GroupConsumer:
    """A `Consumer` that is a member of a `ModelGroup`: what `KafkaConsumer` is for a broker."""

    def __init__(self, world: World, group: ModelGroup, member: SimulatedMember) -> None:
        self._world = world
        self._group = group
        self.member = member
        self.name = member.name
        self.member_id = ""
        self.generation = -1
        self.has_unanswered_commit = False
        self.forgets_id = False
        self.commits_cut = False
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._resets_seen: dict[TopicPartition, int] = {}
        self._rebalancing = True
        self._told = asyncio.Event()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Look for records again."""
        self._changed.set()

    def notice(self) -> None:
        """Hear of a rebalance with the next heartbeat."""
        self._told.set()

    def silent_for(self, seconds: float) -> None:
        """Send no heartbeats for a while; seconds may be infinite."""
        if seconds > SESSION:
            self._world.later(SESSION, self._group.leave, self.member_id)

    async def reach(self) -> None: ...

    @property
    def silent(self) -> str | None:
        return None

    async def start(
        self, listener: RebalanceListener, admitted: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        if admitted is not None:
            await admitted()
        self._task = asyncio.get_running_loop().create_task(self._be_member(listener))

    async def stop(self, *, leave: bool = False) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self.member.dead:
            self._group.leave(self.member_id)

    async def _be_member(self, listener: RebalanceListener) -> None:
        try:
            while True:
                held = frozenset(self._positions)
                self._rebalancing, self._positions = True, {}
                if held:
                    self._world.note("group", self.name, f"revokes {len(held)} partitions")
                began = self._world.loop.now
                await listener.revoked(held)
                self._group.checks.waited(self.member, began, what="a revocation")
                self._told.clear()
                await anyio.sleep(self._world.latency())
                if self.member.dead:
                    return
                answer = self._group.join(self)
                with self.member.waiting(self._world.loop):
                    await _either(answer, self._told)
                if not answer.done():
                    continue  # expelled meanwhile
                self.generation, partitions = answer.result()
                self._positions = dict.fromkeys(sorted(partitions), -1)
                self._paused.clear()
                self.member.is_fenced = self.has_unanswered_commit = False
                await listener.assigned(partitions)
                for partition, position in self._positions.items():
                    if position < 0:
                        entry = self._group.offsets.committed.get(partition)
                        self._positions[partition] = (
                            self._first(partition) if entry is None else entry.offset
                        )
                self._rebalancing = False
                self.changed()
                await self._told.wait()
                await anyio.sleep(self._world.rng.uniform(0, _HEARTBEAT))
        except Exception as error:  # noqa: BLE001  the next poll raises it
            self._error = error
            self.changed()

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        rng = self._world.rng
        self._group.checks.asks(self.member)
        await anyio.sleep(rng.choice((0.0, 0.001, 0.05, 0.4)))
        while True:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            ready = [
                partition
                for partition, position in sorted(self._positions.items())
                if partition not in self._paused
                and self._group.ranges[partition].answers_at(position)
            ]
            if ready and not self._rebalancing:
                rng.shuffle(ready)
                found: list[Batch] = []
                for partition in ready[: rng.choice((1, 1, 2, 4))]:
                    if max_bytes is not None and sum(b.nbytes for b in found) >= max_bytes:
                        break
                    found.append(self._fetch(partition, rng.choice(_FETCHES)))
                return found
            await self._changed.wait()

    def _fetch(self, partition: TopicPartition, count: int) -> Batch:
        self._group.checks.takes(self.member, partition)
        before, records = self._positions[partition], self._group.log[partition]
        position, end = self._reset(partition), self._group.ranges[partition].end
        if not self._group.ranges[partition].has_records_from(position):
            self._positions[partition] = position
            return Batch(
                *partition, before, position - 1, nbytes=0, load=lambda: records.columns[:0]
            )
        offsets = records.offsets
        start = int(offsets.searchsorted(position))
        stop = min(start + count, int(offsets.searchsorted(end)))
        part = records.columns.slice(start, stop - start)
        last = int(offsets[stop - 1]) if stop > start else end - 1
        self._positions[partition] = last + 1
        nbytes = len(part) * records.record_bytes
        return Batch(*partition, position, last, nbytes=nbytes, load=lambda: part)

    def _first(self, partition: TopicPartition) -> int:
        """Return where reading begins without a committed offset (`auto_offset_reset`: earliest)."""
        start = self._group.ranges[partition].start
        self._group.checks.skips(partition, 0, start)
        return start

    def _reset(self, partition: TopicPartition) -> int:
        """Return the position; if it is out of range, the log's start (`on_out_of_range`: earliest)."""
        position, log = self._positions[partition], self._group.ranges[partition]
        if log.has_position(position):
            return position
        self._world.note(
            "group", self.name, f"{partition}: offset {position} is gone, goes on at {log.start}"
        )
        self._group.checks.skips(partition, position, log.start)
        return log.start

    def resets_seen(self, partition: TopicPartition) -> int:
        """Return how often tools had moved the offset when it was read last."""
        return self._resets_seen.get(partition, 0)

    def let_gather(self, seconds: float) -> None:
        """See `Consumer.let_gather`: each poll waits by chance already."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self.changed()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self._positions:
            raise ConsumerError(f"{partition} is not assigned")
        self._positions[partition] = offset
        self.changed()

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        wanted, offsets = sorted(partitions), self._group.offsets

        def effect() -> dict[TopicPartition, CommitOffset | None] | None:
            if not offsets.are_stable(wanted):
                return None
            resets = self._group.resets
            self._resets_seen.update({at: resets.get(at, 0) for at in wanted})
            return {partition: offsets.committed.get(partition) for partition in wanted}

        while True:
            found = await self._world.request(
                "offsets", "group", "asks for committed offsets", effect, ConsumerError
            )
            if found is not None:
                return found
            await anyio.sleep(_UNSTABLE)

    async def start_positions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """See `Consumer.start_positions`: the first offset of each log."""
        return {partition: self._first(partition) for partition in partitions}

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        shown = ", ".join(
            f"{p}={e.offset}{' ' + e.metadata if e.metadata else ''}"
            for p, e in sorted(offsets.items())
        )
        sent, member_id, generation = dict(offsets), self.member_id, self.generation
        try:
            with anyio.fail_after(_COMMIT_TIMEOUT):
                await self._world.request(
                    "commit", "group", f"commits {shown}",
                    lambda: self._group.commit(self, member_id, generation, sent), ConsumerError,
                    part=lambda: self._group.commit_part(self, member_id, generation, sent),
                )  # fmt: skip
            self.member.commits += 1
        except (CommitFenced, CommitRefused):
            raise
        except ConsumerError:
            self.has_unanswered_commit = True
            raise
        except TimeoutError as error:
            self.has_unanswered_commit = True
            raise ConsumerError("the broker does not answer") from error

    async def read_range(
        self, partition: TopicPartition, first: int, end: int
    ) -> AsyncGenerator[Batch]:
        records, log, rng = (
            self._group.log[partition],
            self._group.ranges[partition],
            self._world.rng,
        )
        position = first
        while True:
            await anyio.sleep(self._world.latency())
            if position < log.start:
                self._group.checks.forgets(partition)
                position = log.start
            if position >= end:
                return
            start = int(records.offsets.searchsorted(position))
            stop = min(start + rng.choice(_FETCHES), int(records.offsets.searchsorted(end)))
            last = int(records.offsets[stop - 1]) if stop > start else end - 1
            part = records.columns.slice(start, stop - start)
            nbytes = len(part) * records.record_bytes
            yield Batch(*partition, position, last, nbytes=nbytes, load=partial(_same, part))
            position = last + 1

    async def join_anew(self) -> None:
        """See `Consumer.join_anew`; the group hears of it, or finds out when the session ends."""
        await anyio.sleep(self._world.latency())
        if self.member.dead:
            return
        if self._world.rng.random() < _LEAVES_HEARD:
            self._group.leave(self.member_id)
        else:
            self.forgets_id = True
            self.notice()
            self._world.later(SESSION, self._group.leave, self.member_id)

    async def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._group.ranges[partition].end for partition in partitions}

    def membership(self, partitions: Iterable[TopicPartition]) -> Membership:
        for partition in partitions:
            if partition not in self._positions:
                raise CommitFenced(f"{partition} is not assigned")
        return Membership(self.generation, self.member_id)

    def start_offset(self, partition: TopicPartition) -> int | None:
        return self._group.ranges[partition].start

    def end_offset(self, partition: TopicPartition) -> int | None:
        return self._group.ranges[partition].end

    async def look_up_ends(self) -> None:
        """See `Consumer.look_up_ends`: they are always known."""

    def answered_at(self, partition: TopicPartition) -> float | None:
        """See `Consumer.answered_at`: every partition that is not paused is answered at once."""
        return None if partition in self._paused else anyio.current_time()


def _same(columns: pa.RecordBatch) -> pa.RecordBatch:
    return columns


async def _either(answer: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Return when an answer has come, or the event is set."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([answer, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
