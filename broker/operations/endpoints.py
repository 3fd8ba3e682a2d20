"""The broker's HTTP endpoints: `/live`, `/ready` and `/metrics`."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

from anyio import to_thread
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from kmr.service.http import FRESH, HttpServer, verdict

from ..server.server import bind

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request

    from .health import Health


class BrokerHealthServer(HttpServer):
    """HTTP server for one broker's health and metrics.

    Raises BrokerError on entering, if it cannot bind the address.
    """

    def __init__(self, host: str, port: int, health: Health, registry: CollectorRegistry) -> None:
        """`port` 0 takes any free one; see `url`."""
        super().__init__(build_app(health, registry), partial(bind, host, port))


def build_app(health: Health, registry: CollectorRegistry) -> Starlette:
    """Return the endpoints as an ASGI application.

    `/live` and `/ready` answer 200, or 503 with the failure as text; `/live` names what else is wrong.
    `/metrics` answers in the format that the client asks for: Prometheus' text format or OpenMetrics.
    """

    async def live(_: Request) -> Response:
        return verdict(health.live(), health.warnings())

    async def ready(_: Request) -> Response:
        return verdict(await health.ready())

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # Collect in the event loop, where nothing changes meanwhile; encode in a thread, which takes longer.
        families = list(registry.collect())
        body = await to_thread.run_sync(encode, SimpleNamespace(collect=lambda: families))
        return Response(body, headers={"Content-Type": content_type, **FRESH})

    return Starlette(
        routes=[Route("/live", live), Route("/ready", ready), Route("/metrics", metrics)]
    )
