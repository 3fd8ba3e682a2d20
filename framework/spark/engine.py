"""The Spark engine: one strategy as one query of Structured Streaming, until it is told to stop.

Tasks fetch, map and write (`framework.spark.task`); the driver runs the reducers that need the whole
micro-batch (`framework.spark.division`). What holds for each sink: `framework.spark.checks`.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import structlog

from framework.errors import ConsumerError, DeadlineExceeded, KmrError
from framework.kafka.clients import connection_config
from framework.record import SCHEMA
from framework.reducer import Context
from framework.spark.batches import Accounts
from framework.spark.client import client_of
from framework.spark.fetching import read_range
from framework.spark.fused import fused_source
from framework.spark.mapped import mapped_rows
from framework.spark.offsets import read_offsets
from framework.spark.options import SourceOptions
from framework.spark.plan import TaskPlan
from framework.spark.progress import ProgressListener, Turnstile, source_end
from framework.spark.rows import REPORT_SCHEMA, arrow_schema
from framework.spark.serving import Serving
from framework.spark.settings import source_options
from framework.spark.shipping import ship_modules
from framework.spark.trouble import explained, is_slow_start, silence
from framework.spark.warming import warm_up
from framework.status import StageStatus, WorkerStatus
from framework.telemetry import Metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from framework.settings import Settings
    from framework.spark.offsets import OffsetRange
    from framework.spark.settings import EngineSettings
    from framework.status import WorkerState
    from framework.strategy import Strategy

__all__ = ["SparkEngine"]

_log = structlog.get_logger(__name__)

_FORMAT: Final = "kmr-strategy"
_MOST_STARTS: Final = 5


class _Stopping(Exception):
    """Ends a micro-batch that has not begun, because the engine is stopping."""


class SparkEngine:
    """Runs a strategy on Spark. One micro-batch is one set of offset ranges, which the checkpoint logs.

    Args:
        strategy: what to do with the records.
        settings: where they come from: those of a worker, as far as they apply.
        engine: what is Spark's.
        metrics: where to count; a registry of its own by default.
        session: where to run; opened, and stopped in the end, by default.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        engine: EngineSettings,
        *,
        metrics: Metrics | None = None,
        session: SparkSession | None = None,
    ) -> None:
        self._strategy = strategy
        self._settings = settings
        self._engine = engine
        self.metrics = metrics or Metrics()
        self._options = source_options(settings, engine)
        self._given = session
        self._context = Context(
            group=settings.group,
            bootstrap_servers=settings.bootstrap_servers,
            stage="",
            client=connection_config(settings).client_options(),
        )
        self._accounts = Accounts(strategy, self._context, self.metrics, self._reread)
        self._turnstile = Turnstile()
        self._query: StreamingQuery
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._reason = ""
        self._begun = time.monotonic()
        self.health_url: str | None = None

    def shutdown(self, reason: str) -> None:
        """Ask for a stop; returns at once, and `run` returns when it is done. May be repeated."""
        self._reason = self._reason or reason
        self._stop.set()

    def run(self) -> None:
        """Process until `shutdown`, or, with the trigger `available-now`, until all is processed.

        Raises:
            KmrError: what stopped it; micro-batches that were complete before stay so.
            DeadlineExceeded: the micro-batch under way did not end within `shutdown_deadline`.
        """
        engine = self._engine
        # It logs every call, and failures that we tell about ourselves.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        listener = ProgressListener(self.metrics, self._turnstile)
        serving = Serving(self._settings.http, self.status, self.metrics)
        with ExitStack() as stack:
            session = self._given
            if session is None:
                session = engine.open_session(self._strategy)
                stack.callback(session.stop)
            modules = stack.enter_context(TemporaryDirectory(prefix="kmr-modules-"))
            stack.callback(serving.stop)
            serving.start()
            self.health_url = serving.url
            stack.callback(self._accounts.close)
            self._accounts.open(session, prepare=self._settings.prepare_table)
            silence(session)
            ship_modules(session, self._strategy, Path(modules))
            session.streams.addListener(listener)
            stack.callback(session.streams.removeListener, listener)
            self._query = self._start(session)
            watcher = threading.Thread(target=self._watch, args=[session], daemon=True)
            watcher.start()
            self._stop.wait()
            self._end()
            watcher.join()
            for progress in self._query.recentProgress:  # the listener hears of the last ones later
                listener.observe(progress)
            self._commit_last(self._query)
        if self._failure is not None:
            raise explained(self._failure)

    def status(self) -> WorkerStatus:
        """What the engine does at this moment, as a worker tells it."""
        since = self._turnstile.busy_since
        seconds = 0.0 if since is None else time.monotonic() - since
        stalled = seconds > self._settings.stall_timeout
        state: WorkerState = "running" if self._turnstile.number >= 0 else "starting"
        if self._failure is not None:
            state = "failed"
        elif self._stop.is_set():
            state = "draining"
        activity: Literal["flushing", "idle"] = "idle" if since is None else "flushing"
        name = f"micro-batch {self._turnstile.number}"
        return WorkerStatus(
            state=state,
            live=not stalled and state != "failed",
            ready=state == "running",
            problem=f"{name} runs for {seconds:.0f} s" if stalled else None,
            group=self._settings.group,
            topics=self._settings.topics,
            stages=(StageStatus(name=name, activity=activity, queued=0, seconds=seconds),),
            partitions=(),
            inflight_bytes=0,
            inflight_limit=0,
            consumed=self._accounts.consumed,
            settled=self._accounts.settled,
            uptime=time.monotonic() - self._begun,
        )

    def _start(self, session: SparkSession) -> StreamingQuery:
        plan = TaskPlan.of(self._strategy, self._context)
        if self._engine.source == "python":
            options = SourceOptions.parse(self._options, streaming=True)
            warm_up(session, plan, options.client)
        try:
            writer: Any = self._frame(session, plan).writeStream.foreachBatch(self._micro_batch)
            writer = writer.queryName(self._engine.name).trigger(**self._engine.trigger_arguments())
            query: StreamingQuery = writer.option(
                "checkpointLocation", self._engine.checkpoint
            ).start()
        except KmrError:
            raise
        except Exception as error:
            raise explained(error) from error
        return query

    def _frame(self, session: SparkSession, plan: TaskPlan) -> DataFrame:
        if self._engine.source == "jvm":
            schema = arrow_schema(session.createDataFrame([], REPORT_SCHEMA).schema)
            frame = session.readStream.format("kafka").options(**self._options).load()
            return frame.mapInArrow(mapped_rows(plan, schema), REPORT_SCHEMA)
        session.dataSource.register(fused_source(_FORMAT, plan))
        return session.readStream.format(_FORMAT).options(**self._options).load()

    def _micro_batch(self, frame: DataFrame, number: int) -> None:
        """One micro-batch, with exactly one action: each action would run the tasks again."""
        if not self._turnstile.begin(number):
            raise _Stopping
        try:
            self._accounts.settle(frame.toArrow())
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _reread(self, wanted: OffsetRange) -> pa.RecordBatch:
        """The records of a range once more, for the error sink: by our own source, whatever the query has."""
        ours = replace(self._engine, source="python")
        options = SourceOptions.parse(source_options(self._settings, ours), streaming=True)
        client = client_of(options.client)
        try:
            batches = read_range(
                client, wanted, fail_on_data_loss=True, timeout=options.poll_timeout
            )
            table = pa.Table.from_batches([batch.records for batch in batches], SCHEMA)
        finally:
            client.close()
        return table.combine_chunks().to_batches()[0]

    def _watch(self, session: SparkSession) -> None:
        starts = 1
        while (error := self._outcome()) is not None and not self._turnstile.stopping:
            if starts == _MOST_STARTS or not is_slow_start(error):
                self._failure = explained(error)
                break
            starts += 1
            _log.warning("a Python process took Spark too long to start: starting the query again")
            self._failure = None
            self._turnstile.over()
            try:
                self._query = self._start(session)
            except KmrError as failed:
                self._failure = failed
            if self._turnstile.stopping:
                self._query.stop()
        self._turnstile.over()
        self._stop.set()

    def _outcome(self) -> BaseException | None:
        """Wait until the query has ended; returns why, None if there was nothing more to do."""
        try:
            self._query.awaitTermination()
        except Exception as error:  # noqa: BLE001  told by `run`
            return self._failure or error
        return self._failure

    def _end(self) -> None:
        """Let the micro-batch under way finish, unless the policy says otherwise; then stop."""
        deadline = time.monotonic() + self._settings.shutdown_deadline
        self._turnstile.stop()
        if self._engine.on_stop == "finish" and not self._turnstile.wait_idle(deadline):
            self._failure = DeadlineExceeded(
                f"micro-batch {self._turnstile.number} did not end within shutdown_deadline "
                f"({self._settings.shutdown_deadline:g} s): it is abandoned, and runs again from the "
                "checkpoint"
            )
        failure = self._failure
        self._accounts.cancel()  # Spark waits for the micro-batch under way, however long it takes
        if self._query.isActive:
            self._query.stop()
        self._failure = failure  # what stopping itself brought about is no failure

    def _commit_last(self, query: StreamingQuery) -> None:
        """The source commits a micro-batch when it plans the next one: do it for the last one."""
        last = query.lastProgress
        offsets = source_end(last) if last is not None else {}
        if not offsets or self._engine.source != "python":
            return
        options = SourceOptions.parse(self._options, streaming=True)
        if options.group is None:
            return
        client = client_of(options.client)
        try:
            client.commit(options.group, read_offsets(offsets))
        except ConsumerError as error:
            _log.warning("group offsets not committed; the checkpoint has them", reason=str(error))
        finally:
            client.close()
