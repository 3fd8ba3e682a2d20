"""The HTTP server of a broker: `/live`, `/ready`, `/metrics`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from broker.server.server import bind
from service.http import FRESH, HttpServer, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from starlette.requests import Request

    from broker.health.health import Health

__all__ = ["HealthServer", "build_app"]


def build_app(health: Health, registry: CollectorRegistry) -> Starlette:
    """The endpoints, as an ASGI application.

    `/live` and `/ready` answer 200, or 503 with the reason as text; `/metrics` in the format that is
    asked for, Prometheus' own or OpenMetrics.
    """

    async def live(_: Request) -> Response:
        return verdict(health.live())

    async def ready(_: Request) -> Response:
        return verdict(await health.ready())

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # Read here, where nothing changes meanwhile; the writing takes longer, and is done elsewhere.
        body = await to_thread.run_sync(encode, _Read(registry))
        return Response(body, headers={"Content-Type": content_type, **FRESH})

    return Starlette(
        routes=[Route("/live", live), Route("/ready", ready), Route("/metrics", metrics)]
    )


class _Read:
    """What a registry had to say, for the functions that write it down."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = list(registry.collect())

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


class HealthServer(HttpServer):
    """Tells of one broker. Raises BrokerError, on entering, when the address cannot be had."""

    def __init__(self, host: str, port: int, health: Health, registry: CollectorRegistry) -> None:
        """`port`: 0 takes any free one; `url` says which."""
        super().__init__(build_app(health, registry), partial(bind, host, port))
