"""A reduce stage with its surroundings, for tests."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa

from kmr.delivery.error_limit import LimitWindow
from kmr.delivery.failures import ErrorPort
from kmr.delivery.ledger import Ledgers
from kmr.guarantees import AtLeastOnce
from kmr.intake.backpressure import Budget, Gate
from kmr.observe.metrics import Metrics
from kmr.parts import ReducePorts, SharedParts
from kmr.record import Range, ReplayEnd, Rows, TopicPartition
from kmr.reduce import ReduceStage
from kmr.reducers.reducer import Context
from kmr.testing import Journal, batch_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from kmr.reducers.reducer import Reducer


class Bench:
    """A reduce stage, its shared parts, and two partitions whose records are fed in."""

    def __init__(self, reducer: Reducer, *, last: bool = True) -> None:
        self.metrics = Metrics()
        self.ledgers = Ledgers()
        self.gate = Gate()
        self.gate.open()
        self.budget = Budget(1_000_000)
        send, receive = anyio.create_memory_object_stream[Rows | ReplayEnd](100)
        self.inbox: MemoryObjectSendStream[Rows | ReplayEnd] = send
        errors, self.failed = anyio.create_memory_object_stream[Rows](100)
        out: MemoryObjectSendStream[Any] | None = None
        self.out: MemoryObjectReceiveStream[Rows] | None = None
        if not last:
            out, self.out = anyio.create_memory_object_stream[Any](100)
        self.stage = ReduceStage(
            "reduce-1",
            reducer,
            ReducePorts(
                receive,
                out,
                ErrorPort(errors, LimitWindow(None), self.ledgers.settle, self.metrics),
            ),
            SharedParts(
                self.ledgers,
                self.gate,
                self.budget,
                self.metrics,
                on_failure=lambda _: None,
            ),
            AtLeastOnce(self.ledgers, self.gate),
        )
        self.assign(0)
        self.assign(1)

    def assign(self, partition: int) -> None:
        self.ledgers.open(TopicPartition("t", partition), 0)

    def watermark(self, partition: int = 0) -> int | None:
        ledger = self.ledgers.get(TopicPartition("t", partition))
        return None if ledger is None else ledger.watermark

    def feed(self, count: int, partition: int = 0, **columns: list[Any]) -> None:
        """Send the next `count` records of a partition, one row each, as one batch; columns may be added."""
        self.inbox.send_nowait(self.rows(count, partition, **columns))

    def rows(self, count: int, partition: int = 0, **columns: list[Any]) -> Rows:
        """Take in the next `count` records of a partition, and return their rows."""
        ledger = self.ledgers.get(TopicPartition("t", partition))
        assert ledger is not None
        assert ledger.position is not None
        batch = batch_of("t", partition, ledger.position, [b"x"] * count)
        ledger.take_in(batch)
        offsets = np.arange(batch.first, batch.last + 1)
        table = pa.table({"partition": [partition] * count, "offset": offsets, **columns})
        whole = Range("t", partition, batch.first, batch.last, ledger.generation)
        return Rows(table, (whole,), offsets, (batch,))

    def close(self) -> None:
        self.inbox.close()
        self.failed.close()
        if self.out is not None:
            self.out.close()


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[TaskGroup]:
    async with anyio.create_task_group() as tasks:
        await bench.stage.open(Context("g", "reduce-1"))
        tasks.start_soon(bench.stage.run)
        yield tasks
        bench.inbox.close()
    await bench.stage.close()
    bench.close()


def counts(journal: Journal) -> list[int]:
    return [table.num_rows for table in journal.written]
