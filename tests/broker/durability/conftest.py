"""Clients at work on a broker whose disk takes down everything, and an auditor of what a crash left."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from kio.schema.errors import ErrorCode

from broker import Broker, BrokerSettings
from broker.compactor import compact
from broker.maintenance import retain
from broker.producers.markers import read_marker
from broker.records import NewRecord, build_batch, parse_header, read_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
    from pathlib import Path

    from broker.records import StoredRecord
    from chaos.disk import Disk

    Connect = Callable[[Broker], Awaitable[Any]]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
INIT, DESCRIBE_CONFIGS, DELETE_GROUPS, OFFSET_DELETE = 22, 32, 42, 47
UNCOMMITTED, COMMITTED = 0, 1
OWN_SETTING = 1
EARLIEST = -2
MINUTE = timedelta(minutes=1)
OK = ErrorCode.none

SETTINGS: dict[str, dict[str, str]] = {
    "plain": {"segment.bytes": "400"},
    "kept": {"segment.bytes": "300", "retention.bytes": "600"},
    "keyed": {
        "segment.bytes": "400",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
    },
    "paid": {"segment.bytes": "500"},
    "read": {},
}
"""Topics of the workload, and their own settings."""

PARTS = {
    "records": ["plain", "kept", "keyed"],
    "transactions": ["paid"],
    "groups": ["read"],
    "topics": [],
}
"""Parts of the workload, and the topics of each."""


@dataclass
class Change:
    """`value` was asked for when the disk had seen `begun` operations; acknowledged at `done`."""

    begun: int
    value: Any
    done: int | None = None


@dataclass
class Register:
    """What clients did to one thing, one change after another."""

    changes: list[Change] = field(default_factory=lambda: [Change(-1, None, -1)])

    def allowed(self, at: int, *, durable: bool) -> list[Any]:
        """The values that it may have after a crash; `durable`: what was acknowledged holds."""
        begun = [each for each in self.changes if each.begun < at]
        done = [n for n, each in enumerate(begun) if each.done is not None and each.done <= at]
        return [each.value for each in begun[max(done) if durable else 0 :]]


@dataclass
class Sent(Change):
    """A record (`value`) of one partition; `transaction` is the register of its outcome."""

    key: bytes | None = None
    offset: int | None = None
    transaction: Register | None = None


@dataclass(frozen=True)
class Answer:
    """A batch of an idempotent producer that was acknowledged."""

    partition: tuple[str, int]
    batch: bytes
    offset: int
    done: int

    async def comes_again(self, client: Any) -> bool:
        """Whether the batch, sent once more, is taken for the one that is there."""
        return await produce(client, self.partition, self.batch) == (OK, self.offset)


class History:
    """What clients asked for and what they were told, in the order of the disk's operations."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.registers: dict[tuple[Any, ...], Register] = defaultdict(Register)
        self.records: dict[tuple[str, int], list[Sent]] = defaultdict(list)
        self.answers: list[Answer] = []

    @asynccontextmanager
    async def change(self, key: tuple[Any, ...], value: Any) -> AsyncIterator[Register]:
        """Inside, a client asks for a change; it has been told of its success afterwards."""
        register = self.registers[key]
        change = Change(self.disk.now, value)
        register.changes.append(change)
        yield register
        change.done = self.disk.now

    def newest_answers(self, at: int) -> list[Answer]:
        """The last one of each partition that nothing is compacted in, before a crash."""
        newest = {each.partition: each for each in self.answers if each.done <= at}
        return [each for each in newest.values() if each.partition[0] != "keyed"]

    def register(self) -> Register:
        """A thing without a name: the outcome of a transaction."""
        return Register()

    @asynccontextmanager
    async def deciding(self, register: Register, value: Any) -> AsyncIterator[None]:
        """The same as `change` for such a thing."""
        change = Change(self.disk.now, value)
        register.changes.append(change)
        yield
        change.done = self.disk.now

    def send(self, partition: tuple[str, int], value: bytes, **more: Any) -> Sent:
        sent = Sent(self.disk.now, value, **more)
        self.records[partition].append(sent)
        return sent

    def acknowledged(self, sent: Sent, offset: int) -> None:
        sent.offset, sent.done = offset, self.disk.now


class Workload:
    """Clients that use every feature by which a broker promises something."""

    def __init__(self, history: History, broker: Broker, clients: tuple[Any, Any]) -> None:
        """`clients`: connections of two that work at the same time."""
        self._history = history
        self._broker = broker
        self._client, self._other_client = clients
        self._address = broker.bootstrap_servers

    async def run(self, round_: int, parts: Collection[str]) -> None:
        """One round of work; several, with restarts between them, make a history.

        `parts`: of `PARTS`, at the same time.
        """
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            if not round_:
                for part in parts:
                    for topic in PARTS[part]:
                        await self._create(admin, topic, 2, SETTINGS[topic])
            async with anyio.create_task_group() as tasks:
                if "records" in parts:
                    tasks.start_soon(self._produce_idempotently, round_)
                if "transactions" in parts:
                    tasks.start_soon(self._pay, round_)
                if "groups" in parts:
                    tasks.start_soon(self._commit, round_)
                if "topics" in parts:
                    tasks.start_soon(self._administer, admin, round_)
            if "records" in parts:
                await self._keep_house(admin)
        finally:
            await admin.close()

    async def _produce_idempotently(self, round_: int) -> None:
        producer_id = await self.new_producer_id()
        for number in range(6):
            for topic in ("plain", "kept"):
                values = [b"%d-%d-%d-%s" % (round_, number, n, b"x" * 40) for n in range(2)]
                await self._send_batch((topic, 0), producer_id, 2 * number, values)
        for number in range(8):
            key, value = b"key %d" % (number % 3), b"%d-%d-%s" % (round_, number, b"y" * 50)
            await self._send_batch(("keyed", 0), producer_id, number, [value], key=key)

    async def new_producer_id(self) -> int:
        answer = await self._client.call(INIT, 4, transactional_id=None, transaction_timeout=MINUTE)
        assert answer.error_code is OK
        self._history.registers["producer ids",].changes.append(
            Change(self._history.disk.now, answer.producer_id, self._history.disk.now)
        )
        return int(answer.producer_id)

    async def _send_batch(
        self,
        partition: tuple[str, int],
        producer_id: int,
        sequence: int,
        values: list[bytes],
        *,
        key: bytes | None = None,
    ) -> None:
        batch = bytes(
            build_batch(
                [NewRecord(key, value, (), 1_700_000_000_000) for value in values],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            )
        )
        sent = [self._history.send(partition, value, key=key) for value in values]
        code, offset = await produce(self._client, partition, batch)
        assert code is OK
        for each, at in zip(sent, range(offset, offset + len(sent)), strict=True):
            self._history.acknowledged(each, at)
        self._history.answers.append(Answer(partition, batch, offset, self._history.disk.now))

    async def _pay(self, round_: int) -> None:
        """Transactions over two partitions and the offsets of a group; the last one stays open."""
        history = self._history
        producer = AIOKafkaProducer(bootstrap_servers=self._address, transactional_id="cashier")
        await producer.start()
        identity = (producer._txn_manager.producer_id, producer._txn_manager.producer_epoch)
        history.registers["cashier",].changes.append(
            Change(history.disk.now, identity, history.disk.now)
        )
        for number, commits in enumerate((True, False, True, None)):
            await producer.begin_transaction()
            outcome = Register()
            for partition in (0, 1):
                value = b"%d-%d-%d-%s" % (round_, number, partition, b"z" * 60)
                sent = history.send(("paid", partition), value, transaction=outcome)
                metadata = await producer.send_and_wait("paid", value, partition=partition)
                history.acknowledged(sent, metadata.offset)
            offset = 100 * round_ + number
            wanted = {TopicPartition("paid", 0): offset}
            await producer.send_offsets_to_transaction(wanted, "auditors")
            if commits is None:
                break
            decision = Change(history.disk.now, commits)
            outcome.changes.append(decision)
            if commits:
                async with history.change(("committed", "auditors", "paid", 0), offset):
                    await producer.commit_transaction()
            else:
                await producer.abort_transaction()
            decision.done = history.disk.now
        await producer.stop()  # and leave its transaction open

    async def _commit(self, round_: int) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._address, group_id="readers", enable_auto_commit=False
        )
        await consumer.start()
        partition = TopicPartition("read", 1)
        consumer.assign([partition])
        for number in range(6):
            offset = 100 * round_ + number
            async with self._history.change(("committed", "readers", *partition), offset):
                await consumer.commit({partition: offset})
        await consumer.stop()
        await self._leave_nothing(round_)

    async def _leave_nothing(self, round_: int) -> None:
        """A group that commits an offset, which is then deleted, and is deleted itself."""
        topics = [{"name": "read", "partitions": [{"partition_index": 0}]}]
        by_offset: dict[str, Any] = {"group_id": "leavers", "topics": topics}
        by_group: dict[str, Any] = {"groups_names": ("leavers",)}
        for key, version, request in ((OFFSET_DELETE, 0, by_offset), (DELETE_GROUPS, 2, by_group)):
            await self._commit_once("leavers", round_)
            async with self._history.change(("committed", "leavers", "read", 0), None):
                answer = await self._other_client.call(key, version, **request)
                results = answer.results if key == DELETE_GROUPS else answer.topics[0].partitions
                assert results[0].error_code is OK

    async def _commit_once(self, group: str, offset: int) -> None:
        partition = {"partition_index": 0, "committed_offset": offset}
        topics = [{"name": "read", "partitions": [partition]}]
        async with self._history.change(("committed", group, "read", 0), offset):
            answer = await self._other_client.call(OFFSET_COMMIT, 7, group_id=group, topics=topics)
            assert answer.topics[0].partitions[0].error_code is OK

    async def _create(
        self, admin: Any, topic: str, partitions: int, settings: Mapping[str, str]
    ) -> None:
        async with self._history.change(
            ("topic", topic), (partitions, frozenset(settings.items()))
        ):
            answer = await admin.create_topics(
                [NewTopic(topic, partitions, 1, topic_configs=dict(settings))]
            )
            assert [code for _, code, *_ in answer.topic_errors] == [0]

    async def _administer(self, admin: Any, round_: int) -> None:
        change = self._history.change
        topic = f"short lived {round_}".replace(" ", "-")
        await self._create(admin, topic, 1, {"retention.ms": "1000"})
        async with change(("topic", topic), (1, frozenset({("retention.ms", "2000")}))):
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "2000"})
            await admin.alter_configs([resource])
        async with change(("topic", topic), (3, frozenset({("retention.ms", "2000")}))):
            await admin.create_partitions({topic: NewPartitions(3)})
        async with change(("topic", topic), None):
            await admin.delete_topics([topic])
        settings = {"retention.ms": str(10**9 + round_)}
        await self._create(admin, f"long-lived-{round_}", 1, settings)

    async def _keep_house(self, admin: Any) -> None:
        """Deletes records, applies retention and compacts, at moments that the test decides."""
        history = self._history
        end = len(history.records["plain", 0])
        async with history.change(("start", "plain", 0), end - 3):
            await admin.delete_records({TopicPartition("plain", 0): RecordsToDelete(end - 3)})
        now_ms = 1_700_000_000_000
        await retain(self._broker.topics, now_ms=now_ms)
        partition = self._broker.topics.partition("keyed", 0)
        assert partition is not None
        assert await compact(partition, self._broker.topics, now_ms=now_ms)


async def produce(client: Any, partition: tuple[str, int], batch: bytes) -> tuple[ErrorCode, int]:
    """Send a batch; the error and the offset of its first record."""
    topic, index = partition
    answer = await client.call(
        PRODUCE,
        9,
        acks=-1,
        topic_data=[{"name": topic, "partition_data": [{"index": index, "records": batch}]}],
    )
    found = answer.responses[0].partition_responses[0]
    return ErrorCode(found.error_code), found.base_offset


@dataclass
class Found:
    """What clients see of a broker.

    Attributes:
        topics: partitions and own settings of each.
        records: of each partition, (offset, value) of all that is there.
        committed: the same of what consumers of committed records see.
        keys: of each record by partition and offset.
        starts: where each partition starts.
        offsets: what groups committed.
    """

    topics: dict[str, tuple[int, frozenset[tuple[str, str]]]] = field(default_factory=dict)
    records: dict[tuple[str, int], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    committed: dict[tuple[str, int], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    keys: dict[tuple[str, int, int], bytes | None] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)


async def look(client: Any) -> Found:
    """Everything that the clients of the workload can see."""
    found = Found()
    answer = await client.call(METADATA, 12, topics=None)
    partitions: list[tuple[str, int]] = []
    for topic in answer.topics:
        assert topic.error_code is OK
        if not topic.is_internal:
            partitions += ((topic.name, index) for index in range(len(topic.partitions)))
    names = sorted({topic for topic, _ in partitions})
    resources = [{"resource_type": 2, "resource_name": name} for name in names]
    answer = await client.call(DESCRIBE_CONFIGS, 4, resources=resources)
    for name, result in zip(names, answer.results, strict=True):
        own = {(c.name, c.value) for c in result.configs if c.config_source == OWN_SETTING}
        count = sum(topic == name for topic, _ in partitions)
        found.topics[name] = (count, frozenset(own))
    wanted = {each: {"partition_index": each[1], "timestamp": EARLIEST} for each in partitions}
    answer = await client.call(LIST_OFFSETS, 7, topics=_by_topic(wanted))
    for topic in answer.topics:
        for each in topic.partitions:
            found.starts[topic.name, each.partition_index] = each.offset
    for isolation, into in ((UNCOMMITTED, found.records), (COMMITTED, found.committed)):
        for partition, records in (await _read(client, found.starts, isolation)).items():
            into[partition] = [(record.offset, record.value) for record in records]
            found.keys |= {(*partition, record.offset): record.key for record in records}
    groups = [{"group_id": group, "topics": None} for group in ("auditors", "readers", "leavers")]
    answer = await client.call(OFFSET_FETCH, 8, groups=groups)
    for group in answer.groups:
        assert group.error_code is OK
        for topic in group.topics:
            for each in topic.partitions:
                where = (group.group_id, topic.name, each.partition_index)
                found.offsets[where] = each.committed_offset
    return found


async def _read(
    client: Any, starts: Mapping[tuple[str, int], int], isolation: int
) -> dict[tuple[str, int], list[StoredRecord]]:
    """All records that a consumer hands to its user."""
    seen: dict[tuple[str, int], list[StoredRecord]] = {each: [] for each in starts}
    aborted: set[tuple[tuple[str, int], int]] = set()
    offsets = dict(starts)
    while offsets:
        wanted = {
            each: {"partition": each[1], "fetch_offset": offset, "partition_max_bytes": 2**20}
            for each, offset in offsets.items()
        }
        answer = await client.call(
            FETCH, 11, max_bytes=2**24, isolation_level=isolation, topics=_by_topic(wanted, "topic")
        )
        for topic in answer.responses:
            for fetched in topic.partitions:
                partition = (topic.topic, fetched.partition_index)
                if fetched.error_code is not OK:
                    raise LookupError(f"{partition} at {offsets[partition]}: {fetched.error_code}")
                begins = [
                    (a.first_offset, a.producer_id) for a in fetched.aborted_transactions or ()
                ]
                begins.sort()
                data, at = fetched.records, 0
                while at < len(data):
                    header = parse_header(data, at)
                    at, offsets[partition] = header.end, header.next_offset
                    while begins and begins[0][0] <= header.last_offset:
                        aborted.add((partition, begins.pop(0)[1]))
                    producer = (partition, header.producer_id)
                    if header.is_control:
                        if not read_marker(data, header).committed:
                            aborted.discard(producer)
                    elif not (header.is_transactional and producer in aborted):
                        records = read_records(data, header)
                        seen[partition] += (r for r in records if r.offset >= starts[partition])
                if not data:
                    del offsets[partition]
    return seen


def _by_topic(
    partitions: Mapping[tuple[str, int], dict[str, int]], field_name: str = "name"
) -> list[dict[str, Any]]:
    """Partitions of a request, by their topics."""
    topics: dict[str, list[dict[str, int]]] = defaultdict(list)
    for (topic, _), each in partitions.items():
        topics[topic].append(each)
    return [{field_name: topic, "partitions": each} for topic, each in topics.items()]


class Auditor:
    """Compares what clients see after a crash with what they had been told before."""

    def __init__(self, history: History, at: int, *, durable: bool) -> None:
        """`at`: how many operations the disk had seen; `durable`: what was acknowledged must hold."""
        self._history = history
        self._at = at
        self._durable = durable

    def check(self, found: Found) -> None:
        """Raises AssertionError."""
        allowed = {key: self._allowed(each) for key, each in self._history.registers.items()}
        for key, values in allowed.items():
            if key[0] == "topic":
                assert found.topics.get(key[1]) in values, key
            if key[0] == "committed":
                assert found.offsets.get(key[1:]) in values, key
            if key[0] == "start" and key[1] in found.topics:
                assert found.starts[key[1:]] in [each or 0 for each in values], key
        for partition, sent in self._history.records.items():
            if partition[0] not in found.topics:
                continue
            if partition[0] == "keyed":
                self._check_keyed(sent, found)
            else:
                self._check_records(sent, found.records[partition], found.starts[partition])
                self._check_committed(sent, found.committed[partition])
        self._check_transactions(found)

    def _allowed(self, register: Register) -> list[Any]:
        return register.allowed(self._at, durable=self._durable)

    def _must(self, sent: Sent) -> bool:
        return self._durable and sent.done is not None and sent.done <= self._at

    def _check_records(
        self, sent: list[Sent], seen: list[tuple[int, bytes | None]], start: int
    ) -> None:
        """What is there is what was sent from the start on, in its order, each once."""
        expected = [each for each in sent if each.offset is None or each.offset >= start]
        assert [value for _, value in seen] == [each.value for each in expected[: len(seen)]]
        for (offset, _), each in zip(seen, expected, strict=False):
            assert each.offset in (None, offset)
        assert not any(map(self._must, expected[len(seen) :]))

    def _check_committed(self, sent: list[Sent], seen: list[tuple[int, bytes | None]]) -> None:
        values = {value for _, value in seen}
        for each in sent:
            if each.transaction is not None and True not in self._allowed(each.transaction):
                assert each.value not in values

    def _check_keyed(self, sent: list[Sent], found: Found) -> None:
        """Of each key the newest value that was acknowledged, or a newer one, is the newest there."""
        number = {each.value: n for n, each in enumerate(sent)}
        newest: dict[bytes | None, int] = {}
        for offset, value in found.records["keyed", 0]:
            at = number[value]
            assert sent[at].offset in (None, offset)
            assert found.keys["keyed", 0, offset] == sent[at].key
            assert newest.get(sent[at].key, -1) < at
            newest[sent[at].key] = at
        for at, each in enumerate(sent):
            if self._must(each):
                assert newest.get(each.key, -1) >= at

    def _check_transactions(self, found: Found) -> None:
        """All of a transaction or nothing of it."""
        if not self._durable or "paid" not in found.topics:
            return
        seen = [{value for _, value in found.committed["paid", partition]} for partition in (0, 1)]
        for one, other in zip(
            self._history.records["paid", 0], self._history.records["paid", 1], strict=False
        ):
            assert one.transaction is not None
            outcomes = self._allowed(one.transaction)
            visible = [one.value in seen[0], other.value in seen[1]]
            assert visible in [[each is True] * 2 for each in outcomes]

    async def check_producers(self, client: Any) -> None:
        """No id is handed out twice, zombies are fenced, and what is sent again is there once."""
        used = {each.value for each in self._history.registers["producer ids",].changes[1:]}
        answer = await client.call(INIT, 4, transactional_id=None, transaction_timeout=MINUTE)
        assert answer.error_code is OK
        begun = {
            each.value
            for each in self._history.registers["producer ids",].changes
            if each.begun <= self._at
        }
        assert not (self._durable and answer.producer_id in begun & used)
        for each in self._history.newest_answers(self._at) if self._durable else ():
            assert await each.comes_again(client), each.partition

    async def check_epochs(self, client: Any) -> None:
        """Who takes over a transactional id fences everybody who had it."""
        if not self._durable:
            return
        holders = [each for each in self._allowed(self._history.registers["cashier",]) if each]
        async with asyncio.timeout(30):
            while True:
                answer = await client.call(
                    INIT, 4, transactional_id="cashier", transaction_timeout=MINUTE
                )
                if answer.error_code is not ErrorCode.concurrent_transactions:
                    break
        assert answer.error_code is OK
        for holder in holders:
            assert (answer.producer_id, answer.producer_epoch) > holder


@dataclass(frozen=True)
class Tools:
    """What the tests of this folder share."""

    connect: Connect

    async def work(
        self,
        disk: Disk,
        fsync: str = "always",
        *,
        parts: Collection[str] = tuple(PARTS),
        rounds: int = 2,
        **settings: Any,
    ) -> History:
        """Let clients work on a broker below the disk's root, which is restarted between rounds."""
        history = History(disk)
        for round_ in range(rounds):
            async with self.broker(disk.root, fsync, **settings) as broker:
                clients = await self.connect(broker), await self.connect(broker)
                await Workload(history, broker, clients).run(round_, parts)
        return history

    def history(self, disk: Disk) -> History:
        """An empty one."""
        return History(disk)

    def broker(self, root: Path, fsync: str, **settings: Any) -> Broker:
        """A broker below a disk's root."""
        return Broker(
            BrokerSettings(data_dir=root / "data", port=0, fsync=fsync, **settings)  # type: ignore[arg-type]
        )

    async def look(self, client: Any) -> Found:
        """Everything that clients can see. Raises LookupError when they are told of damage."""
        return await look(client)

    async def audit(
        self, root: Path, history: History, at: int, fsync: str = "always", *, durable: bool
    ) -> None:
        """Start a broker on what a crash left, twice, and check what its clients see."""
        auditor = Auditor(history, at, durable=durable)
        async with self.broker(root, fsync) as broker:
            client = await self.connect(broker)
            first = await look(client)
            auditor.check(first)
            await auditor.check_producers(client)
            after = await look(client)
            assert after == first or not durable
            await auditor.check_epochs(client)
            last = await look(client)
            await client.close()
        async with self.broker(root, fsync) as broker:
            client = await self.connect(broker)
            assert await look(client) == last
            await client.close()


@pytest.fixture
def tools(connect: Connect) -> Tools:
    return Tools(connect)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory, for a disk."""
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """A recovery has much to say, a thousand of them too much."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


@pytest.fixture
def moments() -> Callable[[int, int], range]:
    """Numbers of operations from 0 to `end`, both included, each `stride`th of them.

    All of them with KMR_EVERY_CRASH=1 in the environment, which takes minutes.
    """
    every = os.environ.get("KMR_EVERY_CRASH") == "1"
    return lambda end, stride: range(0, end + 1, 1 if every else stride)
