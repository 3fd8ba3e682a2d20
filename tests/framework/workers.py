"""A whole worker on a consumer in memory, which the tests feed and look at."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from framework.mapper import map_record
from framework.record import Record, TopicPartition
from framework.settings import Settings
from framework.testing import Journal, MemoryConsumer, batch_of
from framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from framework.strategy import Strategy


P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@map_record
def locate(record: Record) -> dict[str, int] | None:
    """One row a record; `poison` fails, `skip` is filtered."""
    if record.value == b"poison":
        raise ValueError("poisoned")
    return None if record.value == b"skip" else {"p": record.partition, "o": record.offset}


@asynccontextmanager
async def running(
    strategy: Strategy, consumer: MemoryConsumer, **settings: Any
) -> AsyncIterator[Worker]:
    """A worker that runs until the end of the block, and is then drained."""
    base: dict[str, Any] = {"topics": ("t",), "group": "g", "executor": "inline"}
    worker = Worker(strategy, Settings(**(base | settings)), consumer=consumer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        yield worker
        worker.shutdown("the test is over")


def put(consumer: MemoryConsumer, partition: int, first: int, *values: bytes) -> None:
    consumer.put(batch_of("t", partition, first, values))


def committed(consumer: MemoryConsumer) -> dict[TopicPartition, int]:
    """What the group would go on from; a start that was committed as such is 0."""
    return {
        partition: offset for commit in consumer.commits for partition, offset in commit.items()
    }


def written(journal: Journal, partition: int) -> list[int]:
    return [row["o"] for row in journal.rows() if row["p"] == partition]
