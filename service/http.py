"""An HTTP server inside a process that has other things to do: health, metrics."""

from __future__ import annotations

from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Self

import anyio
import uvicorn
from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator
    from types import TracebackType

    from starlette.applications import Starlette

__all__ = ["FRESH", "HttpServer", "verdict"]

FRESH: Final = {"Cache-Control": "no-store"}
"""Headers of what is true only now."""

_GRACE_SECONDS: Final = 2


def verdict(problem: str) -> Response:
    """The answer of `/live` and `/ready`: 200, or 503 with what is wrong as text."""
    return PlainTextResponse(
        f"{problem or 'ok'}\n", status_code=503 if problem else 200, headers=FRESH
    )


class HttpServer:
    """Serves an application from a task of the process's own event loop, so that it stalls when that does.

    Use it as the outermost context: what is inside is told about until its end. Leaving takes at most
    about two seconds, for requests that are being answered.

    Args:
        app: what answers.
        listen: makes the socket, on entering; its errors are raised from there.
    """

    def __init__(self, app: Starlette, listen: Callable[[], socket.socket]) -> None:
        self._app = app
        self._listen = listen
        self._address: tuple[str, int] = ("", 0)
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Where it listens: `http://127.0.0.1:8080`."""
        host, port = self._address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        listener = self._listen()
        self._address = listener.getsockname()[:2]
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
    """Uvicorn as a task among others: it leaves signals to the process."""

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
