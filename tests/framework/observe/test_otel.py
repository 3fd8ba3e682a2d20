"""Traces and metrics of OpenTelemetry: spans of batches and flushes, links to producers, and what is sent."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import Histogram, Sum
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kmr.errors import SettingsError
from kmr.mapping.functions import map_record
from kmr.observe.metrics import Metrics
from kmr.observe.otel import OtelTracing, Telemetry, metrics_data, producers_of
from kmr.record import SCHEMA, Batch, Record
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import NEW, Write
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, batch_of

from ..workers import P0, locate, running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from kmr.broker import Broker

    from ..conftest import CreateTopic, Produce


def traceparent(number: int) -> bytes:
    return b"00-%032x-%016x-01" % (number, number)


def traced(first: int, parents: Sequence[bytes | None]) -> Batch:
    """A batch whose records have these headers `traceparent`, among others."""
    records = batch_of("t", 0, first, [b"v"] * len(parents)).records
    headers = [
        None
        if parent is None
        else [{"key": "other", "value": b"x"}, {"key": "traceparent", "value": parent}]
        for parent in parents
    ]
    column = pa.array(headers, SCHEMA.field("headers").type)
    at = SCHEMA.get_field_index("headers")
    return Batch.of(records.set_column(at, SCHEMA.field("headers"), column))


class Traced:
    """A worker whose spans are kept."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.metrics = Metrics()
        self.metrics.tracing = OtelTracing(self.provider, "g", 128)
        self.consumer = MemoryConsumer()

    async def run(self, strategy: Strategy, *batches: Batch, **settings: Any) -> list[ReadableSpan]:
        """Process the batches, and return the spans in the order of their ends."""
        for batch in batches:
            self.consumer.put(batch)
        with anyio.fail_after(60):
            async with running(strategy, self.consumer, metrics=self.metrics, **settings) as worker:
                # Else the first batch is mapped in parts: nothing is known yet of the size of its rows.
                worker.pipeline.intake.budget.learn("t", 1, 0)
                worker.pipeline.intake.budget.limit = 2**40
                await self.consumer.rebalance([P0])
                while worker.status().settled < sum(map(len, batches)):  # noqa: ASYNC110
                    await anyio.sleep(0.001)
        return list(self.exporter.get_finished_spans())


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


async def test_a_batch_and_a_flush_are_spans_linked_to_the_producers_of_their_records() -> None:
    parents = [traceparent(7), None, traceparent(7), b"not a traceparent", traceparent(9)]
    strategy = Strategy(locate, [MemoryWriter(Journal(), max_rows=5)])
    batch, flush = await Traced().run(strategy, traced(3, parents))
    assert batch.name == "process t"
    assert batch.kind == trace.SpanKind.CONSUMER
    assert linked(batch) == linked(flush) == [7, 9]
    assert dict(batch.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "g",
        "messaging.kafka.offset": 3,
        "kmr.offset.last": 7,
        "messaging.batch.message_count": 5,
        "kmr.map.rows": 5,
        "kmr.map.failed": 0,
        "kmr.map.retries": 0,
    }
    assert flush.name == "flush reduce-1"
    found = dict(flush.attributes or {})
    assert found.pop("kmr.flush.bytes") == 80
    assert found == {
        "messaging.system": "kafka",
        "messaging.consumer.group.name": "g",
        "messaging.destination.name": "t",
        "messaging.batch.message_count": 5,
        "kmr.stage": "reduce-1",
        "kmr.flush.reason": "count",
        "kmr.flush.rows": 5,
        "kmr.flush.partitions": 1,
        "kmr.offsets": ("t-0[3..7]",),
    }


async def test_a_span_of_the_users_map_is_inside_that_of_its_batch() -> None:
    traced_worker = Traced()
    tracer = traced_worker.provider.get_tracer("of the user")

    @map_record
    def asks(record: Record) -> dict[str, int]:
        with tracer.start_as_current_span("ask"):
            return {"p": record.partition, "o": record.offset}

    strategy = Strategy(asks, [MemoryWriter(Journal(), max_rows=1)])
    spans = await traced_worker.run(strategy, traced(0, [None]), executor="thread")
    ask, batch = (
        next(each for each in spans if each.name == name) for name in ("ask", "process t")
    )
    assert ask.parent is not None
    assert batch.context is not None
    assert ask.parent.span_id == batch.context.span_id


async def test_links_are_bounded_and_the_rest_is_counted() -> None:
    parents = [traceparent(number) for number in range(1, 201)]
    strategy = Strategy(locate, [MemoryWriter(Journal(), max_rows=200)])
    for span in await Traced().run(strategy, traced(0, parents)):
        assert linked(span) == [*range(1, 129)]
        assert (span.attributes or {})["kmr.links.dropped"] == 72


async def test_attempts_that_are_repeated_are_events_of_the_span_of_their_flush() -> None:
    class Slow(MemoryWriter):
        failures = 2

        async def flush(self, write: Write = NEW) -> None:
            if Slow.failures:
                Slow.failures -= 1
                raise Retry("the sink is busy", after=0.0)
            await super().flush()

    _, flush = await Traced().run(
        Strategy(locate, [Slow(Journal(), max_rows=1)]), traced(0, [None])
    )
    assert [(each.name, dict(each.attributes or {})) for each in flush.events] == [
        ("retry", {"kmr.reason": "the sink is busy"})
    ] * 2


async def test_an_error_ends_the_span_as_one() -> None:
    traced_worker = Traced()
    batch = traced(0, [None])
    with pytest.raises(RuntimeError, match="no room"):
        async with traced_worker.metrics.tracing.mapping(batch):
            raise RuntimeError("no room")
    (span,) = traced_worker.exporter.get_finished_spans()
    assert span.status.status_code == trace.StatusCode.ERROR
    assert span.events[0].name == "exception"


def test_only_the_records_of_a_slice_are_looked_at() -> None:
    batch = traced(0, [traceparent(number) for number in range(1, 6)])
    assert producers_of([batch.slice(1, 2).records.column("headers")]) == [
        traceparent(number).decode() for number in (2, 3)
    ]
    assert producers_of([batch_of("t", 0, 0, [b"x"]).records.column("headers")]) == []


def test_an_exporter_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(SettingsError, match="'grpc' is not supported; it is http/protobuf"):
        Telemetry(Settings(topics=("t",), group="g", otel=True), Metrics().registry)


class Collector:
    """Receives OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: Counter[str] = Counter()

    async def traces(self, request: web.Request) -> web.Response:
        received = ExportTraceServiceRequest.FromString(await request.read())
        for each in received.resource_spans:
            pairs = each.resource.attributes
            self.resources.append({pair.key: pair.value.string_value for pair in pairs})
            self.spans += [span for scope in each.scope_spans for span in scope.spans]
        return web.Response()

    async def metrics_of(self, request: web.Request) -> web.Response:
        received = ExportMetricsServiceRequest.FromString(await request.read())
        for each in received.resource_metrics:
            pairs = each.resource.attributes
            self.resources.append({pair.key: pair.value.string_value for pair in pairs})
            for scope in each.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.sum.data_points:
                        self.metrics[metric.name] = int(point.as_double)
        return web.Response()


STRATEGY = """
from kmr import Strategy, map_record
from kmr.sinks import StreamWriter

@map_record
def length(record):
    return {"length": len(record.value)}

strategy = Strategy(length, reduce=[StreamWriter("stdout")])
"""
RUN = "import sys; from kmr.cli import main; sys.argv[0] = 'kmr'; main()"


async def test_a_worker_with_otel_sends_spans_and_metrics_to_a_collector(
    broker: Broker,
    create_topic: CreateTopic,
    produce: Produce,
    tmp_path: Path,
    aiohttp_url: Callable[[web.Application], Any],
) -> None:
    await create_topic("t")
    headers = [("traceparent", traceparent(77))]
    await produce("t", [b"x", b"yy"], headers=headers)
    (tmp_path / "flow.py").write_text(STRATEGY)
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.traces)
    app.router.add_post("/v1/metrics", collector.metrics_of)
    flags = {"--topic": "t", "--group": "g", "--bootstrap-servers": broker.bootstrap_servers}
    flags["--group-instance-id"] = "hits-0"
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [
                *(sys.executable, "-c", RUN, "run", "flow", "--otel", "--until-caught-up"),
                *(part for pair in flags.items() for part in pair),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OTEL_EXPORTER_OTLP_ENDPOINT": await aiohttp_url(app),
                "OTEL_SERVICE_NAME": "hits",
            },
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(span.name for span in collector.spans) == ["flush reduce-1", "process t"]
    for span in collector.spans:
        assert [link.trace_id for link in span.links] == [(77).to_bytes(16)]
    assert {each["service.name"] for each in collector.resources} == {"hits"}
    assert {each["kmr.group"] for each in collector.resources} == {"g"}
    assert {each["service.instance.id"] for each in collector.resources} == {"hits-0"}
    assert collector.metrics["kmr_settled_records"] == 2


@pytest.fixture
async def aiohttp_url() -> Any:
    """Serves applications on loopback until the end of the test."""
    runners = []

    async def serve(app: web.Application) -> str:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield serve
    for runner in runners:
        await runner.cleanup()


def test_the_metrics_are_those_of_prometheus() -> None:
    metrics = Metrics()
    metrics.consumed.labels("t").inc(5)
    metrics.map_seconds.observe(0.004)
    metrics.map_seconds.observe(100)
    data = metrics_data(metrics.registry, Resource.get_empty(), began=1, now=2)
    ((scope,),) = [each.scope_metrics for each in data.resource_metrics]
    found = {each.name: each for each in scope.metrics}
    consumed, seconds = found["kmr_consumed_records"].data, found["kmr_map_seconds"]
    assert isinstance(consumed, Sum)
    (point,) = consumed.data_points
    assert (point.attributes, point.value, point.start_time_unix_nano) == ({"topic": "t"}, 5, 1)
    assert isinstance(seconds.data, Histogram)
    assert seconds.unit == "s"
    (histogram,) = seconds.data.data_points
    assert (histogram.count, histogram.sum) == (2, 100.004)
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    filled = {
        bound: count
        for bound, count in zip(
            (*histogram.explicit_bounds, "more"), histogram.bucket_counts, strict=True
        )
        if count
    }
    assert filled == {0.005: 1, 300: 1}
    assert "kmr_worker" not in found
