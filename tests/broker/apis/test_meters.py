"""Latencies and errors of requests, as numbers."""

from __future__ import annotations

from kmr.broker.apis.meters import LATENCY_BOUNDS, RequestMeters


def test_a_request_is_counted_in_the_first_bucket_that_it_fits() -> None:
    meter = RequestMeters({0: "Produce"}).of(0)
    for seconds in (0.0, LATENCY_BOUNDS[0], 0.3, 1_000.0):
        meter.answered(seconds)
    counted = {at: count for at, count in enumerate(meter.buckets) if count}
    assert counted == {0: 2, LATENCY_BOUNDS.index(0.5): 1, len(LATENCY_BOUNDS): 1}
    assert meter.seconds == LATENCY_BOUNDS[0] + 0.3 + 1_000.0


def test_an_api_has_a_meter_from_its_first_request_on() -> None:
    meters = RequestMeters({0: "Produce", 1: "Fetch"})
    assert list(meters) == []
    fetch = meters.of(1)
    fetch.errors[3] += 1
    assert meters.of(1) is fetch
    assert [(meter.api, dict(meter.errors)) for meter in meters] == [("Fetch", {3: 1})]
