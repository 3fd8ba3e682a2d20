"""Latencies and errors of requests, counted at a price that one-message round trips do not notice.

Prometheus' own instruments take a lock for each number: these are for one thread, the event loop's, and
are read when somebody asks for the metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LATENCY_BOUNDS", "RequestMeter", "RequestMeters"]

LATENCY_BOUNDS: Final = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the buckets, in seconds and inclusive; a last bucket has what is above."""


class RequestMeter:
    """The requests of one API.

    Attributes:
        api: its name, as in Kafka's documentation: "Produce".
        buckets: answered requests by latency; see `LATENCY_BOUNDS`.
        seconds: the sum of their latencies.
        errors: by error code, how many times answers had it: once for each partition, group or topic.
    """

    __slots__ = ("api", "buckets", "errors", "seconds")

    def __init__(self, api: str) -> None:
        self.api = api
        self.buckets = [0] * (len(LATENCY_BOUNDS) + 1)
        self.seconds = 0.0
        self.errors: Counter[int] = Counter()

    def answered(self, seconds: float) -> None:
        """Count a request that took so long."""
        self.buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.seconds += seconds


class RequestMeters:
    """The meters of all APIs; one exists from its first request on."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """`names`: of the APIs, by key."""
        self._names = names
        self._meters: dict[int, RequestMeter] = {}

    def __iter__(self) -> Iterator[RequestMeter]:
        return iter(tuple(self._meters.values()))

    def of(self, key: int) -> RequestMeter:
        """The meter of an API."""
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = RequestMeter(self._names[key])
        return meter
