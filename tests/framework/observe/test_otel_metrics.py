"""Prometheus' metrics as OpenTelemetry's."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import Histogram, Sum
from opentelemetry.sdk.resources import Resource

from kmr.observe.metrics import Metrics
from kmr.observe.otel_metrics import metrics_data


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
