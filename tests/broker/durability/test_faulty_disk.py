"""A disk that is full, or fails to sync or to read, at any operation of a broker's life.

Each step of the work either succeeds or is refused with a reason; what succeeded is there afterwards,
once, also after a power loss; refused steps succeed when there is room again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from chaos.disks.disk import Disk
from chaos.disks.power_loss import NOTHING, survivors, write_tree
from kmr.broker.errors import BrokerError
from kmr.broker.log.records import NewRecord, build_batch, split_batches
from kmr.broker.operations.maintenance import retain

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from kmr.broker import Broker

PRODUCE, FETCH, LIST_OFFSETS, OFFSET_COMMIT = 0, 1, 2, 8
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 19, 20, 21
INIT, ADD_PARTITIONS, END, ALTER, CREATE_PARTITIONS = 22, 24, 26, 33, 37
Moments = Callable[[int, int], range]
OK = ErrorCode.none
MIB = 1024 * 1024
MINUTE = timedelta(minutes=1)
NOW_MS = 1_700_000_000_000
FILES = {"write", "cut", "sync", "make", "rename", "remove"}
TRANSIENT = {ErrorCode.concurrent_transactions}
REFUSALS = {
    ErrorCode.kafka_storage_error,
    ErrorCode.coordinator_not_available,
    ErrorCode.unknown_server_error,
}


class Refused(Exception):
    """The broker has answered that the disk failed."""


class AlreadyThere(Exception):
    """A refused step had taken effect all the same, so its retry is refused."""


class Work:
    """One client that takes its steps in order, and remembers the responses."""

    broker: Broker
    client: Any

    def __init__(self, history: Any) -> None:
        self.history = history
        self.producer = -1
        self.cashier = (-1, -1)
        self.sequences: dict[Any, int] = {}
        self.open: Any = None

    @property
    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        """In their order; each may be asked for again when it was refused."""
        settings = {"internal.segment.bytes": "300", "retention.bytes": "300"}
        return [
            lambda: self.create("plain", settings),
            self.begin,
            *(self.produce(("plain", 0)) for _ in range(5)),
            lambda: self.create("paid", {"internal.segment.bytes": "400"}),
            self.take_over,
            self.add,
            self.produce(("paid", 0), transactional=True),
            lambda: self.end(commit=True),
            self.add,
            self.produce(("paid", 0), transactional=True),
            lambda: self.end(commit=False),
            *(self.commit(offset) for offset in (1, 2)),
            lambda: self.configure("plain", {**settings, "retention.ms": "1234"}),
            lambda: self.grow("paid", 3),
            lambda: self.delete_records("plain", 3),
            self.retain,
            self.produce(("plain", 0)),
            self.fetch,
            self.list_offsets,
            lambda: self.delete("paid"),
            self.produce(("plain", 0)),
        ]

    async def create(self, topic: str, settings: dict[str, str]) -> None:
        wanted = {
            "name": topic,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": name, "value": value} for name, value in settings.items()],
        }
        async with self.history.change(("topic", topic), (1, frozenset(settings.items()))):
            answer = await self.client.call(CREATE_TOPICS, 7, topics=[wanted])
            check(answer.topics[0].error_code, done=ErrorCode.topic_already_exists)

    async def configure(self, topic: str, settings: dict[str, str]) -> None:
        configs = [{"name": name, "value": value} for name, value in settings.items()]
        wanted = {"resource_type": 2, "resource_name": topic, "configs": configs}
        async with self.history.change(("topic", topic), (1, frozenset(settings.items()))):
            answer = await self.client.call(ALTER, 2, resources=[wanted])
            check(answer.responses[0].error_code)

    async def grow(self, topic: str, count: int) -> None:
        settings = frozenset({("internal.segment.bytes", "400")})
        async with self.history.change(("topic", topic), (count, settings)):
            wanted = {"name": topic, "count": count, "assignments": None}
            answer = await self.client.call(CREATE_PARTITIONS, 3, topics=[wanted])
            check(answer.results[0].error_code, done=ErrorCode.invalid_partitions)

    async def delete(self, topic: str) -> None:
        async with self.history.change(("topic", topic), None):
            answer = await self.client.call(DELETE_TOPICS, 6, topics=[{"name": topic}])
            check(answer.responses[0].error_code, done=ErrorCode.unknown_topic_or_partition)

    async def delete_records(self, topic: str, offset: int) -> None:
        partition = {"partition_index": 0, "offset": offset}
        async with self.history.change(("start", topic, 0), offset):
            answer = await self.client.call(
                DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": [partition]}]
            )
            check(answer.topics[0].partitions[0].error_code)

    async def fetch(self) -> None:
        """All records, from segments that were closed and from the active one."""
        partition = self.broker.topics.partition("plain", 0)
        assert partition is not None
        offset = partition.log.log_start_offset
        while offset < partition.high_watermark:
            wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 200}
            answer = await self.client.call(
                FETCH, 11, max_bytes=1000, topics=[{"topic": "plain", "partitions": [wanted]}]
            )
            found = answer.responses[0].partitions[0]
            check(found.error_code)
            offset = split_batches(found.records)[-1].next_offset

    async def list_offsets(self) -> None:
        wanted = {"partition_index": 0, "timestamp": NOW_MS}
        answer = await self.client.call(
            LIST_OFFSETS, 7, topics=[{"name": "plain", "partitions": [wanted]}]
        )
        check(answer.topics[0].partitions[0].error_code)

    async def retain(self) -> None:
        await retain(self.broker.topics, self.broker.health.supervisor, now_ms=NOW_MS)

    async def begin(self) -> None:
        answer = await self.client.call(INIT, 4, transactional_id=None, transaction_timeout=MINUTE)
        check(answer.error_code)
        self.producer = answer.producer_id

    async def take_over(self) -> None:
        answer = await self.client.call(
            INIT, 4, transactional_id="cashier", transaction_timeout=MINUTE
        )
        check(answer.error_code)
        self.cashier = answer.producer_id, answer.producer_epoch

    def produce(
        self, partition: tuple[str, int], *, transactional: bool = False
    ) -> Callable[[], Awaitable[None]]:
        async def produce() -> None:
            sequence = self.sequences.get(partition, 0)
            producer_id, epoch = self.cashier if transactional else (self.producer, 0)
            value = b"%s-%d-%s" % (partition[0].encode(), sequence, b"x" * 60)
            batch = build_batch(
                [NewRecord(None, value, (), NOW_MS)],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            )
            known = self.history.records[partition]
            if not known or known[-1].value != value:
                transaction = self.open if transactional else None
                self.history.send(partition, value, transaction=transaction)
            data = {"index": partition[1], "records": bytes(batch)}
            answer = await self.client.call(
                PRODUCE,
                9,
                transactional_id="cashier" if transactional else None,
                acks=-1,
                topic_data=[{"name": partition[0], "partition_data": [data]}],
            )
            found = answer.responses[0].partition_responses[0]
            check(found.error_code)
            self.history.acknowledged(known[-1], found.base_offset)
            self.sequences[partition] = sequence + 1

        return produce

    async def add(self) -> None:
        prefix = "v3_and_below_"
        fields = {
            "transactional_id": "cashier",
            "producer_id": self.cashier[0],
            "producer_epoch": self.cashier[1],
            "topics": [{"name": "paid", "partitions": [0]}],
        }
        answer = await self.client.call(
            ADD_PARTITIONS, 3, **{prefix + name: value for name, value in fields.items()}
        )
        check(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
        self.open = self.history.register()

    async def end(self, *, commit: bool) -> None:
        async with self.history.deciding(self.open, commit):
            answer = await self.client.call(
                END,
                3,
                transactional_id="cashier",
                producer_id=self.cashier[0],
                producer_epoch=self.cashier[1],
                committed=commit,
            )
            check(answer.error_code)

    def commit(self, offset: int) -> Callable[[], Awaitable[None]]:
        async def commit() -> None:
            partition = {"partition_index": 0, "committed_offset": offset}
            async with self.history.change(("committed", "readers", "plain", 0), offset):
                answer = await self.client.call(
                    OFFSET_COMMIT,
                    7,
                    group_id="readers",
                    generation_id_or_member_epoch=-1,
                    topics=[{"name": "plain", "partitions": [partition]}],
                )
                check(answer.topics[0].partitions[0].error_code)

        return commit


def check(code: object, *, done: ErrorCode | None = None) -> None:
    """`done`: the error code of a step that has already been taken."""
    if code is OK:
        return
    if code is done:
        raise AlreadyThere
    if code in REFUSALS or code in TRANSIENT:
        raise Refused(code)
    raise AssertionError(f"{code} is no answer to a disk that fails")


async def attempt(step: Callable[[], Awaitable[None]]) -> None:
    """Do a step. Raises Refused."""
    with suppress(AlreadyThere):
        async with asyncio.timeout(60):
            await step()


async def persist(step: Callable[[], Awaitable[None]]) -> None:
    """Do a step until it succeeds: there is room."""
    async with asyncio.timeout(60):
        while True:
            with suppress(Refused):
                return await attempt(step)
            await asyncio.sleep(0)


class Fault:
    """Refuses operations from the one numbered `first` on, until it is `over`."""

    def __init__(self, first: int, kinds: set[str], code: int) -> None:
        self.over = False
        self.struck = False
        self.count = 0
        self._first = first
        self._kinds = kinds
        self.code = code

    def __call__(self, kind: str, path: str) -> int:
        self.count += 1
        if self.over or self.count <= self._first or kind not in self._kinds:
            return 0
        self.struck = True
        return self.code


async def survive(tools: Any, where: Path, fault: Fault, *, goes_on: bool) -> None:
    """Do the work on a disk with a fault; then the power fails, and all acknowledged data is there.

    `goes_on`: the fault passes when something was refused, and the same broker goes on; otherwise it
    passes when the broker is restarted. A file system that became read-only is repaired while it is
    unmounted: what was not on disk is gone then, as after a power loss, so the work ends there.
    """
    root, left = where / "root", where / "left"
    root.mkdir(parents=True)
    left.mkdir()
    with Disk(root) as disk:
        disk.refuse(fault)
        work = Work(tools.history(disk))
        steps = work.steps
        while steps:
            try:
                async with tools.broker(root, "always") as broker:
                    work.broker, work.client = broker, await tools.connect(broker)
                    while steps:
                        try:
                            await attempt(steps[0])
                        except Refused:
                            assert fault.struck, "a step was refused though the disk was in order"
                            if not goes_on:
                                break
                            fault.over = True
                            await persist(steps[0])
                        del steps[0]
                    if fault.struck:
                        fault.over = True
            except BrokerError:
                if not fault.struck:
                    raise
                fault.over = True
            if fault.struck and fault.code == errno.EROFS:
                break
        write_tree(survivors(disk.journal, disk.now, disk.base, NOTHING), left)
    await tools.audit(left, work.history, disk.now, durable=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "code", "goes_on"),
    [
        pytest.param({"write", "make"}, errno.ENOSPC, True, id="full"),
        pytest.param(FILES - {"sync"}, errno.ENOSPC, False, id="full, and nothing can be undone"),
        pytest.param({"write"}, errno.EIO, True, id="writes fail"),
        pytest.param({"sync"}, errno.EIO, False, id="syncs fail"),
        pytest.param({"read"}, errno.EIO, True, id="reads fail"),
        pytest.param(FILES, errno.EROFS, False, id="became read-only"),
    ],
)
async def test_a_disk_that_fails_at_any_operation_loses_nothing_that_was_acknowledged(
    tools: Any, tmp_path: Path, moments: Moments, kinds: set[str], code: int, goes_on: bool
) -> None:
    none = Fault(0, set(), 0)
    await survive(tools, tmp_path / "none", none, goes_on=True)
    for first in moments(none.count, 41):
        try:
            await survive(tools, tmp_path / f"{first}", Fault(first, kinds, code), goes_on=goes_on)
        except Exception as error:
            error.add_note(f"the disk failed from operation {first} on")
            raise


async def test_a_read_that_fails_costs_one_partition_one_answer(tools: Any, root: Path) -> None:
    """It keeps no buffer: a few would be all there are."""
    failing = ""
    with Disk(root) as disk:
        disk.refuse(lambda kind, path: errno.EIO if kind == "read" and failing in path else 0)
        failing = "no such file"
        async with tools.broker(
            root, "os", fetch_max_bytes=MIB, response_memory_bytes=4 * MIB
        ) as broker:
            client = await tools.connect(broker)
            await broker.topics.create("t", partitions=2)
            for index in range(2):
                batch = build_batch([NewRecord(None, b"v", (), NOW_MS)])
                data = {"index": index, "records": bytes(batch)}
                topics = [{"name": "t", "partition_data": [data]}]
                await client.call(PRODUCE, 9, acks=-1, topic_data=topics)

            async def fetch() -> list[ErrorCode]:
                wanted = [
                    {"partition": index, "fetch_offset": 0, "partition_max_bytes": MIB}
                    for index in range(2)
                ]
                answer = await client.call(
                    FETCH, 11, max_bytes=MIB, topics=[{"topic": "t", "partitions": wanted}]
                )
                return [each.error_code for each in answer.responses[0].partitions]

            async def list_offsets() -> list[ErrorCode]:
                wanted = [{"partition_index": index, "timestamp": 0} for index in range(2)]
                answer = await client.call(
                    LIST_OFFSETS, 7, topics=[{"name": "t", "partitions": wanted}]
                )
                return [each.error_code for each in answer.topics[0].partitions]

            async with asyncio.timeout(60):
                for _ in range(10):
                    failing = "/1/"
                    assert await fetch() == [OK, ErrorCode.kafka_storage_error]
                    assert await list_offsets() == [OK, ErrorCode.kafka_storage_error]
                    failing = "no such file"
                    assert await fetch() == await list_offsets() == [OK, OK]
            await client.close()
