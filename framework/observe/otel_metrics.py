"""The metrics of a registry of Prometheus as those of OpenTelemetry: cumulative sums, gauges, histograms."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from .._extras import installed_version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.resources import Resource
    from prometheus_client import CollectorRegistry
    from prometheus_client import Metric as Family
    from prometheus_client.samples import Sample

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
