"""Drives columns into a sink through a whole worker, and says what became of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa

from kmr import Strategy, map_batch
from kmr.errors import KmrError
from kmr.record import TopicPartition
from kmr.settings import Settings
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, batch_of
from kmr.worker import Worker

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from kmr.kafka.consumer import CommitOffset
    from kmr.reducers.reducer import Reducer

TOPIC = "t"
LOG: list[dict[str, Any]] = []
"""What workers have logged since the last one was started."""


@dataclass
class Outcome:
    """What became of the rows, by number of the row.

    Attributes:
        refused: the reason of each row that reached `reduce_err`, one entry for each time.
        ended: the error that ended the worker; None if it went through.
        hangs: the records were not settled in time.
        why: what was repeated then.
    """

    refused: dict[int, list[str]] = field(default_factory=dict)
    ended: BaseException | None = None
    hangs: bool = False
    why: str = ""


class Watched(MemoryConsumer):
    """Knows when `count` records are committed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.settled = anyio.Event()

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        await super().commit(offsets)
        if self.commits[-1].get(TopicPartition(TOPIC, 0), 0) >= self.count:
            self.settled.set()


async def drive(
    sink: Reducer, table: pa.Table, *, seconds: float = 60.0, errors: Reducer | None = None
) -> Outcome:
    """Run a worker whose map makes row n of `table` of record n; wait until all are settled, and end it."""
    return await run_worker(_rows_of(table), sink, table.num_rows, seconds=seconds, errors=errors)


def _rows_of(table: pa.Table) -> Any:
    @map_batch
    def make(batch: pa.RecordBatch) -> Any:
        first = batch.column("offset")[0].as_py()
        part = table.slice(first, len(batch))
        return part, pa.array(range(len(batch)), pa.int64())

    return make


async def run_worker(
    map_function: Any,
    sink: Reducer | list[Reducer],
    count: int,
    *,
    values: list[bytes | None] | None = None,
    seconds: float = 60.0,
    errors: Reducer | None = None,
    **options: Any,
) -> Outcome:
    journal, consumer, outcome = Journal(), Watched(count), Outcome()
    LOG.clear()
    consumer.put(batch_of(TOPIC, 0, 0, values if values is not None else [b"x"] * count))
    strategy = Strategy(
        map=map_function,
        reduce=sink if isinstance(sink, list) else [sink],
        reduce_err=errors or MemoryWriter(journal, max_age=0.02),
        **options,
    )
    settings = Settings(topics=(TOPIC,), group="torture", commit_interval=0.05)
    worker = Worker(strategy, settings, consumer=consumer)
    try:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await worker.run()
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            await consumer.started.wait()
            await consumer.rebalance([TopicPartition(TOPIC, 0)])
            with anyio.move_on_after(seconds):
                await consumer.settled.wait()
            outcome.hangs = not consumer.settled.is_set()
            if outcome.hangs:
                outcome.why = next((str(e["reason"]) for e in reversed(LOG) if "reason" in e), "")
                tasks.cancel_scope.cancel()
            else:
                worker.shutdown("done")
    except* Exception as group:  # noqa: BLE001  it is the outcome
        outcome.ended = _first(group)
    if not outcome.hangs and worker.failure is not None:
        outcome.ended = worker.failure
    for row in journal.rows():
        outcome.refused.setdefault(row["offset"], []).append(row["reason"])
    return outcome


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def judge(count: int, found: Counter[int], outcome: Outcome) -> list[tuple[str, Any]]:
    """The outcomes that must not be, each with its evidence: hangs, tracebacks, rows lost or twice."""
    if outcome.ended is not None:
        kind = "ended" if isinstance(outcome.ended, KmrError) else "traceback"
        return [(kind, f"{type(outcome.ended).__name__}: {outcome.ended}")]
    if outcome.hangs:
        return [("hangs", outcome.why)]
    wrong: list[tuple[str, Any]] = []
    for n in range(count):
        written, refused = found[n], len(outcome.refused.get(n, ()))
        if written + refused == 0:
            wrong.append(("lost", n))
        elif written and refused:
            wrong.append(("both written and refused", n))
        elif written > 1:
            wrong.append(("doubled", n))
    return wrong
