"""Every metric, once, with its meaning. Stages record per batch or flush, never per record."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_ROWS = (
    1,
    10,
    100,
    1_000,
    5_000,
    10_000,
    20_000,
    32_768,
    65_536,
    131_072,
    262_144,
    524_288,
    1_048_576,
)
_BYTES = tuple(4**power for power in range(4, 15))


class Metrics:
    """The metrics of one worker, in a registry of their own.

    Each attribute is a Prometheus collector; its name on `/metrics` is `kmr_` plus the name given here.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        r = self.registry
        self.lag = Gauge(
            "kmr_consumer_lag_records",
            "Records between the watermark and the end of the partition; gone when it is revoked.",
            ("topic", "partition"),
            registry=r,
        )
        self.consumed = Counter(
            "kmr_consumed_records_total", "Records taken from the broker.", ("topic",), registry=r
        )
        self.offset_resets = Counter(
            "kmr_offset_resets_total",
            "Times that records were skipped because retention had removed the next one.",
            ("topic",),
            registry=r,
        )
        self.settled = Counter(
            "kmr_settled_records_total",
            "Offsets below the watermark: delivered, filtered, or accepted by the error sink.",
            ("topic",),
            registry=r,
        )
        self.latency = Histogram(
            "kmr_record_latency_seconds",
            "From the newest timestamp of a batch until the batch is settled.",
            buckets=_SECONDS,
            registry=r,
        )
        self.map_seconds = Histogram(
            "kmr_map_seconds", "Time in the map function, per batch.", buckets=_SECONDS, registry=r
        )
        self.flush_records = Histogram(
            "kmr_reduce_flush_records", "Rows of one flush.", ("stage",), buckets=_ROWS, registry=r
        )
        self.flush_bytes = Histogram(
            "kmr_reduce_flush_bytes", "Bytes of one flush.", ("stage",), buckets=_BYTES, registry=r
        )
        self.flush_seconds = Histogram(
            "kmr_reduce_flush_seconds",
            "Time of one flush, retries included.",
            ("stage",),
            buckets=_SECONDS,
            registry=r,
        )
        self.flushes = Counter(
            "kmr_reduce_flushes_total",
            "Flushes, by what caused them.",
            ("stage", "reason"),
            registry=r,
        )
        self.flush_retries = Counter(
            "kmr_reduce_flush_retries_total",
            "Attempts to flush that must be repeated.",
            ("stage",),
            registry=r,
        )
        self.backpressure = Counter(
            "kmr_backpressure_seconds_total",
            "Time that intake stood still, by the stage and the reason that held it.",
            ("stage", "reason"),
            registry=r,
        )
        self.inflight = Gauge(
            "kmr_inflight_bytes", "Bytes of records taken in and not yet settled.", registry=r
        )
        self.commits = Counter(
            "kmr_commits_total", "Commits of watermarks, by result.", ("result",), registry=r
        )
        self.rebalances = Counter(
            "kmr_rebalances_total", "Assignments, revocations and losses.", ("event",), registry=r
        )
        self.failed = Counter(
            "kmr_failed_records_total", "Records that failed, by stage.", ("stage",), registry=r
        )
        self.dead_letters = Counter(
            "kmr_dlq_records_total",
            "Failed records by what became of them.",
            ("reason",),
            registry=r,
        )
