"""Exactly once from topic to topic: a worker dies, or an answer is lost, between two steps of a transaction.

Proven by counting what a reader with `read_committed` sees: each record's result once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.transaction import EndTxnRequest

from kmr.commit import TransactionalCommitter
from kmr.errors import ConsumerError, KmrError
from kmr.kafka.transactions import Transactions
from kmr.mapping.functions import map_record
from kmr.settings import Settings
from kmr.sinks import DeadLetterWriter, KafkaWriter
from kmr.strategy import Strategy
from kmr.worker import SupervisorLink, Worker
from tests.framework.guarantees.working import working

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kmr.broker import Broker
    from kmr.kafka.consumer import CommitOffset
    from kmr.kafka.group_offsets import Membership
    from kmr.record import Record
    from kmr.record import TopicPartition as Partition
    from kmr.reducers.reducer import Context
    from tests.framework.conftest import CreateTopic, Produce

RECORDS = 20
STEPS = (
    "before the send",
    "after the send",
    "before the offsets",
    "before the commit",
    "after the commit",
)


@map_record
def identify(record: Record) -> dict[str, bytes] | None:
    if record.value == b"poison":
        raise ValueError("poisoned")
    return None if record.value == b"skip" else {"v": record.value or b""}


class Killed(KmrError):
    """The process is dead: nothing of it is sent any more."""


class Lost(KafkaError, ConsumerError):  # type: ignore[misc]
    """The brokers have not answered."""


class Steps(Transactions):
    """Transactions that are struck once, at a step of their third commit."""

    step = ""
    error: type[Exception] = Killed
    commits = 0
    struck = False
    identity = (-1, -1)

    def _reach(self, step: str) -> None:
        if step == self.step and self.commits == 2 and not self.struck:
            self.struck = True
            raise self.error(f"struck {step}")

    @property
    def dead(self) -> bool:
        return self.struck and self.error is Killed

    async def begin(self) -> Any:
        producer = await super().begin()
        self._reach("before the send")
        return producer

    async def commit(self, offsets: Mapping[Partition, CommitOffset], member: Membership) -> None:
        self._reach("after the send")
        sender = self._producer._sender
        self.identity = (sender._txn_manager.producer_id, sender._txn_manager.producer_epoch)

        async def offsets_step(*arguments: Any) -> None:
            self._reach("before the offsets")
            await type(sender)._do_txn_offset_commit(sender, *arguments)
            self._reach("before the commit")

        sender._do_txn_offset_commit = offsets_step
        try:
            await super().commit(offsets, member)
        except ConsumerError:
            if self.dead:
                raise Killed("struck") from None
            raise
        self._begun = True
        self._reach("after the commit")
        self._begun = False
        self.commits += 1

    async def _connect(self) -> None:
        if self.dead:
            raise Killed("struck")
        await super()._connect()

    async def close(self) -> None:
        if not self.dead:
            await super().close()


class Writer(KafkaWriter):
    """Writes with `Steps`."""

    step = ""
    error: type[Exception] = Killed

    def transactions(self, context: Context) -> Transactions:
        given = super().transactions(context)
        made = Steps(given._client, given._group, given.transactional_id, given._timeout)
        made.step, made.error = self.step, self.error
        return made


def strategy(step: str = "", error: type[Exception] = Killed, **options: Any) -> Strategy:
    limits: dict[str, Any] = {"max_rows": 5, "max_age": 0.05}
    writer = Writer("out", value="v", delivery="exactly-once", **limits | options)
    writer.step, writer.error = step, error
    return Strategy(identify, [writer], reduce_err=DeadLetterWriter("dead", max_age=0.01))


def settings_of(broker: Broker, **options: Any) -> Settings:
    defaults: dict[str, Any] = {"topics": ("in",), "group": "g", "heartbeat_interval": 0.05}
    defaults |= {"bootstrap_servers": broker.bootstrap_servers, "commit_interval": 0.05}
    return Settings(**defaults | options)


async def read(broker: Broker, topic: str = "out", isolation: Any = "read_committed") -> list[Any]:
    """Return the values of a topic, as far as a reader sees them now."""
    consumer: AIOKafkaConsumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, isolation_level=isolation
    )
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        values: list[Any] = []
        with anyio.fail_after(60):
            while await consumer.position(partition) < end:
                fetched = await consumer.getmany(partition, timeout_ms=100)
                values += [record.value for record in fetched.get(partition, [])]
        return values
    finally:
        await consumer.stop()


async def until_committed(worker: Worker, end: int) -> None:
    while sum(each.committed or 0 for each in worker.status().partitions) < end:  # noqa: ASYNC110
        await anyio.sleep(0.01)


@pytest.fixture
async def topics(create_topic: CreateTopic, produce: Produce) -> list[bytes]:
    """The topics; returns the values of the input."""
    for topic in ("in", "out", "dead"):
        await create_topic(topic)
    values = [b"%d" % number for number in range(RECORDS)]
    await produce("in", values)
    return values


def aborted(worker: Worker) -> int:
    return int(worker.metrics.transactions.labels("aborted")._value.get())


async def end_transaction(broker: Broker, left: Steps) -> None:
    """Commit what a dead worker left open."""
    client = AIOKafkaClient(bootstrap_servers=broker.bootstrap_servers)
    await client.bootstrap()
    try:
        request = EndTxnRequest(left.transactional_id, *left.identity, True)  # noqa: FBT003
        response = await client.send(client.get_random_node(), request)
        assert response.error_code == 0
    finally:
        await client.close()


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_that_dies_between_two_steps_loses_and_doubles_nothing(
    broker: Broker, topics: list[bytes], step: str
) -> None:
    settings = settings_of(broker, group_instance_id="member")
    dying = Worker(strategy(step), settings)
    with anyio.fail_after(60), pytest.raises(KmrError, match="struck"):
        await dying.run()
    async with working(strategy(), settings) as worker:
        await until_committed(worker, RECORDS)
    assert await read(broker) == topics


async def test_a_process_that_waits_for_its_predecessor_does_not_fence_it(
    broker: Broker, topics: list[bytes], produce: Produce
) -> None:
    settings = settings_of(broker, group_instance_id="member")
    prepared, admission = anyio.Event(), anyio.Event()

    async def admitted() -> None:
        prepared.set()
        await admission.wait()

    link = SupervisorLink(
        name="worker 0",
        report=lambda status, registry: None,
        admitted=admitted,
        joined=lambda: None,
        left=admission.set,
        leaves=lambda: False,
        failed=lambda _: None,
    )
    successor = Worker(strategy(), settings, supervisor=link)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with working(strategy(), settings) as worker:
                await until_committed(worker, RECORDS)
                tasks.start_soon(successor.run)
                await prepared.wait()
                await produce("in", [b"late"])
                await until_committed(worker, RECORDS + 1)
                assert aborted(worker) == 0
            admission.set()
            await produce("in", [b"later"])
            await until_committed(successor, RECORDS + 2)
            successor.shutdown("done")
    assert await read(broker) == [*topics, b"late", b"later"]


@pytest.mark.parametrize("step", ["after the send", "before the commit", "after the commit"])
async def test_a_lost_answer_loses_and_doubles_nothing(
    broker: Broker, topics: list[bytes], step: str
) -> None:
    async with working(strategy(step, Lost), settings_of(broker)) as worker:
        await until_committed(worker, RECORDS)
        assert aborted(worker) == 1
    assert await read(broker) == topics


async def test_failed_filtered_and_refused_records_are_settled_before_a_transaction_covers_them(
    broker: Broker, topics: list[bytes], produce: Produce
) -> None:
    large = b"x" * 3_000
    await produce("in", [b"skip", b"poison", large, b"last", b"skip"])
    async with working(strategy(max_message_bytes=2_000), settings_of(broker)) as worker:
        await until_committed(worker, RECORDS + 5)
    assert await read(broker) == [*topics, b"last"]
    assert sorted(await read(broker, "dead")) == sorted([b"poison", large])


async def test_a_message_that_the_topic_refuses_is_found_and_the_others_are_written_once(
    broker: Broker, topics: list[bytes], produce: Produce, create_topic: CreateTopic
) -> None:
    await broker.topics.create("small", 1, {"max.message.bytes": "4000"})
    large = random.Random(1).randbytes(5_000)
    await produce("in", [large])
    # With compression only the broker can tell that a message is too large.
    writing = strategy(compression="gzip", max_rows=100)
    writing.reducers[-1].topic = "small"  # type: ignore[attr-defined]
    async with working(writing, settings_of(broker)) as worker:
        await until_committed(worker, RECORDS + 1)
    assert await read(broker, "small") == topics
    assert await read(broker, "dead") == [large]


async def test_records_that_are_all_filtered_are_committed_by_a_transaction_of_their_own(
    broker: Broker, create_topic: CreateTopic, produce: Produce
) -> None:
    for topic in ("in", "out", "dead"):
        await create_topic(topic)
    await produce("in", [b"skip"] * 5)
    async with working(strategy(), settings_of(broker)) as worker:
        await until_committed(worker, 5)
        committed = worker.metrics.transactions.labels("committed")
        assert committed._value.get() == worker.metrics.commits.labels("ok")._value.get() >= 1
    assert await read(broker) == []


async def test_a_new_owner_waits_for_the_transaction_that_the_last_one_left_open(
    broker: Broker, topics: list[bytes]
) -> None:
    """Its offsets may still be committed: another transactional id does not abort it."""
    dying = Worker(strategy("before the commit"), settings_of(broker))
    with anyio.fail_after(60), pytest.raises(KmrError, match="struck"):
        await dying.run()
    committer = dying.pipeline.committer
    assert isinstance(committer, TransactionalCommitter)
    left = committer._transactions
    assert isinstance(left, Steps)
    worker = Worker(strategy(), settings_of(broker))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        while worker._consumer.generation < 0:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        await anyio.sleep(0.2)
        assert not worker._events.assigned_once.is_set()
        # Its last request was on its way when the process died.
        await end_transaction(broker, left)
        with anyio.fail_after(60):
            await worker.ready()
            await until_committed(worker, RECORDS)
        worker.shutdown("done")
    assert await read(broker) == topics


async def test_members_come_and_go_and_share_one_producer_each(
    broker: Broker, create_topic: CreateTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic, partitions in (("in", 4), ("out", 1), ("dead", 1)):
        await create_topic(topic, partitions)
    opened: list[str] = []
    connect = Transactions._connect

    async def counted(self: Transactions) -> None:
        opened.append(self.transactional_id)
        await connect(self)

    monkeypatch.setattr(Transactions, "_connect", counted)
    values: list[bytes] = []

    async def more() -> None:
        for partition in range(4):
            these = [b"%d" % (len(values) + number) for number in range(50)]
            await produce("in", these, partition)
            values.extend(these)

    await more()
    async with working(strategy(), settings_of(broker)) as first:
        async with working(strategy(), settings_of(broker)):
            await more()
            while len(first.status().partitions) > 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await more()
        await more()
        await until_committed(first, len(values))
    assert sorted(await read(broker)) == sorted(values)
    assert len(opened) == len(set(opened)) == 2
