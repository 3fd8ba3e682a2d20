"""OpenTelemetry: spans of batches and flushes, and the metrics of a worker, sent by OTLP over HTTP.

The variables of OpenTelemetry (`OTEL_...`) say where to, how often and how much; the SDK reads them.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .._extras import installed_version
from ..errors import SettingsError, reason_of
from ..service.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from opentelemetry.trace import Span, SpanContext
    from prometheus_client import CollectorRegistry
    from prometheus_client import Metric as Family
    from prometheus_client.samples import Sample

    from ..mapping.results import MapResult
    from ..record import Batch, Rows
    from ..reducers.buffer import FlushReason
    from ..settings import Settings


_HEADER: Final = "traceparent"
_MOST_RANGES: Final = 32
_CLOSE_SECONDS: Final = 3.0
_METRIC_INTERVAL: Final = "60000"  # milliseconds, the default of OTEL_METRIC_EXPORT_INTERVAL
_SUPPORTED: Final = {
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    "OTEL_METRICS_EXPORTER": ("otlp", "none"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": ("http/protobuf",),
}


class OtelTracing:
    """Makes spans. A `Tracing`.

    Args:
        provider: of tracers.
        group: the consumer group, an attribute of each span.
        most_links: how many producers' spans a span is linked to.
    """

    def __init__(self, provider: trace.TracerProvider, group: str, most_links: int) -> None:
        self._tracer = provider.get_tracer("kmr", installed_version())
        self._group = group
        self._most_links = most_links

    @asynccontextmanager
    async def mapping(self, batch: Batch) -> AsyncIterator[_MapSpan]:
        span = self._tracer.start_span(
            f"process {batch.topic}",
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.destination.name": batch.topic,
                "messaging.destination.partition.id": str(batch.partition),
                "messaging.consumer.group.name": self._group,
                "messaging.kafka.offset": batch.first,
            },
        )
        with _current(span):
            yield _MapSpan(span, batch, self._most_links)

    @asynccontextmanager
    async def flushing(
        self, stage: str, reason: FlushReason, rows: Sequence[Rows]
    ) -> AsyncIterator[_FlushSpan]:
        held = list(rows)
        ranges = [each for part in held for each in part.ranges]
        span = self._tracer.start_span(
            f"flush {stage}",
            kind=SpanKind.CLIENT,
            attributes={
                "messaging.system": "kafka",
                "messaging.consumer.group.name": self._group,
                "messaging.destination.name": ", ".join(sorted({each.topic for each in ranges})),
                "messaging.batch.message_count": sum(each.last + 1 - each.first for each in ranges),
                "kmr.stage": stage,
                "kmr.flush.reason": reason,
                "kmr.flush.rows": sum(len(each) for each in held),
                "kmr.flush.bytes": sum(each.nbytes for each in held),
                "kmr.flush.partitions": len({each.topic_partition for each in ranges}),
                "kmr.offsets": [str(each) for each in ranges[:_MOST_RANGES]],
            },
        )
        with _current(span):
            yield _FlushSpan(span, held, self._most_links)


@contextmanager
def _current(span: Span) -> Iterator[None]:
    """Make a span the current one; an exception ends it as an error, a cancellation drops it."""
    try:
        with trace.use_span(
            span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        ):
            yield
    except Exception as error:
        if span.is_recording():
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, reason_of(error)))
            span.end()
        raise


class _MapSpan:
    def __init__(self, span: Span, batch: Batch, most_links: int) -> None:
        self._span = span
        self._batch = batch
        self._most_links = most_links

    async def mapped(self, result: MapResult) -> None:
        span, batch = self._span, self._batch
        last = batch.last if result.rest is None else result.rest - 1
        if last < batch.first:
            return
        mapped = batch if last == batch.last else batch.slice(batch.first, last)
        records, links, dropped = await run_in_thread(_look, [mapped], self._most_links)
        span.set_attributes(
            {
                "kmr.offset.last": last,
                "messaging.batch.message_count": records,
                "kmr.map.rows": 0 if result.table is None else result.table.num_rows,
                "kmr.map.failed": len(result.failures),
                "kmr.map.retries": result.retries,
            }
        )
        _link(span, links, dropped)
        span.end()


class _FlushSpan:
    def __init__(self, span: Span, rows: Sequence[Rows], most_links: int) -> None:
        self._span = span
        self._rows = rows
        self._most_links = most_links

    def retried(self, reason: str) -> None:
        self._span.add_event("retry", {"kmr.reason": reason})

    async def flushed(self) -> None:
        sources = {id(batch): batch for rows in self._rows for batch in rows.sources}
        _, links, dropped = await run_in_thread(_look, sources.values(), self._most_links)
        _link(self._span, links, dropped)
        self._span.end()


def _look(batches: Iterable[Batch], most: int) -> tuple[int, list[SpanContext], int]:
    """Return the number of records, the producers' spans, and how many of them are left out."""
    records = [batch.records for batch in batches]
    found = producers_of([each.column("headers") for each in records])
    contexts = [context for parent in found[:most] if (context := _parse(parent)) is not None]
    return sum(map(len, records)), contexts, max(0, len(found) - most)


def producers_of(headers: Iterable[Any]) -> list[str]:
    """Return the different values of the header `traceparent`, in the order of the records.

    Args:
        headers: the columns `headers` of some batches.
    """
    found: list[Any] = []
    for column in headers:
        if column.null_count == len(column):
            continue
        pairs: Any = pc.list_flatten(column)
        keys, values = pairs.flatten()
        chosen = values.filter(pc.equal(keys, pa.scalar(_HEADER))).drop_null()
        found.append(chosen.unique())
    if not found:
        return []
    every = pa.concat_arrays(found).unique()
    return [value.decode("ascii", "replace") for value in every.to_pylist()]


def _parse(traceparent: str) -> SpanContext | None:
    """Return the span that a header names (W3C Trace Context); None if it is not valid."""
    context = TraceContextTextMapPropagator().extract({_HEADER: traceparent})
    span = trace.get_current_span(context).get_span_context()
    return span if span.is_valid else None


def _link(span: Span, links: Iterable[SpanContext], dropped: int) -> None:
    for context in links:
        span.add_link(context)
    if dropped:
        span.set_attribute("kmr.links.dropped", dropped)


class Telemetry:
    """Sends spans and metrics inside a `with` block, and what is left at its end, for three seconds at most.

    A provider of tracers that the process has already (`opentelemetry-instrument kmr run ...`) is used, and
    left as it is. Else ours becomes that of the process, so that spans of the user's libraries join.

    Raises:
        SettingsError: a variable has a value that is not supported.

    Attributes:
        tracing: makes spans.
    """

    def __init__(self, settings: Settings, registry: CollectorRegistry) -> None:
        for name, allowed in _SUPPORTED.items():
            if (value := os.environ.get(name) or allowed[0]) not in allowed:
                raise SettingsError(
                    f"{name}: {value!r} is not supported; it is {' or '.join(allowed)}"
                )
        self._registry = registry
        self._resource = _resource(settings)
        self._began = time.time_ns()
        self._provider: TracerProvider | None = None
        self._metrics: OTLPMetricExporter | None = None
        self._sending: asyncio.Task[None] | None = None
        off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        if not off and os.environ.get("OTEL_METRICS_EXPORTER", "otlp") == "otlp":
            self._metrics = OTLPMetricExporter()
        most_links = SpanLimits().max_links or 0
        self.tracing = OtelTracing(self._tracers(off=off), settings.group, most_links)

    def _tracers(self, *, off: bool) -> trace.TracerProvider:
        present = trace.get_tracer_provider()
        if off or not isinstance(present, trace.ProxyTracerProvider):
            return present
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp":
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(self._provider)
        return self._provider

    async def __aenter__(self) -> Self:
        if self._metrics is not None:
            self._sending = asyncio.create_task(self._send_metrics(self._metrics))
        return self

    async def _send_metrics(self, exporter: OTLPMetricExporter) -> None:
        interval = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _METRIC_INTERVAL)
        while True:
            await anyio.sleep(float(interval) / 1000)
            await self._abandonable(self._export, exporter)

    def _export(self, exporter: OTLPMetricExporter) -> None:
        now = time.time_ns()
        data = metrics_data(self._registry, self._resource, began=self._began, now=now)
        result = exporter.export(data)  # it logs its errors
        assert isinstance(result, MetricExportResult)  # noqa: S101

    async def __aexit__(self, *_: object) -> None:
        if self._sending is not None:
            self._sending.cancel()
            with suppress(asyncio.CancelledError):
                await self._sending
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._abandonable(self._close)

    def _close(self) -> None:
        if self._provider is not None:
            self._provider.shutdown()
        if self._metrics is not None:
            self._export(self._metrics)
            self._metrics.shutdown()

    async def _abandonable(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call in a daemon thread: a collector that hangs does not keep the process."""
        await run_in_thread(call, *arguments, abandon_on_cancel=True)


def _resource(settings: Settings) -> Resource:
    """Describe the worker; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""
    instance = settings.group_instance_id or f"{socket.gethostname()}-{os.getpid()}"
    ours = Resource(
        {
            SERVICE_NAME: "kmr",
            SERVICE_INSTANCE_ID: instance,
            "service.version": installed_version() or "",
            "kmr.group": settings.group,
            "kmr.strategy": settings.strategy or "",
        }
    )
    named = set(OTELResourceDetector().detect().attributes)
    theirs = {
        name: value
        for name, value in Resource.create().attributes.items()
        # Without the variables the SDK makes them up: the id anew in each process.
        if name in named or name not in (SERVICE_NAME, SERVICE_INSTANCE_ID)
    }
    return ours.merge(Resource(theirs))


_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_UNITS: Final = {"seconds": "s", "bytes": "By"}
_UNKNOWN: Final[Any] = None  # optional in the protocol


def metrics_data(
    registry: CollectorRegistry, resource: Resource, *, began: int, now: int
) -> MetricsData:
    """Return the metrics of this moment, without those that describe the worker: the resource does.

    Args:
        began: when counting began, in nanoseconds since 1970.
        now: the time of the values.
    """
    metrics = [
        made for family in registry.collect() if (made := _metric(family, began, now)) is not None
    ]
    scope = InstrumentationScope("kmr", installed_version())
    scoped = ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scoped], schema_url="")])


def _metric(family: Family, began: int, now: int) -> Metric | None:
    data: Sum | Gauge | Histogram
    match family.type:
        case "counter":
            data = Sum(_numbers(family.samples, began, now), _CUMULATIVE, is_monotonic=True)
        case "gauge":
            data = Gauge(_numbers(family.samples, 0, now))
        case "histogram":
            data = Histogram(_histograms(family.samples, began, now), _CUMULATIVE)
        case _:
            return None
    if not data.data_points:
        return None
    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    return Metric(family.name, family.documentation, unit, data)


def _numbers(samples: Iterable[Sample], began: int, now: int) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(dict(each.labels), began, now, each.value)
        for each in samples
        if not each.name.endswith("_created")
    ]


def _histograms(samples: Iterable[Sample], began: int, now: int) -> list[HistogramDataPoint]:
    """Make one point of the samples of each set of labels; buckets become counts of their own."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    points = []
    for labels, reached in buckets.items():
        below = [0, *(int(count) for _, count in reached)]
        counts = [high - low for low, high in pairwise(below)]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=began,
                time_unix_nano=now,
                count=below[-1],
                sum=sums.get(labels, 0.0),
                bucket_counts=counts,
                explicit_bounds=[bound for bound, _ in reached if bound != math.inf],
                min=_UNKNOWN,
                max=_UNKNOWN,
            )
        )
    return points
