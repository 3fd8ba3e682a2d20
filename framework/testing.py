"""Tools for tests of strategies: a virtual clock, a consumer and a writer in memory, a broker.

Load the fixtures with `pytest_plugins = ["kmr.testing"]`.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict, deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

from .errors import CommitFenced
from .kafka.consumer import CommitOffset
from .record import SCHEMA, Batch, TopicPartition
from .reducers.collect import one_table
from .reducers.reducer import Flushed, Reducer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kmr.broker import Broker

    from .kafka.consumer import Listener
    from .record import Rows
    from .reducers.reducer import FlushResult

__all__ = [
    "Journal",
    "MemoryConsumer",
    "MemoryWriter",
    "StartBroker",
    "VirtualClock",
    "VirtualTimeLoop",
    "batch_of",
    "broker",
    "broker_with_registry",
    "clock",
    "start_broker",
]


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time only a test advances; sockets and threads work as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self.now


class VirtualClock:
    """Advances the time of a `VirtualTimeLoop`: all sleeps, deadlines and ages in the code under test."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    @property
    def now(self) -> float:
        """Seconds since the test began."""
        return self._loop.now

    async def advance(self, seconds: float) -> None:
        """Run all ready tasks, advance the time, and run the tasks that this woke."""
        await self.settle()
        self._loop.now += seconds
        await self.settle()

    async def settle(self) -> None:
        """Run all ready tasks without advancing the time."""
        for _ in range(20):
            await anyio.lowlevel.checkpoint()


def batch_of(
    topic: str,
    partition: int,
    first: int,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp: datetime = datetime(2026, 1, 1, tzinfo=UTC),
) -> Batch:
    """Make a batch of records with consecutive offsets from `first`."""
    count = len(values)
    columns: dict[str, Any] = {
        "key": keys if keys is not None else [None] * count,
        "value": values,
        "topic": [topic] * count,
        "partition": [partition] * count,
        "offset": range(first, first + count),
        "timestamp": [timestamp] * count,
        "timestampType": [0] * count,
        "headers": [None] * count,
    }
    return Batch.of(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))


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
        self._listener: Listener | None = None
        self._committed: dict[TopicPartition, CommitOffset] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._rebalancing = False
        self._changed = anyio.Event()
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
        assert self._listener is not None
        held = frozenset(self._positions)
        self._positions = {}
        self._rebalancing = True
        await self._listener.revoked(held)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """End a rebalance."""
        assert self._listener is not None
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

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        self.started.set()

    async def stop(self) -> None: ...

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
            changed = self._changed
            await changed.wait()

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

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        if self.fenced:
            raise CommitFenced("the group has a new generation")
        self._committed.update(offsets)
        self.commits.append({partition: entry.offset for partition, entry in offsets.items()})

    def start_offset(self, partition: TopicPartition) -> int | None:
        return self.log[partition][0].first if self.log[partition] else None

    def end_offset(self, partition: TopicPartition) -> int | None:
        return self.log[partition][-1].last + 1 if self.log[partition] else None

    def answered_at(self, partition: TopicPartition) -> float | None:
        """See `Consumer.answered_at`: every partition that is not paused is answered at once."""
        return None if partition in self._paused else anyio.current_time()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


@dataclass(slots=True)
class Journal:
    """The writes and the instructions of a `MemoryWriter`; shared by all of its copies.

    Attributes:
        written: the rows of every successful flush, in order.
        attempts: number of calls of `flush`.
        outcomes: results to return, or exceptions to raise, by the next flushes; without any they write.
        hold: an event that each flush waits for first; None: flushes do not wait.
    """

    written: list[pa.Table] = field(default_factory=list)
    attempts: int = 0
    outcomes: deque[FlushResult | Exception] = field(default_factory=deque)
    hold: anyio.Event | None = None
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def until(self, condition: Callable[[Journal], bool]) -> None:
        """Wait until the condition holds; every attempt checks it."""
        while not condition(self):
            await self._changed.wait()

    @property
    def count(self) -> int:
        """Number of rows written."""
        return sum(table.num_rows for table in self.written)

    def rows(self) -> list[dict[str, Any]]:
        """Return all written rows, in order."""
        return [row for table in self.written for row in table.to_pylist()]

    def changed(self) -> None:
        """Check the conditions of `until` again."""
        self._changed.set()
        self._changed = anyio.Event()


class MemoryWriter(Reducer):
    """A reducer that writes to a journal. With `forward`, it also sends the rows to the next reducer."""

    def __init__(self, journal: Journal, *, forward: bool = False, **limits: Any) -> None:
        super().__init__(**limits)
        self.journal = journal
        self.forward = forward
        self.collected: list[Rows] = []

    def spawn(self) -> Self:
        return copy.copy(self)

    def add(self, rows: Rows) -> None:
        self.collected.append(rows)

    def reset(self) -> None:
        self.collected = []

    async def flush(self) -> FlushResult:
        journal = self.journal
        journal.attempts += 1
        journal.changed()
        if journal.hold is not None:
            await journal.hold.wait()
        outcome = journal.outcomes.popleft() if journal.outcomes else Flushed()
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, Flushed):
            table = one_table(self.collected)
            journal.written.append(table)
            outcome = replace(outcome, out=table if self.forward else None)
        journal.changed()
        return outcome


@pytest.fixture
async def clock() -> VirtualClock:
    """The clock for tests whose `anyio_backend` is `("asyncio", {"loop_factory": VirtualTimeLoop})`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "set the anyio_backend fixture to use VirtualTimeLoop"
    return VirtualClock(loop)


class StartBroker(Protocol):
    """Starts a broker in this process, on a free loopback port, until the end of the test."""

    async def __call__(self, **settings: Any) -> Broker:
        """Start a broker; `data_dir` is a new directory unless given."""


@pytest.fixture
async def start_broker(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Start brokers with given settings: `broker = await start_broker(default_partitions=4)`."""
    from kmr.broker import Broker, BrokerSettings

    async with AsyncExitStack() as stack:
        started = 0

        async def start(**settings: Any) -> Broker:
            nonlocal started
            started += 1
            defaults: dict[str, Any] = {"data_dir": tmp_path / f"broker-{started}", "port": 0}
            return await stack.enter_async_context(Broker(BrokerSettings(**defaults | settings)))

        yield start


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    """A broker in this process with default settings and an empty data directory."""
    return await start_broker()


@pytest.fixture
async def broker_with_registry(start_broker: StartBroker) -> Broker:
    """A `broker` with an empty schema registry on `broker_with_registry.registry_url`.

    Both run in the test's event loop: call a blocking client of the registry in a thread.
    """
    return await start_broker(registry_port=0)
