"""An HTTP server for health and metrics, on the event loop of a worker or a broker."""

from __future__ import annotations

from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import anyio
import uvicorn
from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType

    from starlette.applications import Starlette

FRESH: Final = {"Cache-Control": "no-store"}
"""Headers of responses that must not be cached."""

_GRACE_SECONDS: Final = 2


def verdict(problem: str, warnings: str = "") -> Response:
    """Make the response of `/live` and `/ready`: 200, or 503 with the problem as text; then the warnings."""
    text = f"{problem or 'ok'}; {warnings}" if warnings else problem or "ok"
    return PlainTextResponse(f"{text}\n", status_code=503 if problem else 200, headers=FRESH)


@dataclass(eq=False)
class HttpServer:
    """Serves an application from a task of the process's own event loop: when that stalls, so does it.

    Use it as the outermost context, so that it reports on everything inside until its end. Leaving waits up
    to two seconds for requests that are being answered.

    Args:
        app: the application.
        listen: opens the socket on entering; its errors propagate.
        tls: if given, connections must be encrypted.
        beside: runs while the server does, and is cancelled on leaving.
    """

    app: Starlette
    listen: Callable[[], socket.socket]
    tls: ssl.SSLContext | None = None
    beside: Callable[[], Awaitable[None]] | None = None
    _address: tuple[str, int] = field(default=("", 0), init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    @property
    def url(self) -> str:
        """The address: `http://127.0.0.1:8080`; with TLS `https`."""
        host, port = self._address
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def __aenter__(self) -> Self:
        listener = self.listen()
        self._address = listener.getsockname()[:2]
        config = uvicorn.Config(
            self.app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        config.load()
        config.ssl = self.tls  # uvicorn's settings take names of files
        server = _Server(config)
        async with AsyncExitStack() as stack:
            stack.callback(listener.close)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(server.stop)
            group.start_soon(server.run_until_stopped, listener)
            await server.listening.wait()
            if self.beside is not None:
                scope = anyio.CancelScope()
                stack.callback(scope.cancel)
                group.start_soon(_run_in, scope, self.beside)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if isinstance(error, Exception):
            # From the body: propagate it unchanged; the task group would wrap it in an exception group.
            await self._stack.aclose()
            return False
        return await self._stack.__aexit__(kind, error, traceback)


async def _run_in(scope: anyio.CancelScope, function: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await function()


class _Server(uvicorn.Server):
    """Uvicorn as a task: signals stay with the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()

    async def run_until_stopped(self, listener: socket.socket) -> None:
        # Shielded: it closes its connections on `stop` only.
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
