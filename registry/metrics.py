"""The registry's metrics: requests by method and status, and what it holds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .state import RegistryState


_METHODS: Final = ("GET", "POST", "PUT", "DELETE")  # clients may send any word


class RegistryMeter(Collector):
    """Counts answers, and reads the state at each scrape. For one thread, the event loop's."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._answers = Counter[tuple[str, str]]()

    def answered(self, method: str, status: int) -> None:
        """Count an answer."""
        self._answers[method if method in _METHODS else "other", str(status)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the current values."""
        requests = CounterMetricFamily(
            "kmr_registry_requests_total",
            "Requests to the schema registry, by method and HTTP status; errors are those from 400 on.",
            labels=("method", "status"),
        )
        for labels, count in self._answers.items():
            requests.add_metric(labels, count)
        yield requests
        for name, meaning, value in (
            ("schemas", "Schemas with an id of their own.", self._state.schema_count),
            ("subjects", "Subjects with at least one version.", len(self._state.subjects)),
        ):
            yield GaugeMetricFamily(f"kmr_registry_{name}", meaning, value)


class CountedAnswers:
    """Middleware that counts the status of each answer."""

    def __init__(self, app: ASGIApp, meter: RegistryMeter) -> None:
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._meter.answered(scope["method"], message["status"])
            await send(message)

        await self._app(scope, receive, counted)
