"""The HTTP server of a broker: `/live`, `/ready`, `/metrics`."""

from __future__ import annotations

from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Self

import anyio
import uvicorn
from anyio import to_thread
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from broker.server.server import bind

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Iterator
    from types import TracebackType

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from starlette.requests import Request

    from broker.health.health import Health

__all__ = ["HttpServer", "build_app"]

_GRACE_SECONDS: Final = 1
_FRESH: Final = {"Cache-Control": "no-store"}


def build_app(health: Health, registry: CollectorRegistry) -> Starlette:
    """The endpoints, as an ASGI application.

    `/live` and `/ready` answer 200, or 503 with the reason as text; `/metrics` in the format that is
    asked for, Prometheus' own or OpenMetrics.
    """

    async def live(_: Request) -> Response:
        return _verdict(health.live())

    async def ready(_: Request) -> Response:
        return _verdict(await health.ready())

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # Read here, where nothing changes meanwhile; the writing takes longer, and is done elsewhere.
        body = await to_thread.run_sync(encode, _Read(registry))
        return Response(body, headers={"Content-Type": content_type, **_FRESH})

    return Starlette(
        routes=[Route("/live", live), Route("/ready", ready), Route("/metrics", metrics)]
    )


class _Read:
    """What a registry had to say, for the functions that write it down."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = list(registry.collect())

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _verdict(problem: str) -> Response:
    return PlainTextResponse(
        f"{problem or 'ok'}\n", status_code=503 if problem else 200, headers=_FRESH
    )


class HttpServer:
    """Serves the endpoints from a task of the broker's own event loop, so that it stalls when that does.

    Leaving takes at most about a second, for requests that are being answered. Raises BrokerError, on
    entering, when the address cannot be had.
    """

    def __init__(self, host: str, port: int, health: Health, registry: CollectorRegistry) -> None:
        """`port`: 0 takes any free one; `url` says which."""
        self._host = host
        self._port = port
        self._app = build_app(health, registry)
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Where it listens: `http://127.0.0.1:8080`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Self:
        listener = bind(self._host, self._port)
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
    """Uvicorn as a task among others: it leaves signals to the broker."""

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
