"""Requests, connections, and the memory that they take, as metrics."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from broker.telemetry.metrics import Counts, Gauges, Histograms
from broker.telemetry.requests import LATENCY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from broker.buffers import BufferPool
    from broker.server.server import Server
    from broker.telemetry.requests import RequestMeters
    from broker.topics.topics import Topics

__all__ = ["buffer_families", "connection_families", "request_families"]

_BOUNDS = [*map(str, LATENCY_BOUNDS), "+Inf"]


def request_families(meters: RequestMeters, server: Server, topics: Topics) -> Iterator[Metric]:
    latencies, errors = Histograms.REQUEST.family(), Counts.REQUEST_ERRORS.family()
    in_flight, waiting = Gauges.REQUESTS_IN_FLIGHT.family(), Gauges.FETCHES_WAITING.family()
    unanswered = Counter(
        answer.meter.api for connection in server for answer in connection.unanswered
    )
    for meter in meters:
        buckets = list(zip(_BOUNDS, accumulate(meter.buckets), strict=True))
        latencies.add_metric((meter.api,), buckets, meter.seconds)
        in_flight.add_metric((meter.api,), unanswered[meter.api])
        for code, number in meter.errors.items():
            errors.add_metric((meter.api, ErrorCode(code).name.upper()), number)
    watches = {watch for partition in topics.partitions for watch in partition.watches}
    waiting.add_metric((), len(watches))
    yield from (latencies, errors, in_flight, waiting)


def connection_families(server: Server) -> Iterator[Metric]:
    connections = Gauges.CONNECTIONS_OPEN.family()
    connections.add_metric((), server.admission.admitted)
    unauthenticated = Gauges.CONNECTIONS_UNAUTHENTICATED.family()
    unauthenticated.add_metric((), server.admission.unsettled)
    yield from (connections, unauthenticated)


def buffer_families(pools: Mapping[str, BufferPool]) -> Iterator[Metric]:
    used, idle, limit = (
        each.family()
        for each in (Gauges.BUFFER_BYTES, Gauges.BUFFER_IDLE_BYTES, Gauges.BUFFER_LIMIT_BYTES)
    )
    for name, pool in pools.items():
        used.add_metric((name,), pool.used)
        idle.add_metric((name,), pool.idle)
        limit.add_metric((name,), pool.limit)
    yield from (used, idle, limit)
