"""A broker's parts around the transaction coordinator, on a real disk, with a clock run by hand."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from broker.appends import Appends, Flush
from broker.groups.coordinator import GroupCoordinator
from broker.groups.offsets import OffsetStore
from broker.log.config import FsyncPolicy, LogConfig
from broker.log.segment import Segment
from broker.membership.types import MemberIdentity
from broker.producers.identity import ProducerIdentity
from broker.records import NewRecord, build_batch, parse_header, read_records
from broker.settings import BrokerSettings
from broker.state_log import StateLog
from broker.topics.topics import Topics
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.store import TransactionStore
from broker.transactions.types import TransactionError, TransactionSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

PARTITIONS = 2
TIMEOUT_MS = 60_000
SETTINGS = TransactionSettings(
    max_timeout_ms=TIMEOUT_MS, id_expiration_ms=100_000_000, check_interval=10**6
)
OFFSETS = ("t", 0)
"""The partition whose offsets the group "g" commits."""


class Timer:
    def cancel(self) -> None:
        """Timers of groups never run here."""


class ManualClock:
    """Seconds since 1970, in a year in which no log is too old."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        del delay, callback
        return Timer()


class Node:
    """One run of a broker on `directory`, without its network."""

    def __init__(
        self,
        topics: Topics,
        appends: Appends,
        groups: GroupCoordinator,
        store: TransactionStore,
        clock: ManualClock,
    ) -> None:
        self.topics = topics
        self.groups = groups
        self.store = store
        self._appends = appends
        self._clock = clock
        self.next_id = max((each.producer.producer_id for each in store), default=-1) + 1
        self.coordinator = TransactionCoordinator(
            store,
            topics=topics,
            appends=appends,
            groups=groups,
            new_producer_id=self._new_id,
            settings=SETTINGS,
            now=clock.now,
        )

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    async def begin(self, name: str = "x") -> ProducerIdentity:
        """A new producer; waits until what was open before is aborted."""
        for _ in range(100):
            producer = await self.coordinator.initialise(name, TIMEOUT_MS)
            if isinstance(producer, ProducerIdentity):
                return producer
            assert producer is TransactionError.CONCURRENT_TRANSACTIONS
            await self.coordinator.check()
        raise AssertionError("the transaction before is not aborted")

    async def produce(
        self, name: str, producer: ProducerIdentity, partition: int, sequence: int, value: bytes
    ) -> TransactionError | None:
        """Add the partition and write a record to it, as often as it takes for it to be there."""
        where = ("t", partition)
        error = await self.coordinator.add_partitions(name, producer, [where])
        error = error or self.coordinator.verify(name, producer, where)
        if error is not None:
            return error
        batch = build_batch(
            [NewRecord(None, value, (), int(self._clock.now() * 1000))],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        target = self.topics.partition(*where)
        assert target is not None
        target.log.append(batch, [parse_header(batch)], now_ms=int(self._clock.now() * 1000))
        await self.written(self._appends.add(target, len(batch)))
        return None

    async def written(self, flush: Flush) -> None:
        self._appends.write()
        await self._appends.drain()
        assert flush.done
        assert not flush.failed

    async def commit_offset(
        self, name: str, producer: ProducerIdentity, offset: int
    ) -> TransactionError | None:
        """Add the offsets of the group "g" and what it will have committed."""
        error = await self.coordinator.add_offsets(name, producer)
        error = error or self.coordinator.verify_offsets(name, producer)
        if error is None:
            await self.groups.commit_in_transaction(
                "g", MemberIdentity(""), -1, producer, {OFFSETS: (offset, -1, "")}
            )
        return error

    async def committed_offset(self) -> int | None:
        found = await self.groups.fetch_offsets("g", [OFFSETS])
        return found[OFFSETS].offset if found else None

    def committed(self, partition: int) -> list[bytes]:
        """What a read_committed consumer is shown, read as clients read it."""
        found = self.topics.partition("t", partition)
        assert found is not None
        log, end = found.log, found.last_stable_offset
        waiting = sorted(
            (each.first_offset, each.producer_id) for each in log.producers.aborted.between(0, end)
        )
        aborted: set[int] = set()
        values: list[bytes] = []
        at = 0
        while at < end:
            span = log.read(at, 2**20, min_one=True)
            position = 0
            while position < len(span.data):
                header = parse_header(span.data, position)
                position = header.end
                if header.base_offset >= end:
                    break
                while waiting and waiting[0][0] <= header.last_offset:
                    aborted.add(waiting.pop(0)[1])
                if header.is_control:
                    aborted.discard(header.producer_id)
                elif header.producer_id not in aborted:
                    values += [each.value or b"" for each in read_records(span.data, header)]
            at = span.next_offset
        return values

    def is_open(self, producer_id: int) -> bool:
        """Whether any partition, or the group's offsets, wait for a marker of this producer."""
        return any(
            each.log.producers.has_open_transaction(producer_id) for each in self.topics.partitions
        ) or any(each.producer_id == producer_id for each in self.groups.pending_producers())


class Disk:
    """A data directory that a broker runs on; after a kill a copy takes its place.

    A killed process neither flushes nor closes: only what is in the files counts.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs = 0
        self._writes_left = 0
        self.clock = ManualClock()
        self.directory = root / "0"

    @asynccontextmanager
    async def running(self, *, fsync: FsyncPolicy = "os") -> AsyncIterator[Node]:
        config = LogConfig(fsync=fsync)
        async with AsyncExitStack() as stack:
            executor = stack.enter_context(ThreadPoolExecutor(2))
            topics = Topics(self.directory, BrokerSettings(data_dir=self.directory, fsync=fsync))
            self.directory.mkdir(exist_ok=True)
            await topics.open(clean=False)
            stack.push_async_callback(topics.close)
            if topics.get("t") is None:
                await topics.create("t", PARTITIONS)
            options: dict[str, Any] = {"clean": False, "now": self.clock.now}
            offsets = OffsetStore(StateLog.open(self.directory / "offsets", config, **options))
            stack.callback(offsets.close)
            store = TransactionStore(
                StateLog.open(self.directory / "transactions", config, **options)
            )
            stack.callback(store.close)
            appends = Appends(sync=fsync == "always", executor=executor)
            stack.push_async_callback(appends.drain)
            groups = GroupCoordinator(offsets, clock=self.clock, now=self.clock.now)
            await stack.enter_async_context(groups)
            node = Node(topics, appends, groups, store, self.clock)
            await stack.enter_async_context(node.coordinator)
            yield node

    def kill(self) -> None:
        """What is in the files now is what the next run finds."""
        self._runs += 1
        copy = self._root / str(self._runs)
        shutil.copytree(self.directory, copy)
        self.directory = copy

    def kill_after(self, writes: int) -> None:
        """Kill when so many more writes have reached a log file; 0 takes the order back."""
        self._writes_left = writes

    def wrote(self) -> None:
        if self._writes_left:
            self._writes_left -= 1
            if not self._writes_left:
                self.kill()


@pytest.fixture
def make_disk(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Disk]]:
    """Makes disks that see every write to a log; one is used at a time."""
    disks: list[Disk] = []
    write = Segment.write

    def watched(segment: Segment, *arguments: Any) -> None:
        write(segment, *arguments)
        disks[-1].wrote()

    monkeypatch.setattr(Segment, "write", watched)

    def make() -> Disk:
        disks.append(Disk(tmp_path_factory.mktemp("disk")))
        return disks[-1]

    yield make
    for disk in disks:
        shutil.rmtree(disk._root)


@pytest.fixture
def disk(make_disk: Callable[[], Disk]) -> Disk:
    return make_disk()
