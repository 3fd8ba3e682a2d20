"""How long requests took, and with which errors they were answered."""

from __future__ import annotations

import collections
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LATENCY_BOUNDS: Final = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the buckets, in seconds and inclusive; one more bucket counts slower requests."""


class RequestMeter:
    """Latencies and errors of one API's requests.

    Plain numbers for one thread, the event loop's: Prometheus' own instruments take a lock for each
    number, which small requests would notice.

    Attributes:
        api: name in Kafka's documentation, such as "Produce".
        buckets: answered requests by latency; see `LATENCY_BOUNDS`.
        seconds: sum of their latencies.
        errors: count of each error code in responses, once for each partition, group or topic.
    """

    __slots__ = ("api", "buckets", "errors", "seconds")

    def __init__(self, api: str) -> None:
        self.api = api
        self.buckets = [0] * (len(LATENCY_BOUNDS) + 1)
        self.seconds = 0.0
        self.errors = collections.Counter[int]()

    def answered(self, seconds: float, requests: int = 1) -> None:
        """Count a request that took this long, or several."""
        self.buckets[bisect_left(LATENCY_BOUNDS, seconds)] += requests
        self.seconds += seconds * requests


UNCOUNTED: Final = RequestMeter("")
"""The meter of a reply that no dispatcher has seen."""


class RequestMeters:
    """The meters of all APIs; each is made at the API's first request."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """`names`: the APIs' names by API key."""
        self._names = names
        self._meters: dict[int, RequestMeter] = {}

    def __iter__(self) -> Iterator[RequestMeter]:
        return iter(tuple(self._meters.values()))

    def of(self, key: int) -> RequestMeter:
        """Return the meter of an API."""
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = RequestMeter(self._names[key])
        return meter
