"""What a worker tells over HTTP: `/live`, `/ready`, `/metrics`, `/status`, and a page for people."""

from __future__ import annotations

import errno
import socket
from contextlib import AsyncExitStack, contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Final, Self

import anyio
import msgspec
import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from framework.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from starlette.requests import Request

    from framework.status import WorkerStatus
    from framework.telemetry import Metrics

__all__ = ["HealthServer", "build_app"]

_GRACE_SECONDS: Final = 2
_FRESH: Final = {"Cache-Control": "no-store"}
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
        return HTMLResponse(page, headers={**_FRESH, "Content-Security-Policy": _PAGE_POLICY})

    async def live(_: Request) -> Response:
        now = status()
        return _verdict(ok=now.live, reason=now.problem or "nothing moves")

    async def ready(_: Request) -> Response:
        now = status()
        return _verdict(ok=now.ready, reason=now.problem or f"the worker is {now.state}")

    async def current(_: Request) -> Response:
        body = msgspec.json.encode(status())
        return Response(body, media_type="application/json", headers=_FRESH)

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


def _verdict(*, ok: bool, reason: str) -> Response:
    return PlainTextResponse(
        "ok\n" if ok else f"{reason}\n", status_code=200 if ok else 503, headers=_FRESH
    )


class HealthServer:
    """Serves the endpoints from a task of the worker's own event loop, so that it stalls when that does.

    Use it as the outermost context of a worker: what is inside is told about until its end. Leaving
    takes at most about two seconds, for requests that are being answered.

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
        self._host = host
        self._port = port
        self._app = build_app(status, metrics)
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Where it listens: `http://127.0.0.1:8080`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Self:
        listener = _listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        server = _Server(
            uvicorn.Config(
                self._app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        async with AsyncExitStack() as stack:
            stack.callback(listener.close)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(server.stop)
            group.start_soon(server.run_until_stopped, listener)
            await server.listening.wait()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if isinstance(error, Exception):
            # The task group would wrap it; it is not ours, and goes on as it is.
            await self._stack.aclose()
            return False
        return await self._stack.__aexit__(kind, error, traceback)


class _Server(uvicorn.Server):
    """Uvicorn as a task among others: it leaves signals to the worker."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()

    async def run_until_stopped(self, listener: socket.socket) -> None:
        # Shielded, because only `stop` makes it close its connections.
        with anyio.CancelScope(shield=True):
            await self.serve(sockets=[listener])

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


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
