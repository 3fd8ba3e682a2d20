"""Every metric of a broker, once, with its meaning.

What happens rarely is counted where it happens (`Metrics`). What is known anyway, or is counted too often
for an instrument with a lock, is read when somebody asks (the families, filled by
`broker.telemetry.collector`): the series of a topic or a group go with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

__all__ = ["Counts", "Gauges", "Histograms", "Info", "Metrics"]

_TOPIC: Final = ("topic",)
_LOG: Final = ("topic", "partition")
_GROUP: Final = ("group",)
_COMMITTED: Final = ("group", "topic", "partition")


class Metrics:
    """The metrics of one broker, in a registry of their own; `process_*` is among them."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        ProcessCollector(registry=r)
        self.connections_accepted = Counter(
            "kmr_broker_connections_accepted_total", "Connections that were let in.", registry=r
        )
        self.connections_rejected = Counter(
            "kmr_broker_connections_rejected_total",
            "Connections that were closed at once, by the limit that was reached.",
            ("reason",),
            registry=r,
        )
        self.connections_aborted = Counter(
            "kmr_broker_connections_aborted_total",
            "Connections that the broker cut off: malformed or oversized requests, stalled clients, bugs.",
            registry=r,
        )
        self.authentication_failures = Counter(
            "kmr_broker_authentication_failures_total",
            "Clients that could not show who they are, by how they tried: SASL or TLS.",
            ("method",),
            registry=r,
        )
        self.throttled = Counter(
            "kmr_broker_throttle_seconds_total",
            "Time for which clients were told to wait because they exceeded their quota, by API.",
            ("api",),
            registry=r,
        )


class _Count(NamedTuple):
    name: str
    meaning: str
    labels: tuple[str, ...] = ()

    def family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.name, self.meaning, labels=self.labels)


class _Gauge(NamedTuple):
    name: str
    meaning: str
    labels: tuple[str, ...] = ()

    def family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.meaning, labels=self.labels)


class _Histogram(NamedTuple):
    name: str
    meaning: str
    labels: tuple[str, ...] = ()

    def family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.name, self.meaning, labels=self.labels)


class _Info(NamedTuple):
    name: str
    meaning: str

    def family(self) -> InfoMetricFamily:
        return InfoMetricFamily(self.name, self.meaning)


class Info:
    """What does not change."""

    BROKER = _Info("kmr_broker", "Version of the program, and id of the cluster.")


class Histograms:
    """Numbers by size."""

    REQUEST = _Histogram(
        "kmr_broker_request_seconds",
        "From when a request was received until its response went to the socket, long polls included.",
        ("api",),
    )


class Counts:
    """Numbers that only grow, from the start of the broker on."""

    PRODUCED_BYTES = _Count(
        "kmr_broker_produced_bytes_total",
        "Bytes of record batches that were written, transaction markers included.",
        _TOPIC,
    )
    PRODUCED_RECORDS = _Count(
        "kmr_broker_produced_records_total", "Records in these batches.", _TOPIC
    )
    FETCHED_BYTES = _Count(
        "kmr_broker_fetched_bytes_total",
        "Bytes of record batches that were sent to clients.",
        _TOPIC,
    )
    FETCHED_RECORDS = _Count(
        "kmr_broker_fetched_records_total",
        "Offsets in these batches: their records, and those that compaction took from between them.",
        _TOPIC,
    )
    SYNCS = _Count(
        "kmr_broker_log_syncs_total", "Times that a topic's logs were synced to disk.", _TOPIC
    )
    SYNC_SECONDS = _Count(
        "kmr_broker_log_sync_seconds_total", "Time that the disk took for it.", _TOPIC
    )
    CLEANINGS = _Count(
        "kmr_broker_log_cleanings_total",
        "Times that a topic's logs were made smaller, by policy: retention or compaction.",
        ("topic", "policy"),
    )
    CLEANED_BYTES = _Count(
        "kmr_broker_log_cleaned_bytes_total", "Bytes that this freed.", ("topic", "policy")
    )
    REQUEST_ERRORS = _Count(
        "kmr_broker_request_errors_total",
        "Error codes in answers: one for each partition, group or topic that it was answered for.",
        ("api", "error"),
    )


class Gauges:
    """How things are now."""

    REQUESTS_IN_FLIGHT = _Gauge(
        "kmr_broker_requests_in_flight", "Requests that are not answered yet.", ("api",)
    )
    FETCHES_WAITING = _Gauge(
        "kmr_broker_fetches_waiting", "Long polls that wait for more records (fetch purgatory)."
    )
    CONNECTIONS_OPEN = _Gauge("kmr_broker_connections_open", "Connections of clients.")
    CONNECTIONS_UNAUTHENTICATED = _Gauge(
        "kmr_broker_connections_unauthenticated",
        "Those of them whose clients have not shown yet who they are.",
    )
    BUFFER_BYTES = _Gauge(
        "kmr_broker_buffer_bytes",
        "Memory in use for requests that are received, and for fetch responses that are sent.",
        ("pool",),
    )
    BUFFER_IDLE_BYTES = _Gauge(
        "kmr_broker_buffer_idle_bytes", "Memory that is kept to be used again.", ("pool",)
    )
    BUFFER_LIMIT_BYTES = _Gauge(
        "kmr_broker_buffer_limit_bytes",
        "What may be in use before clients have to wait.",
        ("pool",),
    )
    LOG_BYTES = _Gauge("kmr_broker_log_size_bytes", "Size of a log, without its indexes.", _LOG)
    LOG_SEGMENTS = _Gauge("kmr_broker_log_segments", "Files that a log's records are in.", _LOG)
    LOG_START = _Gauge("kmr_broker_log_start_offset", "First offset that can be read.", _LOG)
    LOG_END = _Gauge("kmr_broker_log_end_offset", "Offset of the next record.", _LOG)
    LOG_STABLE = _Gauge(
        "kmr_broker_log_stable_offset",
        "First offset that read_committed consumers may not read yet (last stable offset).",
        _LOG,
    )
    LOGS_FAILED = _Gauge(
        "kmr_broker_logs_failed",
        "Logs that nothing can be written to until the broker is restarted, because the disk failed.",
    )
    DISK_FREE_BYTES = _Gauge(
        "kmr_broker_disk_free_bytes", "Room that is left where the data directory is."
    )
    PRODUCERS = _Gauge(
        "kmr_broker_producers", "Idempotent producers that a topic's logs remember.", _TOPIC
    )
    GROUP_STATE = _Gauge(
        "kmr_broker_group_state",
        "1 for the state that a group is in, in Kafka's words.",
        ("group", "state"),
    )
    GROUP_MEMBERS = _Gauge("kmr_broker_group_members", "Members of a group.", _GROUP)
    GROUP_GENERATION = _Gauge(
        "kmr_broker_group_generation", "Rebalances that a group has completed.", _GROUP
    )
    GROUP_OFFSET = _Gauge(
        "kmr_broker_group_committed_offset", "Next offset that a group will read.", _COMMITTED
    )
    GROUP_LAG = _Gauge(
        "kmr_broker_group_lag_records",
        "Offsets from there, or from the start of the log if that is later, to the end of the log.",
        _COMMITTED,
    )
    TRANSACTIONS = _Gauge(
        "kmr_broker_transactions",
        "Transactional ids, by the state of their transaction.",
        ("state",),
    )
    OLDEST_TRANSACTION = _Gauge(
        "kmr_broker_transaction_oldest_seconds",
        "Age of the oldest transaction that has not ended; 0 without one.",
    )
