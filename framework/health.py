"""What a worker tells over HTTP: `/live`, `/ready`, `/metrics`, `/status`, and a page for people."""

from __future__ import annotations

import errno
import socket
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from framework.errors import SettingsError
from service.http import FRESH, HttpServer, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from framework.status import WorkerStatus
    from framework.telemetry import Metrics

__all__ = ["HealthServer", "build_app"]

# The page is one file: it loads nothing, and only asks its own server.
_PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def build_app(status: Callable[[], WorkerStatus], metrics: Metrics) -> Starlette:
    """The endpoints, as an ASGI application.

    `/live` and `/ready` answer 200, or 503 with the reason as text; `/status` is a `WorkerStatus` as
    JSON.
    """
    page = resources.files("framework").joinpath("health.html").read_text(encoding="utf-8")

    async def index(_: Request) -> Response:
        return HTMLResponse(page, headers={**FRESH, "Content-Security-Policy": _PAGE_POLICY})

    async def live(_: Request) -> Response:
        now = status()
        return verdict("" if now.live else now.problem or "nothing moves")

    async def ready(_: Request) -> Response:
        now = status()
        return verdict("" if now.ready else now.problem or f"the worker is {now.state}")

    async def current(_: Request) -> Response:
        body = msgspec.json.encode(status())
        return Response(body, media_type="application/json", headers=FRESH)

    async def prometheus(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"Content-Type": content_type})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/live", live),
            Route("/ready", ready),
            Route("/status", current),
            Route("/metrics", prometheus),
        ]
    )


class HealthServer(HttpServer):
    """Tells of one worker.

    Args:
        host: the address to listen on.
        port: 0 takes any free port; `url` says which.
        status: asked at every request; must not block.
        metrics: what `/metrics` shows.

    Raises:
        SettingsError: on entering, when the address cannot be had.
    """

    def __init__(
        self, host: str, port: int, status: Callable[[], WorkerStatus], metrics: Metrics
    ) -> None:
        super().__init__(build_app(status, metrics), partial(_listen, host, port))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except socket.gaierror as error:
        raise SettingsError(f"http.host: {host!r} is no address of this machine") from error
    except OSError as error:
        raise SettingsError(_refusal(host, port, error)) from error


def _refusal(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"http.port: {port} on {host} is taken by another process; "
                "choose another with --http-port, or 0 for any free one"
            )
        case errno.EACCES:
            return f"http.port: no permission to listen on {port}; choose one above 1023"
        case errno.EADDRNOTAVAIL:
            return f"http.host: {host!r} is no address of this machine"
        case _:
            return f"cannot listen on {host}:{port}: {error.strerror}"
