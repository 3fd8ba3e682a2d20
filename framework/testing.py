"""Tools for tests of strategies: a virtual clock, a consumer and a writer in memory. They need no pytest.

With pytest there are fixtures, too: `kmr.pytest_plugin`.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict, deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

import anyio
import anyio.lowlevel
import pyarrow as pa

from .chaos.records import columns_of_records, record_of
from .columns.column_types import join_tables
from .columns.kinds import whole
from .columns.texts import excerpt, python_values
from .errors import StrategyError
from .kafka.memory_consumer import MemoryConsumer
from .record import Batch, Record, TopicPartition
from .reducers.collect import one_table
from .reducers.sink import NEW, RowsRefused, Sink, Write
from .reducers.wrapping import Wrapping
from .service.logs import only_warnings
from .service.wakeup import Wakeup
from .simulation.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kmr.broker import Broker

    from .record import Rows
    from .reducers.reducer import Limits, Reducer
    from .strategy import Strategy

__all__ = [
    "Journal",
    "MemoryConsumer",
    "MemoryWriter",
    "StartBroker",
    "StrategyRun",
    "VirtualClock",
    "VirtualTimeLoop",
    "batch_of",
    "run_strategy",
    "simulate",
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
    microseconds = round(timestamp.timestamp() * 1e6)
    keyed = zip(values, keys or [None] * len(values), strict=True)
    records = [
        Record(topic, partition, offset, key, value, microseconds, 0)
        for offset, (value, key) in enumerate(keyed, first)
    ]
    return Batch.of(columns_of_records(records))


@dataclass(slots=True)
class Journal:
    """The writes and the instructions of a `MemoryWriter`; shared by all of its copies.

    Attributes:
        written: the rows of every successful flush, in order.
        attempts: number of calls of `flush`.
        outcomes: what the next flushes do, one entry each: None: write; `RowsRefused`: write, then raise it;
            another exception: raise it. Without entries they write.
        hold: an event that each flush waits for first; None: flushes do not wait.
    """

    written: list[pa.Table] = field(default_factory=list)
    attempts: int = 0
    outcomes: deque[Exception | None] = field(default_factory=deque)
    hold: anyio.Event | None = None
    _changed: Wakeup = field(default_factory=Wakeup)

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
        self._changed.notify()


class MemoryWriter(Sink):
    """A reducer that writes to a journal. With `forward`, it also sends the rows to the next reducer."""

    def __init__(
        self, journal: Journal, *, forward: bool = False, **limits: Unpack[Limits]
    ) -> None:
        super().__init__(**limits)
        self.journal = journal
        self.capabilities = replace(self.capabilities, forwards=forward)
        self.forward = forward
        self.collected: list[Rows] = []

    def __deepcopy__(self, memo: object) -> Self:
        return copy.copy(self)

    def add(self, rows: Rows) -> None:
        self.collected.append(rows)

    def reset(self) -> None:
        self.collected = []

    async def flush(self, write: Write = NEW) -> pa.Table | None:
        journal = self.journal
        journal.attempts += 1
        journal.changed()
        if journal.hold is not None:
            await journal.hold.wait()
        outcome = journal.outcomes.popleft() if journal.outcomes else None
        if isinstance(outcome, Exception) and not isinstance(outcome, RowsRefused):
            raise outcome
        if not isinstance(outcome, RowsRefused | None):
            return outcome  # a wrong result, which the engine refuses
        table = one_table(self.collected)
        journal.written.append(table)
        journal.changed()
        if isinstance(outcome, RowsRefused):
            raise outcome
        return table if self.forward else None


@dataclass(frozen=True, slots=True)
class StrategyRun:
    """The outcome of `run_strategy`.

    Attributes:
        tables: the rows that reached the last reducer of each branch, by its name, of all partitions. A
            strategy without branches has one with the name "".
        failures: the failed records as `reduce_err` gets them: the columns of a record, with `reason`,
            `stage` and `attempt`.
        filtered: the partition and the offset of each record that made no row and did not fail.
    """

    tables: dict[str, pa.Table]
    failures: list[dict[str, Any]]
    filtered: list[tuple[TopicPartition, int]]

    @property
    def table(self) -> pa.Table:
        """The rows of a strategy without branches.

        Raises:
            StrategyError: it has branches.
        """
        if self.tables.keys() - {""}:
            raise StrategyError(
                f"the strategy has branches ({', '.join(self.tables)}); use run.tables"
            )
        return self.tables.get("", pa.table({}))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts; a time that Python cannot hold is its text. Raises StrategyError as `table`."""
        table = self.table.combine_chunks()
        columns = [python_values(whole(column)) for column in table.columns]
        return [
            dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)
        ]


def run_strategy(
    strategy: Strategy,
    records: Iterable[bytes | str | Mapping[str, Any] | Record | None],
    *,
    include_last: bool = False,
    topic: str = "test",
) -> StrategyRun:
    """Run records through a strategy, without a broker and without its sink; return rows and failures.

    The map and the reducers but for the last run as in a worker, to their end: every row is flushed. The last
    reducer, and `reduce_err`, are not called: what reaches them is the result. Only warnings are logged.

    Example:
        ```python
        from kmr import Strategy
        from kmr.sinks import StreamWriter
        from kmr.testing import run_strategy

        def doubled(record):
            return {"n": 2 * int(record.value)}

        run = run_strategy(
            Strategy(map=doubled, reduce=[StreamWriter("stdout")], reduce_err=StreamWriter("stderr")),
            ["1", "two", "3"],
        )
        assert run.rows == [{"n": 2}, {"n": 6}]
        assert [failure["offset"] for failure in run.failures] == [1]
        ```

    Args:
        records: values; text is encoded as UTF-8, a mapping as JSON. A `Record` also has a key, headers, a
            timestamp and a partition of its own; the offsets of a partition must ascend.
        include_last: also run the last reducer, and return the rows that it makes for a next one.
        topic: the topic of values that are no `Record`; they are in partition 0, from offset 0 on.

    Raises:
        KmrError: what would end a worker, such as a `StrategyError` of the map.
    """
    from .strategy import Strategy

    if not isinstance(strategy, Strategy):
        raise StrategyError(f"run_strategy: strategy must be a Strategy, not {strategy!r}")
    if isinstance(records, Mapping | str | bytes):
        raise StrategyError(
            f"run_strategy: records is one value; pass a list: [{excerpt(records)}]"
        )
    batches: dict[TopicPartition, list[Record]] = defaultdict(list)
    for number, record in enumerate(records):
        if not isinstance(record, Record):
            record = record_of(record, TopicPartition(topic, 0), number)
        batches[TopicPartition(record.topic, record.partition)].append(record)
    # In a thread of its own, so that tests with a running event loop can call it too.
    with only_warnings(), ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, _run_strategy, strategy, batches, include_last).result()


async def _run_strategy(
    strategy: Strategy, batches: Mapping[TopicPartition, list[Record]], include_last: bool
) -> StrategyRun:
    from .settings import Settings
    from .worker import Worker

    failed, consumer = Journal(), MemoryConsumer()
    written: dict[str, Journal] = defaultdict(Journal)
    mapped: dict[TopicPartition, set[int]] = {at: set() for at in batches}

    def watched(name: str, chain: Sequence[Reducer]) -> list[Reducer]:
        kept = list(chain if include_last else chain[:-1])
        first, *others = [*kept, MemoryWriter(written[name])]
        return [_NotedRows(first, mapped), *others]

    trial = strategy.with_chains(
        watched, reduce_err=MemoryWriter(failed), err_limit=None, delivery=None
    )
    for records in batches.values():
        consumer.put(Batch.of(columns_of_records(records)))
    total = sum(map(len, batches.values()))
    topics = tuple({at.topic for at in batches}) or ("test",)
    worker = Worker(
        trial, Settings(topics=topics, group="test", executor="inline"), consumer=consumer
    )

    async def run() -> None:
        with suppress(Exception):  # it is raised below
            await worker.run()
        consumer.started.set()  # also if the worker has failed before

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await consumer.started.wait()
        if worker.failure is None:
            await consumer.rebalance(batches)
        while worker.failure is None:
            status = worker.status()
            maps = [stage for stage in status.stages if stage.name.startswith("map ")]
            if status.consumed >= total and all(stage.activity == "idle" for stage in maps):
                break
            await anyio.sleep(0.001)
        worker.shutdown("all records are mapped")
    if worker.failure is not None:
        raise worker.failure
    failures = failed.rows()
    known = mapped | {}
    for failure in failures:
        known[TopicPartition(failure["topic"], failure["partition"])].add(failure["offset"])
    filtered = [
        (at, record.offset)
        for at, records in batches.items()
        for record in records
        if record.offset not in known[at]
    ]
    tables = {
        name: join_tables(each.written).table if each.written else pa.table({})
        for name, each in written.items()
    }
    return StrategyRun(tables, failures, filtered)


class _NotedRows(Wrapping):
    """Notes which records the rows of a reducer come from."""

    def __init__(self, inner: Reducer, mapped: Mapping[TopicPartition, set[int]]) -> None:
        super().__init__(inner)
        self._mapped = mapped

    def add(self, rows: Rows) -> None:
        assert rows.offsets is not None
        (batch,) = rows.sources
        self._mapped[batch.topic_partition].update(rows.offsets.tolist())
        super().add(rows)


class StartBroker(Protocol):
    """Starts a broker in this process, on a free loopback port, until the end of the test."""

    async def __call__(self, **settings: Any) -> Broker:
        """Start a broker; `data_dir` is a new directory unless given."""
