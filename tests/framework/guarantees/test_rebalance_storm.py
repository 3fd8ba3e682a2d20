"""Workers join and leave one group, over and over, while records flow through a real broker."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.broker.client import BatchProducer
from kmr.mapping.functions import map_batch
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker

if TYPE_CHECKING:
    import pyarrow as pa
    from anyio.abc import TaskGroup

    from kmr.testing import StartBroker

CHANGES = 24
PARTITIONS = 6
CHUNK = 500


@map_batch
def locate(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["partition", "offset", "kmr_offset"])


class Group:
    """The members of one group, all writing into one journal."""

    def __init__(self, bootstrap_servers: str, journal: Journal, tasks: TaskGroup) -> None:
        self._settings = Settings(
            topics=("storm",),
            group="g",
            bootstrap_servers=bootstrap_servers,
            heartbeat_interval=0.05,
            session_timeout=6.0,
            commit_interval=0.1,
        )
        self._strategy = Strategy(locate, [MemoryWriter(journal, max_rows=300, max_age=0.05)])
        self._tasks = tasks
        self.assignments = 0
        self._members: list[tuple[Worker, anyio.Event]] = []

    async def join(self) -> None:
        """A new member joins; returns when it has its share."""
        worker, ended = Worker(self._strategy, self._settings), anyio.Event()
        self._members.append((worker, ended))

        async def run() -> None:
            await worker.run()
            self.assignments += int(worker.metrics.rebalances.labels("assigned")._value.get())
            ended.set()

        self._tasks.start_soon(run)
        await worker.ready()

    async def leave(self) -> None:
        """The oldest member drains and leaves."""
        worker, ended = self._members.pop(0)
        worker.shutdown("leaves")
        await ended.wait()

    def __len__(self) -> int:
        return len(self._members)


@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_while_members_come_and_go(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker()
    await broker.topics.create("storm", partitions=PARTITIONS)
    journal = Journal()
    produced = 0
    calm, all_sent = anyio.Event(), anyio.Event()

    async def produce() -> None:
        nonlocal produced
        async with BatchProducer(broker.bootstrap_servers, "storm", linger=0.001) as producer:
            while not calm.is_set():
                await producer.send([b"x"] * CHUNK)
                await producer.flush()
                produced += CHUNK
                behind = produced - 20 * CHUNK
                await journal.until(lambda j, behind=behind: j.count > behind)  # type: ignore[misc]
        all_sent.set()

    async with anyio.create_task_group() as tasks:
        group = Group(broker.bootstrap_servers, journal, tasks)
        await group.join()
        tasks.start_soon(produce)
        for change in range(CHANGES):
            before = journal.count
            if len(group) == 4 or (len(group) > 1 and change % 3 == 0):
                await group.leave()
            else:
                await group.join()
            await journal.until(lambda j, before=before: j.count >= before + 3 * CHUNK)  # type: ignore[misc]
        calm.set()
        await all_sent.wait()
        await journal.until(lambda j: j.count >= produced)
        while len(group):
            await group.leave()

    assert group.assignments >= CHANGES, "every change made the group share its partitions anew"
    delivered = Counter((row["partition"], row["offset"]) for row in journal.rows())
    assert sum(delivered.values()) - len(delivered) == 0, "doubled"
    assert len(delivered) == produced, "missing"
