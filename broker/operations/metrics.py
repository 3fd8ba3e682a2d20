"""The metrics of a broker: those that it counts as they happen, and those that are read at each scrape.

Rare events have Prometheus' instruments (`BrokerMetrics`), requests have counters without locks
(`apis/meters.py`). `BrokerCollector` reads values that the broker holds anyway, or counts too often
for an instrument with a lock. The series of a topic or group therefore end when it is deleted.
"""

from __future__ import annotations

import asyncio
import collections
import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from ..apis.meters import LATENCY_BOUNDS
from ..coordinators.transaction_state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from ..apis.api import Node, Services
    from ..apis.meters import RequestMeters
    from ..apis.records.fetch_sessions import FetchSessions
    from ..coordinators.group_coordinator import GroupCoordinator
    from ..coordinators.transaction_coordinator import TransactionCoordinator
    from ..server.server import Server
    from ..supervision import Supervision
    from ..topics.topics import Topics


class BrokerMetrics:
    """The instruments of one broker, in a registry of their own, with the `process_*` metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.connections_accepted = self._counter(
            "connections_accepted_total", "Accepted connections."
        )
        self.connections_rejected = self._counter(
            "connections_rejected_total",
            "Connections closed at once, by the limit that was reached.",
            "reason",
        )
        self.connections_aborted = self._counter(
            "connections_aborted_total",
            "Connections that the broker aborted: malformed or oversized requests, stalled clients, bugs.",
        )
        self.authentication_failures = self._counter(
            "authentication_failures_total",
            "Failed authentications, by method: SASL or TLS.",
            "method",
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"kmr_broker_{name}", meaning, labels, registry=self.registry)


class BrokerCollector(Collector):
    """Collect the metrics of one broker; call it in the broker's event loop."""

    def __init__(self, services: Services, server: Server, supervisor: Supervision) -> None:
        self._services = services
        self._server = server
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, with the current values."""
        services, server = self._services, self._server
        topics = services.topics
        yield from _broker(services.node)
        yield from _requests(services.requests, server, topics)
        yield from _fetch_sessions(services.fetch_sessions)
        yield from _connections(server)
        pools = [
            (("request",), server.request_buffers.small),
            (("large request",), server.request_buffers.large),
            (("unread request",), server.request_buffers.unread),
            (("response",), services.response_buffers.large),
            (("small response",), services.response_buffers.small),
        ]
        yield from _gauges(_POOL_GAUGES, ("pool",), pools)
        yield from _traffic(topics)
        yield from _topics(topics)
        yield from _logs(topics)
        yield from _groups(services.groups, topics)
        yield from _transactions(services.transactions)
        yield _failures(self._supervisor)


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"kmr_broker_{name}", meaning, labels=labels)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kmr_broker_{name}", meaning, labels=labels)


def _value(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kmr_broker_{name}", meaning, value)


def _gauges(
    families: Mapping[str, tuple[str, str]],
    labels: tuple[str, ...],
    objects: Iterable[tuple[tuple[str, ...], object]],
) -> Iterator[Metric]:
    """Yield gauges, each of an attribute (name, meaning) of the labelled objects."""
    labelled = list(objects)
    for attribute, (name, meaning) in families.items():
        family = _gauge(name, meaning, *labels)
        for label, each in labelled:
            family.add_metric(label, getattr(each, attribute))
        yield family


def _broker(node: Node) -> Iterator[Metric]:
    about = InfoMetricFamily("kmr_broker", "Version of the program, and id of the cluster.")
    about.add_metric((), {"version": _version(), "cluster_id": node.cluster_id})
    free = _gauge("disk_free_bytes", "Free space on the disk of the data directory.")
    with suppress(OSError):
        disk = os.statvfs(node.settings.data_dir)
        free.add_metric((), disk.f_bavail * disk.f_frsize)
    yield from (about, free)
    yield _value("event_loop_tasks", "Tasks of the broker's event loop.", len(asyncio.all_tasks()))


def _version() -> str:
    try:
        return version("kafka-map-reduce")
    except PackageNotFoundError:
        return "unknown"  # not installed: run from a checkout


def _requests(meters: RequestMeters, server: Server, topics: Topics) -> Iterator[Metric]:
    latencies = HistogramMetricFamily(
        "kmr_broker_request_seconds",
        "Time from a request's arrival until its response is in the socket, long polls included.",
        labels=("api",),
    )
    errors = _counter(
        "request_errors_total",
        "Error codes in responses, once for each partition, group or topic.",
        "api",
        "error",
    )
    in_flight = _gauge("requests_in_flight", "Requests without a response yet.", "api")
    unanswered = collections.Counter[str]()
    for connection in server:
        for reply in connection.unanswered:
            unanswered[reply.meter.api] += reply.requests
    for meter in meters:
        buckets = list(
            zip((*map(str, LATENCY_BOUNDS), "+Inf"), accumulate(meter.buckets), strict=True)
        )
        latencies.add_metric((meter.api,), buckets, meter.seconds)
        in_flight.add_metric((meter.api,), unanswered[meter.api])
        for code, number in meter.errors.items():
            errors.add_metric((meter.api, ErrorCode(code).name.upper()), number)
    watches = {watch for partition in topics.partitions for watch in partition.watches}
    yield from (latencies, errors, in_flight)
    yield _value(
        "fetches_waiting", "Long polls that wait for records (fetch purgatory).", len(watches)
    )


def _fetch_sessions(sessions: FetchSessions) -> Iterator[Metric]:
    yield _value("fetch_sessions", "Fetch sessions (KIP-227).", len(sessions))
    yield _value("fetch_session_partitions", "Partitions in fetch sessions.", sessions.partitions)
    evictions = _counter(
        "fetch_session_evictions_total", "Idle fetch sessions that made room for others."
    )
    evictions.add_metric((), sessions.evictions)
    yield evictions


def _connections(server: Server) -> Iterator[Metric]:
    admission = server.admission
    yield _value("connections_open", "Connections of clients.", admission.admitted)
    yield _value(
        "connections_unauthenticated",
        "Connections that have not completed authentication.",
        admission.unauthenticated,
    )


_POOL_GAUGES: Final = {
    "used": ("buffer_bytes", "Memory of requests being received, or responses sent."),
    "idle": ("buffer_idle_bytes", "Memory that is kept for reuse."),
    "limit": ("buffer_limit_bytes", "Memory in use from which on clients wait."),
}


def _traffic(topics: Topics) -> Iterator[Metric]:
    """Yield the counts of what was produced to and fetched from each topic since the broker's start."""
    families = {
        "produced_bytes": "Bytes of written record batches, transaction markers included.",
        "produced_records": "Records of written record batches.",
        "fetched_bytes": "Bytes of record batches sent to clients.",
        "fetched_records": "Offsets in these batches, those that compaction removed included.",
    }
    for name, meaning in families.items():
        family = _counter(f"{name}_total", meaning, "topic")
        for topic in topics:
            family.add_metric((topic.name,), sum(getattr(each, name) for each in topic.partitions))
        yield family


def _topics(topics: Topics) -> Iterator[Metric]:
    """Yield the sums over the logs of each topic."""
    syncs = _counter("log_syncs_total", "Syncs of a topic's logs to disk.", "topic")
    seconds = _counter("log_sync_seconds_total", "Duration of these syncs.", "topic")
    producers = _gauge("producers", "Idempotent producers that a topic's logs remember.", "topic")
    cleanings = _counter(
        "log_cleanings_total",
        "Times that retention or compaction made a topic's logs smaller.",
        "topic",
        "policy",
    )
    freed = _counter("log_cleaned_bytes_total", "Bytes that this freed.", "topic", "policy")
    for topic, some in ((each.name, [p.log for p in each.partitions]) for each in topics.all):
        syncs.add_metric((topic,), sum(log.syncs.number for log in some))
        seconds.add_metric((topic,), sum(log.syncs.seconds for log in some))
        producers.add_metric((topic,), sum(len(log.producers.ids) for log in some))
        for policy, done in (
            ("retention", [log.retained for log in some]),
            ("compaction", [log.compacted for log in some]),
        ):
            cleanings.add_metric((topic, policy), sum(each.number for each in done))
            freed.add_metric((topic, policy), sum(each.freed_bytes for each in done))
    yield from (syncs, seconds, producers, cleanings, freed)


_LOG_GAUGES: Final = {
    "size_bytes": ("log_size_bytes", "Size of a log, without its indexes."),
    "segment_count": ("log_segments", "Segment files of a log."),
    "log_start_offset": ("log_start_offset", "First offset that can be read."),
    "next_offset": ("log_end_offset", "Offset of the next record."),
    "last_stable_offset": (
        "log_stable_offset",
        "First offset that read_committed consumers cannot read yet (last stable offset).",
    ),
}


def _logs(topics: Topics) -> Iterator[Metric]:
    """Yield the metrics of each partition's log."""
    partitions = (each for topic in topics.all for each in topic.partitions)
    logs = [((each.topic, str(each.index)), each.log) for each in partitions]
    yield from _gauges(_LOG_GAUGES, ("topic", "partition"), logs)
    yield _value(
        "logs_failed",
        "Logs that cannot be written until a restart, because the disk failed.",
        sum(bool(log.failure) for _, log in logs),
    )


def _failures(supervisor: Supervision) -> Metric:
    family = _gauge(
        "work_failures",
        "Failed attempts in a row of background work, such as compaction, that is tried again.",
        "work",
        "subject",
    )
    for each in supervisor.failures:
        family.add_metric((each.work, each.subject), each.attempts)
    return family


def _groups(groups: GroupCoordinator, topics: Topics) -> Iterator[Metric]:
    states = _gauge(
        "group_state", "1 for the state of a group, as Kafka names it.", "group", "state"
    )
    members = _gauge("group_members", "Members of a group.", "group")
    generations = _gauge("group_generation", "Rebalances that a group has completed.", "group")
    labels = ("group", "topic", "partition")
    offsets = _gauge("group_committed_offset", "Next offset that a group will read.", *labels)
    lags = _gauge(
        "group_lag_records",
        "Offsets from the committed one, or the log start if that is later, to the log end.",
        *labels,
    )
    for group in groups.groups():
        label = (group.id,)
        states.add_metric((group.id, group.state.value), 1)
        members.add_metric(label, group.size)
        generations.add_metric(label, group.generation)
        for (topic, index), committed in groups.offsets.committed(group.id).items():
            where = (group.id, topic, str(index))
            offsets.add_metric(where, committed.offset)
            partition = topics.partition(topic, index)
            if partition is not None:
                start = max(committed.offset, partition.log.log_start_offset)
                lags.add_metric(where, max(0, partition.high_watermark - start))
    yield from (states, members, generations, offsets, lags)


def _transactions(coordinator: TransactionCoordinator) -> Iterator[Metric]:
    transactions = _gauge("transactions", "Transactional ids by state of transaction.", "state")
    known = coordinator.transactions()
    numbers = collections.Counter(each.state for each in known)
    for state in TransactionState:
        transactions.add_metric((state.value,), numbers[state])
    now_ms = coordinator.now_ms()
    ages = (now_ms - each.started_ms for each in known if each.state.is_active)
    yield transactions
    yield _value(
        "transaction_oldest_seconds",
        "Age of the oldest open transaction; 0 if there is none.",
        max(ages, default=0) / 1000,
    )
