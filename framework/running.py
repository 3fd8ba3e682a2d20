"""Run a worker from a script or a notebook."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import anyio
import structlog

from .config.layers import by_dotted_name
from .errors import SettingsError, StrategyError
from .observe.logs import setup_logs
from .observe.metrics import Metrics
from .observe.tracing import telemetry
from .settings import Settings
from .strategy import Strategy
from .worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .observe.progress import Summary


def run(
    strategy: Strategy,
    *,
    topics: Sequence[str] | str = (),
    group: str | None = None,
    **settings: Any,
) -> Summary:
    """Run a strategy in this process as one worker, until it ends; return what it has done.

    It ends when it has caught up (`until_caught_up=True`), or drains at Ctrl-C, which in a notebook is the
    button that interrupts; a second Ctrl-C ends the call at once. The worker runs in a thread, so an event
    loop may run in the caller's. The process goes on: only `kmr run` ends its process.

    Example:
        ```python
        import kmr
        from kmr.sinks import StreamWriter

        def sizes(record):
            return {"size": len(record.value)}

        def main():
            strategy = kmr.Strategy(map=sizes, reduce=StreamWriter("sizes.jsonl"))
            done = kmr.run(strategy, topics=["orders"], group="try", until_caught_up=True)
            print(done.written, done.failed)
        ```

    Args:
        topics: the topics to read; one may be given as a string.
        group: the consumer group.
        settings: any setting of a worker, such as `bootstrap_servers`, by its name; `fetch`, `http`,
            `log` and `security` take a dict or the object of `kmr.settings`. What is not given comes from
            the environment (`KMR_BOOTSTRAP_SERVERS`), else it is the default.

    Raises:
        StrategyError: it is not a strategy.
        SettingsError: a setting is unknown, missing or not allowed.
        KmrError: the error that ended the worker. What it had settled before is committed.
        DeadlineExceeded: the drain took longer than `shutdown_deadline`.
    """
    if not isinstance(strategy, Strategy):
        raise StrategyError(f"kmr.run: strategy must be a Strategy, not {strategy!r}")
    given = {"topics": topics or None, "group": group} | settings
    found = Settings.load(environ=os.environ, flags=by_dotted_name(given))
    if found.worker_count > 1:
        raise SettingsError(
            f"workers: kmr.run is one worker, not {found.worker_count}; "
            "run several with kmr run --workers"
        )
    if not structlog.is_configured():
        setup_logs(found.log)
    thread = _WorkerThread(strategy, found)
    thread.start()
    try:
        return thread.done.result()
    except KeyboardInterrupt:
        thread.shutdown("interrupted")
        return thread.done.result()


class _WorkerThread(threading.Thread):
    """A worker on an event loop of its own, in a daemon thread: code that hangs does not keep the process.

    Attributes:
        done: gets the summary, or the error that ended the worker.
    """

    def __init__(self, strategy: Strategy, settings: Settings) -> None:
        super().__init__(name="kmr worker", daemon=True)
        self.done: Future[Summary] = Future()
        self._strategy = strategy
        self._settings = settings
        self._reason: str | None = None
        self._running: tuple[asyncio.AbstractEventLoop, Worker] | None = None

    def run(self) -> None:
        try:
            anyio.run(self._work)
        except BaseException as error:  # noqa: BLE001  raised by `done.result()`
            if not self.done.done():
                self.done.set_exception(error)

    def shutdown(self, reason: str) -> None:
        """Request a drain, from another thread."""
        self._reason = reason
        if self._running is not None:
            loop, worker = self._running
            loop.call_soon_threadsafe(worker.shutdown, reason)

    async def _work(self) -> None:
        metrics = Metrics()
        async with telemetry(self._settings, metrics):
            worker = Worker(self._strategy, self._settings, metrics=metrics)
            self._running = asyncio.get_running_loop(), worker
            if self._reason is not None:
                worker.shutdown(self._reason)
            await worker.run()
        # Before the event loop closes, which may wait for the user's threads.
        self.done.set_result(metrics.done)
