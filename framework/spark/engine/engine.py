"""The Spark engine: one strategy as one query of Structured Streaming, until it is stopped.

Tasks fetch, map and write (`task.py`); the driver runs the reducers that need the whole micro-batch
(`driver.py`). `placement.py` divides the reducers between them, and lists what each sink guarantees.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import structlog
from anyio.from_thread import start_blocking_portal

from ...errors import ConsumerError, DeadlineExceeded, KmrError, SettingsError
from ...kafka.subscription import Subscription
from ...observe.metrics import Metrics
from ...observe.status import StageStatus, WorkerStatus
from ...parts import context_of
from ...record import SCHEMA
from ...service.deadline import Deadline
from ...service.process_end import ExitCode, ProcessEnd, exit_now
from ..blocking_client import shared_client
from ..offsets import read_offsets
from ..reader import read_records
from ..session import explain_error, is_slow_start, silence_spark
from ..shipping import ship_modules
from .checkpoint import (
    CheckpointGeneration,
    checkpoint_uri,
    keep_group,
    newest_logged,
    read_generation,
)
from .driver import DriverReducers
from .engine_settings import source_settings
from .progress import MicroBatchGate, ProgressListener, source_end
from .strategy_source import TaskPlan, strategy_source
from .task import warm_up
from .task_memory import memory_at_end, memory_files, remembers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ...observe.status import WorkerState
    from ...record import Range
    from ...settings import Settings
    from ...strategy import Strategy
    from ..source_settings import SourceBounds
    from .engine_settings import EngineSettings

_log = structlog.get_logger(__name__)

_FORMAT: Final = "kmr-strategy"
_MOST_STARTS: Final = 5


class _Stopping(Exception):
    """Refuses a micro-batch because the engine is stopping."""


class SparkEngine:
    """Runs a strategy on Spark. One micro-batch is one set of offset ranges, which the checkpoint logs.

    Calls: `run` once, which returns when the query has ended; `shutdown` and `status` from any thread.

    Args:
        strategy: the strategy.
        settings: a worker's settings, as far as they apply.
        engine: the settings that only Spark has.
        session: the session to run in; by default `run` opens one and stops it at its end.
        bounds: what a backfill reads, with the trigger `available-now`; None: everything.

    Raises:
        StrategyError: a stage writes to a topic that is read.

    Attributes:
        deadline: that of the end.
        health_url: the address of the health server while `run` runs; None without one.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        engine: EngineSettings,
        *,
        session: SparkSession | None = None,
        bounds: SourceBounds | None = None,
    ) -> None:
        self._subscription = Subscription(settings.topics, settings.topic_pattern)
        for topic in settings.topics:
            strategy.of_topic(topic)
        strategy.refuse_loop(self._subscription, settings.bootstrap_servers)
        if engine.min_partitions is not None and remembers(strategy):
            raise SettingsError(
                "--min-partitions: the strategy has Distinct or a Window, so each partition has one task, "
                "which reads its records in order; leave it out"
            )
        self._strategy = strategy
        self._settings = settings
        self._engine = engine
        self.metrics = Metrics()
        self.metrics.begin(
            settings.group, settings.strategy or "", strategy.stages, settings.topics
        )
        self._source = source_settings(settings, engine, bounds)
        self._given = session
        self._generation = CheckpointGeneration()
        self._context = context_of(strategy, settings).with_sinks(
            generations=self._generation, prepare=False, transactional_id="", session_timeout=None
        )
        self._reducers = DriverReducers(strategy, self._context, self.metrics, self._reread)
        self._gate = MicroBatchGate()
        self._query: StreamingQuery
        self._warm_ups = ExitStack()
        self._logged = -1
        self._memory: str | None = None
        self._stop = threading.Event()
        self._opened = False
        self._activity = "starting"
        self._failure: BaseException | None = None
        self._begun = time.monotonic()
        self.deadline = Deadline(settings.shutdown_deadline)
        self.health_url: str | None = None

    def shutdown(self) -> None:
        """Request a stop and return at once; `run` returns when it is done. May be called again."""
        self.deadline.begin()
        self._stop.set()

    def run(self) -> None:
        """Process until `shutdown`; with the trigger `available-now`, at most to the current end offsets.

        It returns within `shutdown_deadline` of `shutdown`, or of the query's end. What hangs is abandoned,
        in a daemon thread: a reducer, Spark, or its session.

        Raises:
            KmrError: the error that stopped it; complete micro-batches stay complete.
            DeadlineExceeded: it did not end within `shutdown_deadline`.
        """
        engine = threading.Thread(target=self._run, name="kmr engine", daemon=True)
        engine.start()
        try:
            self._stop.wait()
        finally:
            self.shutdown()
        if not self._opened:
            self._reducers.cancel()
        engine.join(max(0.0, self.deadline.end_at - time.monotonic()))
        if engine.is_alive():
            self._failure = self._failure or DeadlineExceeded(self.undone())
        if self._failure is not None:
            raise explain_error(self._failure)

    def undone(self) -> str:
        """Describe what the end has not finished, as a message; from any thread."""
        limit = f"within shutdown_deadline ({self.deadline.seconds:g} s)"
        if self._gate.busy_since is not None:
            return (
                f"micro-batch {self._gate.number} did not end {limit}: it is abandoned, and runs again "
                "from the checkpoint"
            )
        return f"not ended {limit}: {self._activity}; complete micro-batches stay complete"

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                self._work(stack)
        except CancelledError:
            pass  # stopped while the reducers opened
        except BaseException as error:  # noqa: BLE001  `run` raises it
            self._failure = self._failure or error
        finally:
            self.shutdown()

    def _work(self, stack: ExitStack) -> None:
        """Open everything, run the query until it ends or is stopped; the stack closes everything."""
        engine = self._engine
        # py4j logs every call, and errors that `run` raises anyway.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        listener = ProgressListener(self.metrics, self._gate)
        session = self._given
        if session is None:
            # Not in the main thread: there PySpark would take over SIGINT.
            self._activity = "opening Spark's session"
            session = engine.open_session(self._strategy)
            stack.callback(self._step, "stopping Spark's session", session.stop)
        if self._stop.is_set():
            return
        modules = stack.enter_context(TemporaryDirectory(prefix="kmr-modules-"))
        self._serve_health(stack)
        stack.callback(self._step, "closing the reducers", self._reducers.close)
        self._activity = "opening the reducers"
        self._reducers.open(session, prepare=self._settings.prepare_table)
        self._opened = True
        if self._stop.is_set():
            return
        keep_group(session, engine.checkpoint, self._settings.group)
        silence_spark(session)
        ship_modules(session, self._strategy, Path(modules))
        session.streams.addListener(listener)
        stack.callback(session.streams.removeListener, listener)
        stack.callback(self._step, "starting the tasks' processes", self._warm_ups.close)
        self._activity = "starting the query"
        self._query = self._start(session)
        watcher = threading.Thread(target=self._watch, args=[session], daemon=True)
        watcher.start()
        self._stop.wait()
        self._end()
        watcher.join()
        for progress in self._query.recentProgress:  # the listener gets the last ones later
            listener.observe(progress)
        self._commit_last(self._query)

    def _step(self, activity: str, function: Callable[[], object]) -> None:
        self._activity = activity
        function()

    def _serve_health(self, stack: ExitStack) -> None:
        """Serve the endpoints of a worker from a thread. Raises SettingsError if the port cannot be bound."""
        http = self._settings.http
        if http.port is not None:
            from ...observe.health import HealthServer  # takes time to import

            portal = stack.enter_context(start_blocking_portal())
            server = HealthServer.of_worker(http.host, http.port, self.status, self.metrics)
            self.health_url = stack.enter_context(portal.wrap_async_context_manager(server)).url

    def status(self) -> WorkerStatus:
        """Return the engine's state in the form of a worker's status."""
        since = self._gate.busy_since
        seconds = 0.0 if since is None else time.monotonic() - since
        stalled = seconds > self._settings.stall_timeout
        state: WorkerState = "running" if self._gate.number >= 0 else "starting"
        if self._failure is not None:
            state = "failed"
        elif self._stop.is_set():
            state = "draining"
        activity: Literal["flushing", "idle"] = "idle" if since is None else "flushing"
        name = f"micro-batch {self._gate.number}"
        return WorkerStatus(
            state=state,
            live=not stalled and state != "failed",
            ready=state == "running",
            problem=f"{name} runs for {seconds:.0f} s" if stalled else None,
            group=self._settings.group,
            topics=self._settings.topics or (str(self._subscription),),
            stages=(StageStatus(name=name, activity=activity, queued=0, seconds=seconds),),
            partitions=(),
            inflight_bytes=0,
            inflight_limit=0,
            consumed=self._reducers.consumed,
            settled=self._reducers.settled,
            uptime=time.monotonic() - self._begun,
            failed=self.metrics.done.failed,
            repeated=self.metrics.repeated,
            failures=self.metrics.failures.newest_first(),
        )

    def _start(self, session: SparkSession) -> StreamingQuery:
        checkpoint = self._engine.checkpoint
        bounds = self._source.bounds
        self._logged = newest_logged(session, checkpoint)
        if bounds is not None and bounds.is_begun and self._logged < 0:
            raise SettingsError(
                f"the checkpoint {checkpoint} is empty, but group {self._settings.group} has committed "
                "offsets of it: its progress is lost, and what it has written would be doubled. Restore it"
            )
        wanted = None if bounds is None else bounds.generation
        self._generation.value = read_generation(session, checkpoint, wanted)
        self._memory = self._begin_memory(session)
        plan = TaskPlan.of(
            self._strategy,
            self._context,
            logged=self._logged,
            checkpoint=self._memory,
            memory_bytes=self._settings.inflight_bytes,
            connection=self._source.client,
        )
        self._warm_ups.callback(warm_up(session, plan, self._source.client))
        try:
            writer: Any = self._frame(session, plan).writeStream.foreachBatch(self._micro_batch)
            writer = writer.queryName(self._engine.name).trigger(**self._engine.trigger_arguments())
            query: StreamingQuery = writer.option("checkpointLocation", checkpoint).start()
        except KmrError:
            raise
        except Exception as error:
            raise explain_error(error) from error
        return query

    def _begin_memory(self, session: SparkSession) -> str | None:
        """Make the directory of what the strategy remembers; return the checkpoint's URI, or None."""
        if not remembers(self._strategy):
            return None
        uri = checkpoint_uri(session, self._engine.checkpoint)
        memory_files(self._strategy, uri).begin()
        return uri

    def _frame(self, session: SparkSession, plan: TaskPlan) -> DataFrame:
        session.dataSource.register(strategy_source(_FORMAT, plan, self._source))
        return session.readStream.format(_FORMAT).load()

    def _micro_batch(self, frame: DataFrame, number: int) -> None:
        """Run a micro-batch by a single action: each further one would run the tasks again."""
        if not self._gate.begin(number):
            raise _Stopping
        try:
            begun, before = time.monotonic(), self._reducers.consumed
            self._reducers.settle(frame.toArrow(), replayed=number <= self._logged)
            self._slow_down(begun, self._reducers.consumed - before)
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _slow_down(self, begun: float, offsets: int) -> None:
        """Wait until a micro-batch has lasted as long as the rate says; a stop ends it."""
        if self._settings.rate is not None:
            self._stop.wait(max(0.0, begun + offsets / self._settings.rate - time.monotonic()))

    def _reread(self, wanted: Range) -> pa.RecordBatch:
        """Read the records of a range again, for the error sink."""
        try:
            batches = read_records(replace(self._source, fail_on_data_loss=True), wanted)
            table = pa.Table.from_batches([batch.records for batch in batches], SCHEMA)
        finally:
            shared_client(self._source.client).close()
        return table.combine_chunks().to_batches()[0]

    def _watch(self, session: SparkSession) -> None:
        starts = 1
        while (error := self._outcome()) is not None and not self._gate.stopping:
            if starts == _MOST_STARTS or not is_slow_start(error):
                self._failure = explain_error(error)
                break
            starts += 1
            _log.warning("a Python process took Spark too long to start: starting the query again")
            self._failure = None
            self._gate.end_query()
            try:
                self._query = self._start(session)
            except KmrError as failed:
                self._failure = failed
            if self._gate.stopping:
                self._query.stop()
        self._gate.end_query()
        self.shutdown()

    def _outcome(self) -> BaseException | None:
        """Wait until the query has ended; return its error, None without one."""
        try:
            self._query.awaitTermination()
        except Exception as error:  # noqa: BLE001  `run` raises it
            return self._failure or error
        return self._failure

    def _end(self) -> None:
        """Let the running micro-batch finish, unless `on_stop` is `abandon`; then stop the query."""
        self._gate.stop()
        if self._engine.on_stop == "finish" and not self._gate.wait_idle(self.deadline.drain_at):
            self._failure = self._failure or DeadlineExceeded(self.undone())
        failure = self._failure
        self._reducers.cancel()  # Spark waits for the running micro-batch without a limit
        self._activity = "stopping the query"
        if self._query.isActive:
            self._query.stop()
        self._failure = failure  # an error that the stop itself causes is no failure

    def _commit_last(self, query: StreamingQuery) -> None:
        """Commit the last micro-batch to the group: the source commits when it plans the next one."""
        last = query.lastProgress
        offsets = source_end(last) if last is not None else {}
        if not offsets:
            return
        client = shared_client(self._source.client)
        memory = self._memory
        at_end = None if memory is None else partial(memory_at_end, memory)
        try:
            entries = self._source.commits(read_offsets(offsets), at_end)
            client.commit(self._source.group, entries)
        except ConsumerError as error:
            _log.warning("group offsets not committed; the checkpoint has them", reason=str(error))
        finally:
            client.close()


def run_engine(
    strategy: Strategy,
    settings: Settings,
    engine: EngineSettings,
    bounds: SourceBounds | None = None,
) -> int:
    """Run the engine as a process: the first SIGTERM or SIGINT stops it, a second one ends the process.

    A `KmrError` is printed as one message on stderr. When `shutdown_deadline` has passed since the first
    signal or the query's end, the process ends, also if a part of it hangs. Its JVM ends with it.

    Returns:
        The exit code (`ExitCode`).
    """
    try:
        runner = SparkEngine(strategy, settings, engine, bounds=bounds)
        end = ProcessEnd(runner.deadline, lambda _: runner.shutdown(), runner.undone)
        end.arm()
        runner.run()
    except DeadlineExceeded as error:
        exit_now(ExitCode.DEADLINE_EXCEEDED, str(error))
    except KmrError as error:
        print(f"kmr: {error}", file=sys.stderr)  # noqa: T201  the user's message
        return ExitCode.FAILED
    return end.code
