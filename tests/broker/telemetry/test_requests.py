"""Latencies are counted in the bucket that they belong to."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from broker.telemetry.requests import LATENCY_BOUNDS, RequestMeter, RequestMeters


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from(LATENCY_BOUNDS))))
def test_buckets_are_those_of_prometheus_own_histogram(latencies: list[float]) -> None:
    meter = RequestMeter("Produce")
    registry = CollectorRegistry()
    theirs = Histogram("latency", "", buckets=LATENCY_BOUNDS, registry=registry)
    for each in latencies:
        meter.answered(each)
        theirs.observe(each)
    counted = 0
    for bound, number in zip((*map(str, LATENCY_BOUNDS), "+Inf"), meter.buckets, strict=True):
        counted += number
        assert registry.get_sample_value("latency_bucket", {"le": bound}) == counted
    assert registry.get_sample_value("latency_sum") == meter.seconds


def test_an_api_has_one_meter_from_its_first_request_on() -> None:
    meters = RequestMeters({0: "Produce", 1: "Fetch"})
    assert list(meters) == []
    meter = meters.of(1)
    assert meters.of(1) is meter
    assert [each.api for each in meters] == ["Fetch"]
