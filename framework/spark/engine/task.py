"""The work of one task: read a range, map it, reduce it, and report to the driver.

A process runs many tasks, one after the other, and keeps its reducers open in between. `warm_up` starts
the processes of a local master before the first task needs them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import structlog
from pyspark import TaskContext, cloudpickle

from ...delivery.failures import failed_records
from ...delivery.ranges import subtract_ranges
from ...errors import KmrError
from ...formats import batch_decoder
from ...mapping.branching import join
from ...mapping.functions import apply, apply_async
from ...mapping.resources import OpenResources, OpenTables, tables_of
from ...memory.distinct import STAGE as DISTINCT_STAGE
from ...record import Range, Rows
from ...reducers.pauses import Pauses
from ...service.process import freeze_modules, keep_freed_memory
from ...service.threads import background_loop
from ...strategy import MAP_STAGE
from ...values.registry.registry import REGISTRY_IS_AWAY, RegistryUnavailable
from ..blocking_client import shared_client
from ..session import is_local
from .chain import Chain, ChainResult
from .chunks import cut_chunks
from .placement import place_reducers
from .report import TaskReport, failure_rows, gathered_rows, report_row
from .task_memory import TaskMemory, memory_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ...mapping.functions import MapSpec
    from ...mapping.results import Failure, MapResult
    from ...record import Batch
    from ...reducers.reducer import Context
    from ...strategy import Strategy
    from ..source_settings import ClientConfig
    from .chunks import Chunk
    from .strategy_source import TaskPlan

_log = structlog.get_logger(__name__)

_WARM_UP = "kmr-warm-up"
_CATCH_UP_TIMEOUT = 60.0  # seconds; then Spark runs the task again
_START_TIMEOUT = 60.0  # seconds; without a broker or a JVM it fails sooner
_NUMBER = "streaming.sql.batchId"  # Spark's name for the number of the micro-batch


class _OpenPlan(NamedTuple):
    """A strategy with the opened reducers of its tasks.

    Attributes:
        resources: those of the maps, open.
        tables: the look-up tables, which this process follows also between tasks.
        gathers: the driver has reducers, so the rows of the chain go there.
    """

    strategy: Strategy
    resources: OpenResources | None
    tables: OpenTables | None
    chain: Chain
    gathers: bool

    def catch_up(self) -> None:
        """Bring the look-up tables to the present ends of their topics. Raises KmrError, TimeoutError."""
        if self.tables is not None:
            _start(self.tables.tables.catch_up()).result(_CATCH_UP_TIMEOUT)

    def map_of(self, chunk: Chunk) -> tuple[Callable[..., Any] | None, MapSpec]:
        """Return the map of a chunk, with its resources and tables, and how it is called.

        Raises:
            KmrError: the strategy has no map of the topic, or a table cannot be followed any more.
        """
        part = self.strategy.of_topic(chunk.batches[0].topic)
        function = part.map
        if self.tables is not None:
            for batch in chunk.batches:
                _start(self.tables.tables.wait_for_all(batch)).result()
        for each in (self.tables, self.resources):
            if each is not None and function is not None:
                function = each.bind(function)
        return function, part.map_spec


_open_plans: dict[bytes, _OpenPlan] = {}
"""The plan of the tasks of this process, which runs one task at a time."""


def _open_plan(given: TaskPlan) -> _OpenPlan:
    """Open a plan's reducers, resources and tables; the next tasks of this process use them too."""
    payload = given.payload
    if payload in _open_plans:
        return _open_plans[payload]
    _close_plan()
    keep_freed_memory()
    strategy, context = cloudpickle.loads(payload)
    placement = place_reducers(strategy.stages)
    chain = Chain(placement.tasks)
    _start(_open_chain(chain, context)).result()
    resources: OpenResources | None = None
    if strategy.resources is not None:
        # Spark kills its processes: they are closed only for the tasks of another plan, or after an error.
        resources = OpenResources(strategy.resources)
        _start(resources.open()).result()
    tables: OpenTables | None = None
    if strategy.tables:
        tables = OpenTables(tables_of(strategy, given.connection))
        _start(tables.open()).result()
    plan = _OpenPlan(strategy, resources, tables, chain, bool(placement.driver))
    _open_plans[payload] = plan
    for part in strategy.parts:
        part.map_spec.inputs.warm_up()
    batch_decoder.warm_up()
    freeze_modules()  # Spark collects garbage after every task too
    return plan


def _close_plan() -> None:
    """Begin to close the open plan. The task does not wait, because a sink may hang."""
    while _open_plans:
        _, plan = _open_plans.popitem()
        _start(plan.chain.close())
        for each in (plan.tables, plan.resources):
            if each is not None:
                _start(each.close())


async def _open_chain(chain: Chain, context: Context) -> None:
    try:
        await chain.open(context)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await chain.close()
        raise


def _start(coroutine: Any) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(coroutine, background_loop())


def _is_replayed(plan: TaskPlan) -> bool:
    """Return whether an earlier attempt, of this query or of one before it, may have written the rows."""
    task = TaskContext.get()
    if task is None:  # not inside Spark
        return False
    number = task.getLocalProperty(_NUMBER)
    return number is None or int(number) <= plan.logged or task.attemptNumber() > 0


def run_task(
    plan: TaskPlan,
    wanted: Range,
    batches: Iterator[Batch],
    schema: pa.Schema,
    idle: tuple[int, int] = (0, 0),
) -> Iterator[pa.RecordBatch]:
    """Map and reduce the batches of one range; yield the rows for the driver.

    These are failed records, rows for the driver's reducers, and last a report. One chunk is written while
    the next one is read and mapped. The report carries a KmrError, which only the user can fix; any other
    exception goes to Spark, which runs the task again.

    Args:
        wanted: without offsets, the task only closes windows of a partition that is idle.
        idle: microseconds without a record, before the task and after it.
    """
    report = TaskReport(wanted.topic, wanted.partition, wanted.first, wanted.first - 1)
    replayed = _is_replayed(plan)
    try:
        opened = _open_plan(plan)
        opened.catch_up()
        memory = None
        if plan.checkpoint is not None:
            files = memory_files(opened.strategy, plan.checkpoint)
            memory = TaskMemory(opened.strategy, files, wanted, idle, plan.memory_bytes)
        work = _TaskWork(report, schema, memory)
        chain, gathers = opened.chain, opened.gathers
        writing: Future[ChainResult] | None = None
        try:
            for chunk in cut_chunks(batches):
                rows, failed = work.map(*opened.map_of(chunk), chunk)
                if writing is not None:
                    yield from work.take_result(writing.result(), gathers=gathers)
                    writing = None
                if rows is not None:
                    windows = None if memory is None else memory.windows
                    writing = _start(
                        chain.deliver([rows], chunk.end, replayed=replayed, windows=windows)
                    )
                for failures in failed:
                    yield from failure_rows(failures, schema)
            if writing is not None:
                yield from work.take_result(writing.result(), gathers=gathers)
                writing = None
            if memory is not None and memory.windows is not None and idle[1]:
                rows = memory.windows.close_idle(idle[1])
                if rows is not None:
                    writing = _start(chain.deliver([rows], "trigger", replayed=replayed))
                    yield from work.take_result(writing.result(), gathers=gathers)
            work.end()
        except BaseException:
            if writing is not None:
                writing.cancel()
            _close_plan()
            raise
    except KmrError as caught:
        report.error = (type(caught).__name__, str(caught))
    yield report_row(report, schema)


class _TaskWork:
    """Fills the report of a task.

    Args:
        schema: the rows for the driver.
        memory: what the strategy remembers of the partition; None if it remembers nothing.
    """

    def __init__(self, report: TaskReport, schema: pa.Schema, memory: TaskMemory | None) -> None:
        self._report = report
        self._schema = schema
        self._memory = memory
        self._registry = Pauses(MAP_STAGE, REGISTRY_IS_AWAY)

    def map(
        self, function: Callable[..., Any] | None, spec: MapSpec, chunk: Chunk
    ) -> tuple[Rows | None, list[Rows]]:
        """Map a chunk; return its rows in one piece, and the records that the map failed on."""
        report = self._report
        report.last = chunk.last
        parts = []
        letters: dict[Batch, tuple[Failure, ...]] = {}
        for batch in chunk.batches:
            begun = time.monotonic()
            part = self._apply(function, spec, batch)
            report.map_seconds += time.monotonic() - begun
            report.records += len(batch.records)
            report.max_timestamp_ms = max(report.max_timestamp_ms, batch.max_timestamp_ms)
            report.map_retries += part.retries
            if self._memory is not None:
                part, letters[batch] = self._memory.distinguish(batch, part)
            parts.append(part)
        mapped = join(parts)
        failed = []
        for batch in chunk.batches:
            begin, end = (
                bisect_left(mapped.failures, (offset,)) for offset in (batch.first, batch.last + 1)
            )
            if begin < end:
                failures = mapped.failures[begin:end]
                failed.append(failed_records(batch, failures, MAP_STAGE, 0))
            if found := letters.get(batch):
                failed.append(failed_records(batch, found, DISTINCT_STAGE, 0))
        if mapped.table is None:
            return None, failed
        whole = Range(report.topic, report.partition, chunk.first, chunk.last)
        ranges = subtract_ranges([whole], (r for rows in failed for r in rows.ranges))
        return Rows(mapped.table, ranges, mapped.offsets, chunk.batches), failed

    def _apply(self, function: Callable[..., Any] | None, spec: MapSpec, batch: Batch) -> MapResult:
        """Map a batch; where a schema registry does not answer, wait for it."""
        while True:
            try:
                if spec.is_async and function is not None:
                    mapped: MapResult = _start(apply_async(function, batch.records, spec)).result()
                    return mapped
                return apply(function, batch.records, spec)
            except RegistryUnavailable as error:
                time.sleep(self._registry.next(str(error), time.monotonic()))

    def end(self) -> None:
        """Write the memory for the next micro-batch; the sinks have all rows of this task."""
        if (memory := self._memory) is not None:
            memory.require_room()
            memory.save()
            self._report.distinct = dict(memory.counts)
            if memory.windows is not None:
                self._report.late = dict(memory.windows.late)

    def take_result(self, result: ChainResult, *, gathers: bool) -> Iterator[pa.RecordBatch]:
        """Count what the reducers did with a chunk; yield the rows for the driver."""
        if self._memory is not None:
            self._memory.require_room()
        report = self._report
        report.flushes += result.flushes
        report.retries = dict(Counter(report.retries) + result.retries)
        for rows in result.failed:
            yield from failure_rows(rows, self._schema)
        for rows in result.out if gathers else ():
            yield from gathered_rows(rows, self._schema)


def warm_up(session: SparkSession, plan: TaskPlan, config: ClientConfig) -> Callable[[], None]:
    """Start the processes of a local master's tasks in a thread; return at once.

    To plan a query, Spark starts several Python processes, one after the other. Meanwhile the processes of
    its tasks import the strategy, load compiled code and connect, which takes longer than a small
    micro-batch. Errors are ignored: the query's tasks meet them too.

    Returns:
        A function to call before the session stops: it waits until the processes have started. Spark would
        print their end as a crash, and so it does if the job is cancelled while it begins.
    """
    context = session.sparkContext
    if not is_local(context.master):
        return lambda: None
    slots = context.defaultParallelism

    def run() -> None:
        try:
            # A DataFrame, because Spark keeps other processes for RDDs.
            rows = session.range(0, slots, 1, slots)
            rows.mapInArrow(partial(_prepare, plan, config), rows.schema).collect()
        except Exception as error:  # noqa: BLE001  the query's tasks report it
            _log.debug("the tasks' processes could not be prepared", error=str(error))

    thread = threading.Thread(target=run, name=_WARM_UP, daemon=True)
    thread.start()
    return partial(thread.join, _START_TIMEOUT)


def _prepare(
    plan: TaskPlan, config: ClientConfig, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # Spark would print an error with its stack trace.
    with suppress(Exception):
        _open_plan(plan)
        shared_client(config).partitions()
    yield from rows  # all of them: Spark ends a process that has not read its input
