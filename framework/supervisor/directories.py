"""The ClickHouse directories of a strategy, served to all workers: only one process can open each."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio

from .._extras import require_extra
from ..errors import KmrError
from .messages import Served

if TYPE_CHECKING:
    from types import TracebackType


class Directories:
    """Serves a directory from the first request for it until the end of the context."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._served: dict[str, str] = {}
        self._lock = anyio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def serve(self, path: str) -> Served:
        """Return the URL of a directory, and serve it from now on; return the problem if that fails."""
        async with self._lock:
            try:
                if path not in self._served:
                    self._served[path] = await self._start(path)
                return Served(self._served[path])
            except Exception as error:  # noqa: BLE001  the worker raises it
                reason = str(error) if isinstance(error, KmrError) else repr(error)
                return Served(None, f"the supervisor cannot serve {path}: {reason}")

    async def _start(self, path: str) -> str:
        require_extra("embedded", "The embedded ClickHouse")
        from ..embedded.server import EmbeddedClickHouse

        server = await self._stack.enter_async_context(EmbeddedClickHouse(path))
        return server.url
