"""The metrics of a worker. Stages record for each batch or flush, never for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .status import StageStatus

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_ROWS = (1, 10, 100, 1_000, 5_000, 10_000, 20_000, *(2**power for power in range(15, 21)))
_BYTES = tuple(4**power for power in range(4, 15))


class Metrics:
    """The metrics of one worker, in a registry of their own. Each attribute is a Prometheus collector."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()

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

        self.lag = gauge(
            "consumer_lag_records",
            "Records between the watermark and the end of the partition; gone when it is revoked.",
            "topic",
            "partition",
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
        self.map_retries = counter("map_retries", "Calls of the map function that were repeated.")
        self.flush_records = histogram(
            "reduce_flush_records", "Rows of one flush.", "stage", buckets=_ROWS
        )
        self.flush_bytes = histogram(
            "reduce_flush_bytes", "Bytes of one flush.", "stage", buckets=_BYTES
        )
        self.flush_seconds = histogram(
            "reduce_flush_seconds", "Time of one flush, retries included.", "stage"
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
        self.commits = counter("commits", "Commits of watermarks, by result.", "result")
        self.rebalances = counter("rebalances", "Assignments, revocations and losses.", "event")
        self.failed = counter("failed_records", "Records that failed, by stage.", "stage")
        self.dead_letters = counter(
            "dlq_records", "Failed records: sent to the error sink, or dropped.", "reason"
        )

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
