"""Corner cases of groups, offsets and brokers: each is settled; docs/corner-cases.md says how."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from structlog.testing import capture_logs

from kmr.broker import Broker, BrokerSettings
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.errors import KmrError, OffsetOutOfRange
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import connection_config
from kmr.mapping.functions import map_record
from kmr.record import Record, TopicPartition
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker

from ..workers import until_mapped, until_settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from kmr.kafka.consumer import CommitOffset
    from kmr.testing import StartBroker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AFTER_ALL = 120  # seconds; nothing here takes so long


@map_record
def locate(record: Record) -> dict[str, int]:
    return {"p": record.partition, "o": record.offset}


def settings_of(broker: Broker | Node, **options: Any) -> Settings:
    defaults: dict[str, Any] = {"topics": ("t",), "group": "g", "heartbeat_interval": 0.05}
    defaults |= {"bootstrap_servers": broker.bootstrap_servers, "commit_interval": 0.05}
    return Settings(**defaults | options)


def to(journal: Journal) -> Strategy:
    return Strategy(locate, [MemoryWriter(journal, max_age=0.01)])


@asynccontextmanager
async def working(journal: Journal, settings: Settings) -> AsyncIterator[Worker]:
    """A worker that has its partitions; it drains at the end."""
    worker = Worker(to(journal), settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        with anyio.fail_after(AFTER_ALL):
            await worker.ready()
            yield worker
        worker.shutdown("done")


async def nothing(_: Worker) -> None: ...


async def failure(
    settings: Settings,
    journal: Journal | None = None,
    disturb: Callable[[Worker], Awaitable[None]] = nothing,
) -> KmrError:
    """Return the error of a worker that cannot start, or cannot continue after `disturb`."""
    worker = Worker(to(journal or Journal()), settings)

    async def disturbing() -> None:
        await worker.ready()
        await disturb(worker)

    with anyio.fail_after(AFTER_ALL):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(disturbing)
            with pytest.raises(KmrError) as caught:
                await worker.run()
            tasks.cancel_scope.cancel()
    return caught.value


class Node:
    """A broker that can be started again at the same address, with the same data or other."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._stop = self._stopped = anyio.Event()
        self._port = free_port()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self, data: Path) -> None:
        self._stop, self._stopped = anyio.Event(), anyio.Event()
        await self._tasks.start(self._serve, data)

    async def restart(self, data: Path) -> None:
        self._stop.set()
        await self._stopped.wait()
        await self.start(data)

    async def _serve(self, data: Path, *, task_status: TaskStatus[None]) -> None:
        async with Broker(BrokerSettings(data_dir=data, port=self._port)):
            task_status.started()
            await self._stop.wait()
        self._stopped.set()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with anyio.create_task_group() as tasks:
        node = Node(tasks)
        await node.start(tmp_path / "data")
        yield node
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def admin_of(broker: Broker) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(broker: Broker, partitions: int) -> None:
    async with admin_of(broker) as admin:
        await admin.create_topics([NewTopic("t", partitions, 1)])


async def produce(broker: Broker | Node, count: int, partition: int = 0) -> None:
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        await producer.send([b"x"] * count, partition=partition)


async def committed(broker: Broker) -> dict[TopicPartition, CommitOffset]:
    async with connect_admin(connection_config(settings_of(broker))) as admin:
        return await admin.list_group_offsets("g")


def offsets(journal: Journal, partition: int = 0) -> list[int]:
    return [row["o"] for row in journal.rows() if row["p"] == partition]


def rows(journal: Journal) -> list[tuple[int, int]]:
    return [(row["p"], row["o"]) for row in journal.rows()]


async def read(broker: Broker, partition: int, count: int, **options: Any) -> list[int]:
    """Run a worker; return the offsets that it wrote of a partition."""
    journal = Journal()
    async with working(journal, settings_of(broker, **options)):
        await journal.until(lambda j: len(offsets(j, partition)) >= count)
    return offsets(journal, partition)


async def test_a_member_without_partitions_is_ready_and_takes_over_when_the_other_leaves(
    broker: Broker,
) -> None:
    await create(broker, 1)
    busy, spare = Journal(), Journal()
    first, second = Worker(to(busy), settings_of(broker)), Worker(to(spare), settings_of(broker))
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(AFTER_ALL):
            tasks.start_soon(first.run)
            await first.ready()
            tasks.start_soon(second.run)
            await second.ready()
            await produce(broker, 5)
            await busy.until(lambda j: j.count == 5)
            status = second.status()
            assert (status.ready, status.live, status.partitions) == (True, True, ())
            first.shutdown("leaves")
            await produce(broker, 5)
            await spare.until(lambda j: j.count == 5)
            second.shutdown("done")
    assert (offsets(busy), offsets(spare)) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])


async def test_a_drain_that_a_rebalance_does_not_wait_for_ends_with_the_partitions_that_it_keeps(
    broker: Broker,
) -> None:
    await create(broker, 2)
    for partition in (0, 1):
        await produce(broker, 20, partition)
    settings = settings_of(broker, revoke_deadline=0.2)
    slow, other = Journal(hold=anyio.Event()), Journal()
    first = Worker(Strategy(locate, [MemoryWriter(slow, max_rows=1)]), settings)
    second = Worker(to(other), settings)
    ended = anyio.Event()

    async def drain() -> None:
        await first.run()
        ended.set()

    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(AFTER_ALL):
            tasks.start_soon(drain)
            await slow.until(lambda j: j.attempts == 1)
            await until_mapped(first, 40)  # the drain drops other records
            first.shutdown("leaves")
            tasks.start_soon(second.run)
            await second.ready()  # the rebalance has ended, and the first flush still hangs
            assert len(second.status().partitions) == 1
            assert slow.hold is not None
            slow.hold.set()
            await ended.wait()
            await other.until(lambda _: len({*rows(slow), *rows(other)}) == 40)
            second.shutdown("done")
    twice = {row for row, count in Counter([*rows(slow), *rows(other)]).items() if count > 1}
    assert twice <= {rows(slow)[0]}, "only the flush that hung may be of a partition that was lost"
    assert list(range(20)) in (offsets(slow, 0), offsets(slow, 1))


async def test_without_a_commit_earliest_reads_everything_and_says_where_it_begins(
    broker: Broker,
) -> None:
    await produce(broker, 3)
    with capture_logs() as logs:
        assert await read(broker, 0, 3) == [0, 1, 2]
    [log] = [log for log in logs if "offsets" in log]
    assert log["offsets"] == {"t-0": 0}


async def test_without_a_commit_latest_reads_what_comes_and_commits_where_it_began(
    broker: Broker,
) -> None:
    await produce(broker, 3)
    options = {"auto_offset_reset": "latest"}
    async with working(Journal(), settings_of(broker, **options)):
        assert (await committed(broker))[T0].offset == 3
    await produce(
        broker, 2
    )  # no member reads now; the group has committed offsets, so it reads these later
    assert await read(broker, 0, 2, **options) == [3, 4]


async def test_without_a_commit_error_is_a_message_that_names_partition_and_range(
    broker: Broker,
) -> None:
    await produce(broker, 3)
    error = await failure(settings_of(broker, auto_offset_reset="error"))
    assert isinstance(error, OffsetOutOfRange)
    for part in ("t-0", "group g has committed no offset", "offsets 0 to 3", "auto_offset_reset"):
        assert part in str(error)


async def retained(broker: Broker) -> None:
    """Offset 2 is committed, and the log begins at 6."""
    await produce(broker, 2)
    await read(broker, 0, 2)
    await produce(broker, 8)
    async with admin_of(broker) as admin:
        await admin.delete_records({T0: RecordsToDelete(6)})


async def test_an_offset_below_the_log_stops_the_worker_and_names_the_range(broker: Broker) -> None:
    await retained(broker)
    error = await failure(settings_of(broker))
    for part in ("t-0", "offset 2", "offsets 6 to 10", "on_out_of_range"):
        assert part in str(error)
    assert (await committed(broker))[T0].offset == 2


async def test_an_offset_below_the_log_may_be_passed_which_is_logged_and_counted(
    broker: Broker,
) -> None:
    await retained(broker)
    journal = Journal()
    options = {"on_out_of_range": "earliest"}
    with capture_logs() as logs:
        async with working(journal, settings_of(broker, **options)) as worker:
            await journal.until(lambda j: j.count == 4)
            assert worker.metrics.offset_resets.labels("t")._value.get() == 1
    assert offsets(journal) == [6, 7, 8, 9]
    [log] = [log for log in logs if log["log_level"] == "error"]
    assert log["partition"] == "t-0"
    assert "offsets 6 to 10" in log["log"]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_partition_that_is_added_is_read_from_its_beginning_without_a_restart(
    broker: Broker, policy: str
) -> None:
    await create(broker, 1)
    journal = Journal()
    options = {"auto_offset_reset": policy, "metadata_max_age": 0.2}
    async with working(journal, settings_of(broker, **options)):
        async with admin_of(broker) as admin:
            await admin.create_partitions({"t": NewPartitions(2)})
        await produce(broker, 4, 1)  # very likely before the worker hears of the partition
        await journal.until(lambda j: j.count == 4)
    assert offsets(journal, 1) == [0, 1, 2, 3]


async def test_a_partition_added_while_no_member_ran_is_read_from_its_beginning(
    broker: Broker,
) -> None:
    await create(broker, 1)
    options = {"auto_offset_reset": "latest"}
    async with working(Journal(), settings_of(broker, **options)):
        pass
    async with admin_of(broker) as admin:
        await admin.create_partitions({"t": NewPartitions(2)})
    await produce(broker, 4, 1)
    assert await read(broker, 1, 4, **options) == [0, 1, 2, 3]


async def test_members_that_begin_a_group_together_all_begin_at_the_end(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(group_initial_rebalance_delay=1.0)
    await create(broker, 2)
    for partition in (0, 1):
        await produce(broker, 3, partition)
    settings = settings_of(broker, auto_offset_reset="latest")
    workers = [Worker(to(Journal()), settings) for _ in range(2)]
    with anyio.fail_after(AFTER_ALL):
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.run)
            for worker in workers:
                await worker.ready()
                worker.shutdown("done")
    assert {p: entry.offset for p, entry in (await committed(broker)).items()} == {T0: 3, T1: 3}


@pytest.mark.parametrize("creates", [True, False])
async def test_a_topic_that_is_deleted_ends_the_worker_with_one_message(
    start_broker: StartBroker, creates: bool
) -> None:
    """A broker that creates topics automatically is not asked to create it again."""
    broker = await start_broker(auto_create_topics=creates)
    await create(broker, 1)
    await produce(broker, 3)
    journal = Journal()

    async def delete(worker: Worker) -> None:
        await until_settled(worker, T0, 3)
        async with admin_of(broker) as admin:
            await admin.delete_topics(["t"])

    error = await failure(settings_of(broker, metadata_max_age=0.2), journal, delete)
    assert "topic t does not exist" in str(error)


async def test_a_worker_outlives_a_restart_of_the_broker_with_its_data(
    node: Node, tmp_path: Path
) -> None:
    journal = Journal()
    await produce(node, 3)
    async with working(journal, settings_of(node)):
        await journal.until(lambda j: j.count == 3)
        await node.restart(tmp_path / "data")
        await produce(node, 3)
        await journal.until(lambda j: j.count >= 6)
    assert set(offsets(journal)) == set(range(6))


@pytest.mark.parametrize("policy", ["error", "earliest"])
async def test_a_worker_refuses_a_broker_that_restarts_without_its_data(
    node: Node, tmp_path: Path, policy: str
) -> None:
    journal = Journal()
    await produce(node, 3)

    async def empty(worker: Worker) -> None:
        await until_settled(worker, T0, 3)
        await worker._committer.commit()
        await node.restart(tmp_path / "empty")
        await produce(node, 1)

    error = await failure(settings_of(node, on_out_of_range=policy), journal, empty)
    # It depends on timing whether the worker first sees a lost committed offset or one beyond the end.
    assert re.search(r"t-0: (the broker has lost committed )?offset 3\b", str(error))
    assert "data directory" in str(error)
    assert offsets(journal) == [0, 1, 2]


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
async def test_a_committed_offset_beyond_the_end_is_refused_whatever_the_policy(
    broker: Broker, policy: str
) -> None:
    await produce(broker, 3)
    consumer = AIOKafkaConsumer(
        group_id="g", enable_auto_commit=False, bootstrap_servers=broker.bootstrap_servers
    )
    await consumer.start()
    consumer.assign([KafkaPartition(*T0)])
    await consumer.commit({KafkaPartition(*T0): 100})
    await consumer.stop()
    error = await failure(settings_of(broker, on_out_of_range=policy))
    for part in ("t-0", "offset 100", "offsets 0 to 3", "kmr offsets reset"):
        assert part in str(error)
