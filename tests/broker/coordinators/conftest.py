"""A group on a virtual clock, and a broker's parts around the coordinators on a real disk."""

from __future__ import annotations

import heapq
import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from kmr.broker.coordinators.group_coordinator import GroupCoordinator
from kmr.broker.coordinators.groups.group import Group
from kmr.broker.coordinators.groups.group_types import (
    GroupError,
    GroupSnapshot,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
    SyncResult,
)
from kmr.broker.coordinators.offset_store import OffsetStore
from kmr.broker.coordinators.state_log import StateLog
from kmr.broker.coordinators.transaction_coordinator import TransactionCoordinator
from kmr.broker.coordinators.transaction_state import TransactionError
from kmr.broker.coordinators.transaction_store import TransactionStore
from kmr.broker.log.log_config import FsyncPolicy, LogConfig
from kmr.broker.log.producers import ProducerIdentity
from kmr.broker.log.records import NewRecord, build_batch, parse_header, read_records
from kmr.broker.log.segment import Segment
from kmr.broker.settings import BrokerSettings
from kmr.broker.storage.data_directory import ProducerIds
from kmr.broker.storage.group_commit import Flush, GroupCommit
from kmr.broker.supervision import Supervision
from kmr.broker.topics.topics import Topics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

T = TypeVar("T")

PARTITIONS = 2
TIMEOUT_MS = 60_000
SETTINGS = BrokerSettings(
    data_dir=Path("unused"),
    transaction_max_timeout=TIMEOUT_MS / 1000,
    transactional_id_expiration_seconds=100_000.0,
)
OFFSETS = ("t", 0)
"""The partition whose offsets the group "g" commits."""


@dataclass(eq=False)
class Timer:
    """A callback that waits for its time."""

    callback: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class VirtualClock:
    """Time that passes only when a test says so."""

    now: float = 0.0
    _due: list[tuple[float, int, Timer]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._due, (self.now + delay, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; timers that are due run in order, also those that other timers start."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, timer = heapq.heappop(self._due)
            if not timer.cancelled:
                timer.callback()
        self.now = end

    @property
    def pending(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._due)


class Answer(Generic[T]):
    """Where a request's answer arrives; a second answer is an error."""

    def __init__(self) -> None:
        self._results: list[T] = []
        self.gone = False
        """The client has disconnected."""

    def done(self) -> bool:
        return self.gone or bool(self._results)

    def set_result(self, result: T, /) -> None:
        assert not self.done()
        self._results.append(result)

    @property
    def value(self) -> T:
        assert self._results, "not answered yet"
        return self._results[0]


class GroupBench:
    """A group with the requests of its members in short form."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.stored: list[GroupSnapshot] = []
        self.group = Group(
            "g",
            BrokerSettings(data_dir=Path("unused"), **settings),
            self.clock,
            lambda group: self.stored.append(group.snapshot()),
        )

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_timeout: float = 10.0,
        rebalance_timeout: float = 60.0,
        require_known_member_id: bool = False,
        can_skip_assignment: bool = True,
    ) -> Answer[JoinResult]:
        answer: Answer[JoinResult] = Answer()
        choices = {"range": b"topics"} if protocols is None else protocols
        self.group.join(
            JoinRequest(
                member=MemberIdentity(member_id, instance_id),
                protocol_type=protocol_type,
                protocols=tuple(ProtocolChoice(*choice) for choice in choices.items()),
                session_timeout=session_timeout,
                rebalance_timeout=rebalance_timeout,
                client_id="client",
                client_host="host",
                require_known_member_id=require_known_member_id,
                can_skip_assignment=can_skip_assignment,
            ),
            answer,
        )
        return answer

    def sync(
        self,
        joined: JoinResult,
        assignments: dict[str, bytes] | None = None,
        instance_id: str | None = None,
        protocol_name: str | None = None,
    ) -> Answer[SyncResult]:
        answer: Answer[SyncResult] = Answer()
        self.group.sync(
            SyncRequest(
                member=MemberIdentity(joined.member_id, instance_id),
                generation=joined.generation,
                assignments=tuple((assignments or {}).items()),
                protocol_name=protocol_name,
            ),
            answer,
        )
        return answer

    def heartbeat(self, joined: JoinResult, instance_id: str | None = None) -> GroupError | None:
        return self.group.heartbeat(
            MemberIdentity(joined.member_id, instance_id), joined.generation
        )

    def leave(self, member_id: str, instance_id: str | None = None) -> GroupError | None:
        return self.group.leave(MemberIdentity(member_id, instance_id))

    def commit(self, joined: JoinResult, instance_id: str | None = None) -> GroupError | None:
        identity = MemberIdentity(joined.member_id, instance_id)
        return self.group.check_commit(identity, joined.generation)

    def rebalanced(self, *answers: Answer[JoinResult]) -> list[JoinResult]:
        """Sync all members of a complete generation; the leader gives each its own id."""
        joined = [answer.value for answer in answers]
        followers = [each for each in joined if each.member_id != each.leader_id]
        (leader,) = (each for each in joined if each.member_id == each.leader_id)
        synced = [(each, self.sync(each)) for each in followers]
        plan = {member.member_id: member.member_id.encode() for member in leader.members}
        synced.append((leader, self.sync(leader, plan)))
        for each, answer in synced:
            assert answer.value.assignment == each.member_id.encode()
        return joined

    def stable(self, members: int = 1) -> list[JoinResult]:
        """Make a stable group of so many dynamic members; the first one leads."""
        first = self.rebalanced(self.join())[0]
        others = [self.join() for _ in range(members - 1)]
        if not others:
            return [first]
        return self.rebalanced(self.join(first.member_id), *others)


@pytest.fixture
def bench() -> GroupBench:
    return GroupBench()


@pytest.fixture
def make_bench() -> type[GroupBench]:
    return GroupBench


class ManualClock:
    """Seconds since 1970, in a year in which no log is too old."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Timers of groups never run here."""
        del delay
        return Timer(callback)


class Ids(ProducerIds):
    """Producer ids without a file."""

    def __init__(self, first: int) -> None:
        self._ids = itertools.count(first)

    async def reserve(self) -> None:
        pass

    def next(self) -> int:
        return next(self._ids)


class Node:
    """One run of a broker on `directory`, without its network."""

    def __init__(
        self,
        topics: Topics,
        group_commit: GroupCommit,
        groups: GroupCoordinator,
        store: TransactionStore,
        clock: ManualClock,
    ) -> None:
        self.topics = topics
        self.groups = groups
        self.store = store
        self._group_commit = group_commit
        self._clock = clock
        self.coordinator = TransactionCoordinator(
            store,
            topics=topics,
            group_commit=group_commit,
            offsets=groups.offsets,
            producer_ids=Ids(max((each.producer.producer_id for each in store), default=-1) + 1),
            settings=SETTINGS,
            check_interval=10**6,
            now=clock.now,
            supervisor=Supervision(
                itertools.count(0, 10**9).__next__
            ),  # what fails is due again at once
        )

    async def begin(self, name: str = "x") -> ProducerIdentity:
        """Return a new producer, after an open transaction is aborted."""
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
        await self.written(self._group_commit.add(target, len(batch)))
        return None

    async def written(self, flush: Flush) -> None:
        self._group_commit.write()
        await self._group_commit.drain()
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
        found = await self.groups.offsets.fetch("g", [OFFSETS])
        return found[OFFSETS].offset if found else None

    def committed(self, partition: int) -> list[bytes]:
        """Return the values that a read_committed consumer gets, read as clients read them."""
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
        ) or any(each.producer_id == producer_id for each in self.groups.offsets.pending_producers)


class Disk:
    """A data directory that a broker runs on; after a kill a copy takes its place.

    A killed process neither flushes nor closes: only the files remain.
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
            offsets = OffsetStore(StateLog(self.directory / "offsets", config, **options))
            stack.callback(offsets.close)
            store = TransactionStore(StateLog(self.directory / "transactions", config, **options))
            stack.callback(store.close)
            group_commit = GroupCommit(sync=fsync == "always", executor=executor)
            stack.push_async_callback(group_commit.drain)
            groups = GroupCoordinator(offsets, SETTINGS, clock=self.clock, now=self.clock.now)
            await stack.enter_async_context(groups)
            node = Node(topics, group_commit, groups, store, self.clock)
            await stack.enter_async_context(node.coordinator)
            yield node

    def kill(self) -> None:
        """Copy the files as they are now, for the next run."""
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
