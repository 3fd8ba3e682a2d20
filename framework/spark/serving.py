"""`/live`, `/ready`, `/metrics` and the page of a worker, for the engine's driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from framework.health import HealthServer
from framework.spark.client import event_loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from framework.settings import HttpSettings
    from framework.status import WorkerStatus
    from framework.telemetry import Metrics

__all__ = ["Serving"]


class Serving:
    """Serves from the process's event loop, between `start` and `stop`.

    Attributes:
        url: where; None when the settings name no port.
    """

    def __init__(
        self, settings: HttpSettings, status: Callable[[], WorkerStatus], metrics: Metrics
    ) -> None:
        self._settings = settings
        self._status = status
        self._metrics = metrics
        self._ended: Future[None] | None = None
        self._stop = asyncio.Event()
        self.url: str | None = None

    def start(self) -> None:
        """Listen. Raises SettingsError when the port cannot be had."""
        if self._settings.port is None:
            return
        ready: asyncio.Queue[str] = asyncio.Queue()
        self._ended = asyncio.run_coroutine_threadsafe(self._serve(ready), event_loop())
        first = asyncio.run_coroutine_threadsafe(ready.get(), event_loop())
        self._ended.add_done_callback(lambda _: first.cancel())
        try:
            self.url = first.result()
        except BaseException:
            self._ended.result()  # its own error says more
            raise

    async def _serve(self, ready: asyncio.Queue[str]) -> None:
        port = self._settings.port
        async with HealthServer(
            self._settings.host, port or 0, self._status, self._metrics
        ) as server:
            ready.put_nowait(server.url)
            await self._stop.wait()

    def stop(self) -> None:
        """Listen no more."""
        if self._ended is not None:
            event_loop().call_soon_threadsafe(self._stop.set)
            self._ended.result()
            self._ended = None
