"""What a worker tells of itself. Stages record for each batch or flush, never for each record."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from platform import python_version
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from .._extras import installed_version
from ..reducers.reducer import ERROR_STAGE
from ..strategy import MAP_STAGE
from .failures import FailureLog
from .progress import Summary
from .tracing import OFF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client import Metric

    from ..lookups.follower import Follower
    from .status import BackfillStatus, PartitionStatus, StageStatus
    from .tracing import Tracing

BACKPRESSURE_OF_INTAKE: Final = ("intake", "inflight_bytes")
"""The stage and the reason of the time that intake stands still."""

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_ROWS = (1, 10, 100, 1_000, 5_000, 10_000, 20_000, *(2**power for power in range(15, 21)))
_BYTES = tuple(4**power for power in range(4, 15))


class _WorkerRegistry(CollectorRegistry):
    """A registry without `_created` series: one more for each, and several workers' would clash."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric


class Metrics:
    """The observer of one worker: all stages tell it what they do.

    It has metrics, in a registry of their own, the latest failures, and spans. Other attributes are
    Prometheus collectors.

    Attributes:
        tracing: makes a span of each batch and each flush; see `kmr.observe.tracing.telemetry`.
        failures: the latest failures, with the reasons that counters do not have.
        done: what the worker has done so far.
        repeated: how many attempts to flush and to decode, and commits, failed and are repeated.
    """

    def __init__(self) -> None:
        self.registry = _WorkerRegistry()
        self.tracing: Tracing = OFF
        self.failures = FailureLog()
        self.done = Summary()
        self.repeated = 0
        self._read: set[tuple[str, int]] = set()  # whose gauges of the lag say 0

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"kmr_{name}_total", meaning, labels, registry=self.registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"kmr_{name}", meaning, labels, registry=self.registry)

        def histogram(
            name: str, meaning: str, *labels: str, buckets: Sequence[float] = _SECONDS
        ) -> Histogram:
            return Histogram(
                f"kmr_{name}", meaning, labels, buckets=buckets, registry=self.registry
            )

        self._worker = Info(
            "kmr_worker", "The group and the strategy of the worker.", registry=self.registry
        )
        self._build = Info(
            "kmr_build", "The versions of kmr and of Python.", registry=self.registry
        )
        self.lag = gauge(
            "consumer_lag_records",
            "Records between the watermark and the end of the partition; gone when it is revoked.",
            "topic",
            "partition",
        )
        self.lag_seconds = gauge(
            "consumer_lag_seconds",
            "Age of the oldest batch that is not settled, by its newest timestamp; 0 without a lag, gone "
            "while nothing of the lag is fetched.",
            "topic",
            "partition",
        )
        self.held = gauge(
            "held_records",
            "Records from the first one of an open window on that were read: they are no lag.",
            "topic",
            "partition",
        )
        self.held_seconds = gauge(
            "held_seconds",
            "Age of the oldest batch that open windows hold, by its newest timestamp; 0 without one.",
            "topic",
            "partition",
        )
        self.backfill_left = gauge(
            "backfill_left_records",
            "Offsets of the history that kmr backfill has not read yet: the same in each worker of a group.",
            "topic",
            "partition",
        )
        self.lookup_rows = gauge("lookup_rows", "Rows of a look-up table.", "table")
        self.lookup_stale = gauge(
            "lookup_stale_seconds",
            "Time since a look-up table was last known to be up to date; of a query, since it began.",
            "table",
        )
        self.late = counter(
            "late_rows",
            "Rows whose windows had closed: dropped, or sent to the error sink. Also rows that were left out "
            "of a window because they would overflow its sum.",
            "stage",
            "outcome",
        )
        self.drain_seconds = gauge(
            "consumer_drain_seconds",
            "Time until the lag is settled at the rate of the last minute; +Inf if nothing was settled.",
        )
        self.broker_silent = gauge(
            "broker_silent",
            "1 while the group or a leader does not answer, or refuses the worker; else 0.",
        )
        self.consumed = counter("consumed_records", "Records taken from the broker.", "topic")
        self.offset_resets = counter(
            "offset_resets",
            "Times that records were skipped because retention had removed the next one.",
            "topic",
        )
        self.settled = counter(
            "settled_records",
            "Offsets below the watermark: delivered, filtered, or accepted by the error sink.",
            "topic",
        )
        self.latency = histogram(
            "record_latency_seconds",
            "From the newest timestamp of a batch until the batch is settled.",
        )
        self.map_seconds = histogram("map_seconds", "Time in the map function, per batch.")
        self.map_retries = counter(
            "map_retries",
            "Calls of the map function that were repeated, and pauses for a schema registry.",
        )
        self.flush_records = histogram(
            "reduce_flush_records", "Rows of one flush.", "stage", buckets=_ROWS
        )
        self.flush_bytes = histogram(
            "reduce_flush_bytes", "Bytes of one flush.", "stage", buckets=_BYTES
        )
        self.flush_seconds = histogram(
            "reduce_flush_seconds", "Time of one flush, retries included.", "stage"
        )
        self.flush_late = gauge(
            "reduce_flush_late_seconds",
            "How long the oldest rows have waited for their turn beyond `max_age` (`inserts_per_second`).",
        )
        self.flushes = counter("reduce_flushes", "Flushes, by reason.", "stage", "reason")
        self.flush_retries = counter(
            "reduce_flush_retries", "Attempts to flush that must be repeated.", "stage"
        )
        self.unexpected_duplicates = counter(
            "unexpected_duplicates",
            "Flushes that a sink dropped as a repetition, though nothing was announced before.",
            "stage",
        )
        self.flush_retrying = gauge(
            "reduce_flush_retrying_seconds",
            "How long flushes have been retried, with the reason; gone when they succeed.",
            "stage",
            "reason",
        )
        self.backpressure = counter(
            "backpressure_seconds",
            "Time that intake stood still, by the stage and the reason that held it.",
            "stage",
            "reason",
        )
        self.inflight = gauge("inflight_bytes", "Bytes of records taken in and not yet settled.")
        self.inflight_limit = gauge(
            "inflight_limit_bytes",
            "The most bytes in flight: intake pauses there (`inflight_bytes`, less what is remembered).",
        )
        self.memory_bytes = gauge(
            "memory_bytes", "Bytes of what `Distinct` remembers of earlier records."
        )
        self.distinct_rows = counter(
            "distinct_rows",
            "Rows that `Distinct` looked at: passed, duplicate, or passed without_key.",
            "result",
        )
        self.linger = gauge(
            "intake_linger_seconds",
            "How long records of quiet partitions gather before the next fetch; 0 while idle.",
        )
        self.tasks = gauge("event_loop_tasks", "Tasks of the worker's event loop.")
        self.commits = counter("commits", "Commits of watermarks, by result.", "result")
        self.transactions = counter(
            "transactions", "Transactions of rows and offsets: committed, or aborted.", "result"
        )
        self.rebalances = counter("rebalances", "Assignments and revocations.", "event")
        self.rebalance_seconds = histogram(
            "rebalance_seconds", "How long a rebalance kept partitions from being processed."
        )
        self.failed = counter("failed_records", "Records that failed, by stage.", "stage")
        self.left_out = counter(
            "values_left_out",
            "Values that a sink left out: `fields` that its table lacks, `digits` of times, `rows`.",
            "stage",
            "what",
        )
        self.dead_letters = counter(
            "dlq_records", "Failed records: sent to the error sink, or dropped.", "reason"
        )

    def begin(
        self, group: str, strategy: str, stages: Iterable[str], topics: Iterable[str]
    ) -> None:
        """Name the worker, and set its counters to 0: an alert on a rate needs a first value.

        Args:
            stages: the names of the reducers' stages.
            topics: the input; those of a pattern are not known yet.
        """
        self._worker.info({"group": group, "strategy": strategy})
        self._build.info({"version": installed_version() or "", "python": python_version()})
        for stage in (*stages, ERROR_STAGE):
            for each in (self.flush_records, self.flush_bytes, self.flush_seconds):
                each.labels(stage)
            self.flush_retries.labels(stage)
        for stage in stages:
            for what in ("fields", "digits"):
                self.left_out.labels(stage, what)
            self.failed.labels(stage)
            self.unexpected_duplicates.labels(stage)
        self.failed.labels(MAP_STAGE)
        self.backpressure.labels(*BACKPRESSURE_OF_INTAKE)
        for result in ("passed", "duplicate", "without_key"):
            self.distinct_rows.labels(result)
        for reason in ("sent", "dropped"):
            self.dead_letters.labels(reason)
        for result in ("ok", "fenced", "failed"):
            self.commits.labels(result)
        for result in ("committed", "aborted"):
            self.transactions.labels(result)
        for event in ("assigned", "revoked"):
            self.rebalances.labels(event)
        for topic in topics:
            self.begin_topic(topic)

    def begin_topic(self, topic: str) -> None:
        """Set the counters of a topic to 0, if they are not there yet."""
        for each in (self.consumed, self.settled, self.offset_resets):
            each.labels(topic)

    def count_failed(self, stage: str, records: int, reason: str, place: str | None = None) -> None:
        """Count records that failed; `reason` and `place` (`Failure.place`) are those of the first one."""
        self.failed.labels(stage).inc(records)
        self.done.failed += records
        self.failures.note("record failed", stage, reason, records, place)

    def count_late(self, stage: str, outcome: str, rows: int) -> None:
        """Count rows whose windows had closed, or that sums left out of them."""
        if rows:
            self.late.labels(stage, outcome).inc(rows)

    def count_left_out(self, stage: str, what: str, values: int) -> None:
        """Count values that a sink left out on purpose: `fields`, or `digits` of times."""
        self.left_out.labels(stage, what).inc(values)

    def count_mapped(self, records: int, filtered: int) -> None:
        """Count the records of a batch that was mapped, and those that made no row and did not fail."""
        self.done.read += records
        self.done.filtered += filtered

    def count_flush(self, stage: str, reason: str, rows: int, nbytes: int, seconds: float) -> None:
        """Count a flush; `seconds` includes its retries."""
        self.flushes.labels(stage, reason).inc()
        self.flush_seconds.labels(stage).observe(seconds)
        self.count_rows(stage, rows, nbytes)

    def count_rows(self, stage: str, rows: int, nbytes: int) -> None:
        """Count the rows of a flush, or those of a branch in it."""
        self.flush_records.labels(stage).observe(rows)
        self.flush_bytes.labels(stage).observe(nbytes)

    def count_retry(self, stage: str, reason: str, attempts: int = 1) -> None:
        """Count attempts to flush that must be repeated."""
        self.flush_retries.labels(stage).inc(attempts)
        self.repeated += attempts
        self.failures.note("flush repeated", stage, reason, attempts)

    def count_registry_wait(self, reason: str) -> None:
        """Count a map that must be repeated, because a schema registry does not answer."""
        self.map_retries.inc()
        self.repeated += 1
        self.failures.note("map repeated", "map", reason)

    def count_lost_commit(self, result: Literal["fenced", "failed"], reason: str) -> None:
        """Count a commit that was refused or had no answer; the next one repeats it."""
        self.commits.labels(result).inc()
        self.repeated += 1
        self.failures.note("commit failed", "", reason)

    def count_tasks_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count the tasks of an event loop when the metrics are read, not before."""
        self.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))

    def watch_table(self, table: Follower) -> None:
        """Ask a look-up table for its figures when the metrics are read."""
        self.lookup_rows.labels(table.name).set_function(lambda: table.rows)
        self.lookup_stale.labels(table.name).set_function(lambda: table.stale)

    def observe_held(self, partition: PartitionStatus, oldest: float | None) -> None:
        """Update what open windows hold; `oldest` as in `observe_lag`."""
        labels = (partition.topic, str(partition.partition))
        self.held.labels(*labels).set(partition.held)
        self.held_seconds.labels(*labels).set(
            0.0 if oldest is None else max(0.0, time.time() - oldest)
        )

    def observe_backfill(self, status: BackfillStatus) -> None:
        """Update what a backfill has left."""
        for each in status.partitions:
            left = self.backfill_left.labels(each.topic, str(each.partition))
            left.set(each.offsets - each.done)

    def observe_lag(self, partition: PartitionStatus, oldest: float | None) -> None:
        """Update the lag of a partition.

        Args:
            oldest: when the oldest batch in flight was produced, in seconds since 1970; None without one.
        """
        lag, name = partition.lag, (partition.topic, partition.partition)
        is_read = lag == 0 and oldest is None
        if lag is None or (is_read and name in self._read):
            return
        (self._read.add if is_read else self._read.discard)(name)
        labels = partition.topic, str(partition.partition)
        self.lag.labels(*labels).set(lag)
        if oldest is not None or lag == 0:
            age = 0.0 if oldest is None else max(0.0, time.time() - oldest)
            self.lag_seconds.labels(*labels).set(age)
        else:
            self.lag_seconds.remove(*labels)

    def forget_lag(self, topic: str, partition: int) -> None:
        """Remove the lag of a partition that is not ours any more."""
        self._read.discard((topic, partition))
        for each in (self.lag, self.lag_seconds, self.held, self.held_seconds):
            with suppress(KeyError):  # nothing was ever fetched from it
                each.remove(topic, str(partition))

    def observe_retries(self, stages: Iterable[StageStatus]) -> None:
        """Update the gauge of the flushes that are retried now."""
        self.flush_retrying.clear()
        longest: dict[tuple[str, str], float] = {}
        for stage in stages:
            if stage.reason is not None:
                what = (stage.name.partition(" ")[0], stage.reason)
                longest[what] = max(longest.get(what, 0.0), stage.seconds)
        for what, seconds in longest.items():
            self.flush_retrying.labels(*what).set(seconds)
