"""A worker with a consumer in memory, for tests."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import msgspec

from kmr.mapping.functions import map_record
from kmr.observe.status import WorkerSummary
from kmr.record import Record, TopicPartition
from kmr.settings import Settings
from kmr.testing import Journal, MemoryConsumer, batch_of
from kmr.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.observe.metrics import Metrics
    from kmr.strategy import Strategy


P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@map_record
def locate(record: Record) -> dict[str, int] | None:
    """Map a record to one row; `poison` fails, `skip` is filtered."""
    if record.value == b"poison":
        raise ValueError("poisoned")
    return None if record.value == b"skip" else {"p": record.partition, "o": record.offset}


@asynccontextmanager
async def running(
    strategy: Strategy, consumer: MemoryConsumer, *, metrics: Metrics | None = None, **settings: Any
) -> AsyncIterator[Worker]:
    """Run a worker until the end of the block, and drain it."""
    base: dict[str, Any] = {"topics": ("t",), "group": "g", "executor": "inline"}
    worker = Worker(strategy, Settings(**(base | settings)), consumer=consumer, metrics=metrics)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        yield worker
        worker.shutdown("the test is over")


async def until_mapped(worker: Worker, records: int) -> None:
    """Return when so many records were taken in, and all of them are mapped: a drain drops others."""
    while worker.status().consumed < records or not maps_are_idle(worker):
        await anyio.lowlevel.checkpoint()


async def until_settled(worker: Worker, partition: TopicPartition, offset: int) -> None:
    """Return when everything below an offset is settled, or the partition is dropped."""
    ledgers = worker.pipeline.ledgers
    await ledgers.wait_until(
        lambda: (ledger := ledgers.get(partition)) is None or (ledger.watermark or 0) >= offset
    )


def maps_are_idle(worker: Worker) -> bool:
    maps = [stage for stage in worker.status().stages if stage.name.startswith("map ")]
    return all(stage.activity == "idle" for stage in maps)


def put(consumer: MemoryConsumer, partition: int, first: int, *values: bytes) -> None:
    consumer.put(batch_of("t", partition, first, values))


def committed(consumer: MemoryConsumer) -> dict[TopicPartition, int]:
    """Return the last committed offset of each partition."""
    return {
        partition: offset for commit in consumer.commits for partition, offset in commit.items()
    }


def written(journal: Journal, partition: int) -> list[int]:
    return [row["o"] for row in journal.rows() if row["p"] == partition]


def summary_of(index: int = 1, **fields: Any) -> WorkerSummary:
    """The summary of a worker among several."""
    usual = WorkerSummary(
        index=index,
        pid=7,
        state="running",
        live=True,
        ready=True,
        problem=None,
        restarts=2,
        partitions=3,
        consumed=1_000,
        settled=999,
        inflight_bytes=2048,
        uptime=60.0,
    )
    return msgspec.structs.replace(usual, **fields)
