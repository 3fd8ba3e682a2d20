"""A record that is larger than everything, and a partition that has far more records than the others."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kmr.broker.client import BatchProducer
from kmr.mapping.functions import map_batch, map_record
from kmr.record import Record  # noqa: TC001
from kmr.reducers.reducer import Reducer
from kmr.settings import FetchSettings, Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker

from ..workers import until_mapped

if TYPE_CHECKING:
    import pyarrow as pa

    from kmr.broker import Broker
    from kmr.record import Rows
    from kmr.testing import StartBroker

MIB = 1024 * 1024
AFTER_ALL = 120  # seconds; nothing here takes so long


@map_record
def measure(record: Record) -> dict[str, Any]:
    return {"o": record.offset, "size": len(record.value or b""), "value": record.value}


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_a_record_larger_than_every_limit_passes_alone(
    start_broker: StartBroker, delivery: Any
) -> None:
    broker = await start_broker(message_max_bytes=8 * MIB, fetch_max_bytes=1024)
    sizes = [10, 10, 3 * MIB, 10, 5 * MIB, 10]
    journal = Journal()
    writer = MemoryWriter(journal, max_rows=1000, max_bytes=100, max_age=None)
    settings = Settings(
        topics=("t",),
        group="g",
        bootstrap_servers=broker.bootstrap_servers,
        inflight_bytes=1024,
        queue_batches=1,
        fetch=FetchSettings(max_partition_bytes=1024, max_bytes=1024),
    )
    worker = Worker(Strategy(measure, [writer], delivery=delivery), settings)
    with anyio.fail_after(AFTER_ALL):
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, max_request_size=8 * MIB
        ) as producer:
            for size in sizes:
                await producer.send_and_wait("t", b"x" * size)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await journal.until(lambda j: j.count >= 5)  # the last one waits for more of its size
            assert worker.status().live
            await until_mapped(worker, len(sizes))
            worker.shutdown("done")
    assert [(row["o"], row["size"]) for row in journal.rows()] == list(enumerate(sizes))


BACKLOG, LIVE = 200_000, 20


@map_batch
def locate(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["partition", "offset", "kmr_offset"])


class Order(Reducer):
    """Notes how many rows of the backlog had been written when each live one was."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.shared: dict[str, Any] = {"backlog": 0, "live": [], "changed": anyio.Event()}
        self.reset()

    def __deepcopy__(self, memo: object) -> Self:
        return copy.copy(self)

    def add(self, rows: Rows) -> None:
        self._added.append(rows)

    def reset(self) -> None:
        self._added: list[Rows] = []

    async def flush(self) -> None:
        shared = self.shared
        for rows in self._added:
            live = rows.table.column("partition").to_pylist().count(1)
            shared["backlog"] += len(rows) - live
            shared["live"] += [shared["backlog"]] * live
        shared["changed"].set()
        shared["changed"] = anyio.Event()


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("inflight", [MIB, 128 * MIB])
async def test_a_partition_with_a_long_backlog_does_not_hold_up_a_live_one(
    broker: Broker, delivery: Any, inflight: int
) -> None:
    """A live record overtakes the backlog, except for batches that are in flight already."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic("t", 2, 1)])
    await admin.close()
    sink = Order(max_rows=2_000, max_age=0.01)
    settings = Settings(
        topics=("t",),
        group="g",
        bootstrap_servers=broker.bootstrap_servers,
        inflight_bytes=inflight,
        fetch=FetchSettings(max_partition_bytes=256 * 1024),
    )
    worker = Worker(Strategy(locate, [sink], delivery=delivery), settings)
    produced: list[int] = []
    with anyio.fail_after(AFTER_ALL):
        async with (
            BatchProducer(broker.bootstrap_servers, "t") as producer,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(BACKLOG // 2_000):
                await producer.send([b"x" * 100] * 2_000, partition=0)
            await producer.flush()
            tasks.start_soon(worker.run)
            for number in range(LIVE):
                while sink.shared["backlog"] < number * BACKLOG // (2 * LIVE):
                    await sink.shared["changed"].wait()
                await producer.send([b"live"], partition=1)
                await producer.flush()
                produced.append(sink.shared["backlog"])
            while sink.shared["backlog"] < BACKLOG or len(sink.shared["live"]) < LIVE:
                await sink.shared["changed"].wait()
            worker.shutdown("done")
    overtaken = [
        after - before for before, after in zip(produced, sink.shared["live"], strict=True)
    ]
    assert max(overtaken) <= BACKLOG // 4, overtaken
