"""What a task of the Spark engine does: read a range, map it, write it, and report."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from framework.decode import decoder
from framework.errors import KmrError
from framework.failures import failed_records
from framework.mapper import apply, apply_async
from framework.memory import freeze_modules, keep_freed_memory
from framework.ranges import subtract_ranges
from framework.record import Range, Rows
from framework.spark.chain import Chain, Outcome
from framework.spark.chunks import cut_chunks
from framework.spark.client import client_of, event_loop
from framework.spark.division import divide_reducers
from framework.spark.report import TaskReport, failure_rows, gathered_rows, report_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from framework.record import Batch
    from framework.reducer import Context
    from framework.spark.chain import Flush
    from framework.spark.chunks import Chunk
    from framework.spark.offsets import OffsetRange
    from framework.spark.plan import TaskPlan
    from framework.spark.properties import ClientConfig
    from framework.strategy import Strategy

__all__ = ["MAP_STAGE", "prepare", "run_task"]

MAP_STAGE = "map"


def prepare(plan: TaskPlan, config: ClientConfig | None) -> None:
    """What the first task of a process does before its first record. Raises what a task would."""
    _open_plan(plan.payload)
    decoder.warm_up()
    if config is not None:
        client_of(config).partitions()


class _Opened(NamedTuple):
    """A strategy as tasks run it: its map, and those of its reducers that are for tasks.

    Attributes:
        gathers: whether what comes out of the reducers is for the driver.
    """

    strategy: Strategy
    chain: Chain
    gathers: bool


@lru_cache(maxsize=1)
def _open_plan(payload: bytes) -> _Opened:
    """Opened reducers: kept for the tasks that this process runs after this one."""
    keep_freed_memory()
    strategy, context = cloudpickle.loads(payload)
    division = divide_reducers(strategy.reduce)
    chain = Chain(division.tasks)
    _wait(_start(_opened(chain, context)))
    freeze_modules()  # Spark collects garbage after every task too
    return _Opened(strategy, chain, bool(division.driver))


async def _opened(chain: Chain, context: Context) -> None:
    try:
        await chain.open(context)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await chain.close()
        raise


def _start(coroutine: Any) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop())


def _wait(future: Future[Any]) -> Any:
    return future.result()


def run_task(
    plan: TaskPlan, wanted: OffsetRange, batches: Iterator[Batch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Map and reduce the batches of one range; yields the rows for the driver.

    These are failures, rows for the driver's reducers, and at last a report. While one chunk is being
    written, the next one is read and mapped. An error that only the user can mend is in the report; any
    other exception is left to Spark, which tries again elsewhere.
    """
    begun = time.monotonic()
    work = _Work(schema)
    error: tuple[str, str] | None = None
    try:
        strategy, chain, gathers = _open_plan(plan.payload)
        writing: Future[Outcome] | None = None
        try:
            for chunk in cut_chunks(batches):
                rows, failed = work.map(strategy, chunk)
                if writing is not None:
                    yield from work.written(_wait(writing), gathers=gathers)
                    writing = None
                if rows is not None:
                    writing = _start(chain.deliver([rows], chunk.end))
                for failures in failed:
                    yield from failure_rows(failures, schema)
            if writing is not None:
                yield from work.written(_wait(writing), gathers=gathers)
        except BaseException:
            if writing is not None:
                writing.cancel()
            _open_plan.cache_clear()
            _start(chain.close())
            raise
    except KmrError as caught:
        error = (type(caught).__name__, str(caught))
    yield report_row(work.report(wanted, time.monotonic() - begun, error), schema)


class _Work:
    """What a task has done so far.

    Args:
        schema: of the rows for the driver.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.last: int | None = None
        self.records = 0
        self.rows = 0
        self.newest = -1
        self.map_seconds = 0.0
        self.failed: Counter[str] = Counter()
        self.flushes: list[Flush] = []
        self.retries: Counter[str] = Counter()

    def map(self, strategy: Strategy, chunk: Chunk) -> tuple[Rows | None, list[Rows]]:
        """The rows of a chunk, all together, and the records that the map failed on."""
        spec = strategy.map_spec
        self.last = chunk.last
        tables, offsets, failed = [], [], []
        for batch in chunk.batches:
            begun = time.monotonic()
            if spec.is_async:
                mapped = _wait(_start(apply_async(strategy.map, batch.records)))
            else:
                mapped = apply(strategy.map, batch.records)
            self.map_seconds += time.monotonic() - begun
            self.records += len(batch.records)
            self.newest = max(self.newest, batch.max_timestamp_ms)
            if mapped.failures:
                failed.append(failed_records(batch, mapped.failures, MAP_STAGE, 0))
                self.failed[MAP_STAGE] += len(mapped.failures)
            if mapped.table is not None:
                tables.append(mapped.table)
                offsets.append(mapped.offsets)
        if not tables:
            return None, failed
        head = chunk.batches[0]
        whole = Range(head.topic, head.partition, chunk.first, chunk.last)
        ranges = subtract_ranges([whole], (r for rows in failed for r in rows.ranges))
        table = pa.concat_tables(tables, promote_options="permissive")
        self.rows += table.num_rows
        return Rows(table, ranges, np.concatenate(offsets), chunk.batches), failed

    def written(self, outcome: Outcome, *, gathers: bool) -> Iterator[pa.RecordBatch]:
        """Take note of a chunk that went through the reducers; yields what the driver is to have of it."""
        self.flushes += outcome.flushes
        self.retries += outcome.retries
        for rows in outcome.failed:
            self.failed[rows.table.column("stage")[0].as_py()] += len(rows)
            yield from failure_rows(rows, self._schema)
        for rows in outcome.out if gathers else ():
            yield from gathered_rows(rows, self._schema)

    def report(
        self, wanted: OffsetRange, seconds: float, error: tuple[str, str] | None
    ) -> TaskReport:
        """All of it."""
        return TaskReport(
            topic=wanted.topic,
            partition=wanted.partition,
            first=wanted.first,
            last=wanted.first - 1 if self.last is None else self.last,
            records=self.records,
            rows=self.rows,
            failed=dict(self.failed),
            flushes=self.flushes,
            retries=dict(self.retries),
            max_timestamp_ms=self.newest,
            seconds=seconds,
            map_seconds=self.map_seconds,
            error=error,
        )
