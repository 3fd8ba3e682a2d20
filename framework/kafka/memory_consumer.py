"""A consumer without a broker, for tests and trials of strategies."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from ..errors import CommitFenced
from ..record import Batch, TopicPartition
from ..service.wakeup import Wakeup
from .consumer import CommitOffset
from .group_offsets import Membership

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

    from .consumer import RebalanceListener


class MemoryConsumer:
    """A `Consumer` without a broker: a test puts batches, assigns and revokes, and reads the commits.

    Attributes:
        log: all batches of each partition; reading starts at the committed offset, as with a broker.
        commits: all acknowledged commits, in order.
        fenced: while True, commits are refused as if the group had a new generation.
    """

    def __init__(self) -> None:
        self.log: dict[TopicPartition, list[Batch]] = defaultdict(list)
        self.commits: list[dict[TopicPartition, int]] = []
        self.fenced = False
        self.generation = -1
        self.member_id = "memory"
        self._listener: RebalanceListener | None = None
        self._committed: dict[TopicPartition, CommitOffset] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._rebalancing = False
        self._changed = Wakeup()
        self.started = anyio.Event()

    def put(self, batch: Batch) -> None:
        """Append a batch to its partition's log."""
        self.log[batch.topic_partition].append(batch)
        self._wake()

    async def rebalance(self, partitions: Iterable[TopicPartition]) -> None:
        """Revoke everything and assign `partitions`, as an eager rebalance does."""
        await self.revoke()
        await self.assign(partitions)

    async def revoke(self) -> None:
        """Begin a rebalance."""
        assert self._listener is not None  # noqa: S101  a worker has started
        held = frozenset(self._positions)
        self._positions = {}
        self._rebalancing = True
        await self._listener.revoked(held)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """End a rebalance."""
        assert self._listener is not None  # noqa: S101  a worker has started
        self.generation += 1
        self._paused.clear()
        start = {p: self._committed.get(p, CommitOffset(0)).offset for p in partitions}
        self._positions = start
        self._rebalancing = True  # `poll` returns nothing before the listener has agreed
        await self._listener.assigned(frozenset(start))
        self._rebalancing = False
        self._wake()

    def commit_elsewhere(self, partition: TopicPartition, offset: int) -> None:
        """Commit as another member of the group."""
        self._committed[partition] = CommitOffset(offset)

    def forget_committed(self) -> None:
        """Lose all committed offsets, like a broker that restarts with an empty data directory."""
        self._committed.clear()

    async def reach(self) -> None: ...

    @property
    def silent(self) -> str | None:
        return None

    async def start(
        self, listener: RebalanceListener, admitted: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        if admitted is not None:
            await admitted()
        self._listener = listener
        self.started.set()

    async def stop(self, *, leave: bool = False) -> None: ...

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        while True:
            found: list[Batch] = []
            for partition, position in list(self._positions.items()):
                if partition in self._paused or self._rebalancing:
                    continue
                if max_bytes is not None and sum(b.nbytes for b in found) >= max_bytes:
                    break
                batch = next((b for b in self.log[partition] if b.last >= position), None)
                if batch is not None:
                    rest = batch.records.slice(max(0, position - batch.first))
                    found.append(Batch.of(rest))
                    del self._positions[partition]  # the last one in the next call
                    self._positions[partition] = batch.last + 1
            if found:
                return found
            await self._changed.wait()

    def let_gather(self, seconds: float) -> None:
        """See `Consumer.let_gather`: there is nothing to wait for."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self._wake()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset
        self._wake()

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        return {partition: self._committed.get(partition) for partition in partitions}

    async def start_positions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """See `Consumer.start_positions`: the first offset of each log."""
        return {partition: self.start_offset(partition) or 0 for partition in partitions}

    async def read_range(
        self, partition: TopicPartition, first: int, end: int
    ) -> AsyncGenerator[Batch]:
        for batch in self.log[partition]:
            if batch.last >= first and batch.first < end:
                await anyio.lowlevel.checkpoint()
                yield batch.slice(max(first, batch.first), min(end - 1, batch.last))

    async def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.end_offset(partition) or 0 for partition in partitions}

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        if self.fenced:
            raise CommitFenced("the group has a new generation")
        self._committed.update(offsets)
        self.commits.append({partition: entry.offset for partition, entry in offsets.items()})

    has_unanswered_commit = False

    async def join_anew(self) -> None: ...

    def membership(self, partitions: Iterable[TopicPartition]) -> Membership:
        return Membership(self.generation, self.member_id)

    def start_offset(self, partition: TopicPartition) -> int | None:
        return self.log[partition][0].first if self.log[partition] else None

    def end_offset(self, partition: TopicPartition) -> int | None:
        return self.log[partition][-1].last + 1 if self.log[partition] else None

    async def look_up_ends(self) -> None:
        """See `Consumer.look_up_ends`: they are always known."""

    def answered_at(self, partition: TopicPartition) -> float | None:
        """See `Consumer.answered_at`: every partition that is not paused is answered at once."""
        return None if partition in self._paused else anyio.current_time()

    def _wake(self) -> None:
        self._changed.notify()
