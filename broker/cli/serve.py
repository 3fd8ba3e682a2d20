"""`kmr broker serve`: run the bundled broker."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import threading
import time
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import structlog
from cyclopts import Parameter

from kmr.config.flags import Given, settings_flags
from kmr.errors import SettingsError
from kmr.service import LogFormat, LogLevel  # noqa: TC001  cyclopts reads the annotations
from kmr.service.logs import log_to_stderr
from kmr.service.notify import ServiceState, notifying

from ..broker import Broker
from ..settings import BROKER, BrokerSettings
from .terminal import UsageError, runs, say

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_EXCEEDED: Final = 3
"""Exit code of a process that did not stop in time."""

logger = structlog.get_logger(__name__)


class StopSignal:
    """Waits for SIGTERM or SIGINT; a second signal ends the process with 128 + its number."""

    def __init__(self) -> None:
        self._received = asyncio.Event()
        self.name = ""
        """Name of the first signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._receive, number)

    async def wait(self) -> None:
        await self._received.wait()

    def _receive(self, number: signal.Signals) -> None:
        if self._received.is_set():
            os._exit(128 + number)
        self.name = number.name
        self._received.set()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """End the process if the block takes longer, even if a disk or the event loop hangs."""
    timer = threading.Timer(seconds, _give_up, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float) -> None:
    logger.error(
        "the broker did not stop in time, its process ends; the next start checks the logs",
        deadline_seconds=seconds,
    )
    os._exit(DEADLINE_EXCEEDED)


_YOUNG_OBJECTS, _GENERATIONS = 20_000, 20  # Python's defaults: 700, 10


_FIRST = (
    "config", "data_dir", "host", "port", "advertised_host", "http_port", "partitions",
    "auto_create_topics", "retention_seconds", "retention_bytes", "fsync", "users_file",
    "acl_file", "tls_certificate", "tls_key", "log_level", "log_format", "registry_port",
)  # fmt: skip


@settings_flags(BROKER, first=_FIRST)
@runs
async def serve(
    *,
    given: Given[BrokerSettings],
    log_level: Annotated[LogLevel, Parameter(env_var="KMR_LOG__LEVEL")] = "info",
    log_format: Annotated[LogFormat, Parameter(env_var="KMR_LOG__FORMAT")] = "console",
    registry_port: Annotated[int | None, Parameter(env_var="KMR_BROKER__REGISTRY_PORT")] = None,
) -> None:
    """Run the bundled broker: Kafka's protocol in one process, records on the local disk.

    Prints one line with its address when it is ready. The first SIGTERM or SIGINT (Ctrl-C) stops it
    cleanly: it answers open requests, then syncs and closes the logs. A second signal ends the process
    at once. Acknowledged records survive both, within the guarantee of --fsync.

    Exit codes: 0 stopped, 1 failed, 2 wrong usage or settings, 3 not stopped within --shutdown-deadline,
    130 or 143 ended by the second signal.

    Parameters
    ----------
    log_level
        Lowest level that is logged to stderr.
    log_format
        console (a line for people) or json.
    registry_port
        Serve a schema registry (Confluent's REST API) on this port too; 0 takes any free one. It has the
        address of the HTTP port, and the broker's certificate, users and rules.
    """
    log_to_stderr(log_level, log_format, quiet=("aiokafka", "asyncio", "uvicorn"))
    try:
        settings = given.load()
        if registry_port is not None:
            from .registry import check_registry, registry_beside  # its client is large

            check_registry(settings, registry_port)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    stop = StopSignal()
    _allow_many_files()
    phase = "starting"

    def look() -> ServiceState:
        return ServiceState(phase == "serving", live=True, stopping=phase == "stopping", text=phase)

    async with notifying(look), AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(settings))
        registry = None
        if registry_port is not None:
            registry = await stack.enter_async_context(registry_beside(broker, registry_port))
            broker.metrics.registry.register(registry.metrics)
        _spare_the_collector()
        _announce(broker, None if registry is None else registry.url)
        phase = "serving"
        await stop.wait()
        phase = "stopping"
        began = time.monotonic()
        logger.info("broker stopping", signal=stop.name)
        with deadline(settings.shutdown_deadline):
            await stack.aclose()
        logger.info("broker stopped", seconds=round(time.monotonic() - began, 3))


def _announce(broker: Broker, registry_url: str | None) -> None:
    settings, http = broker.settings, broker.http_url
    metrics = "" if http is None else f", metrics on {http}/metrics"
    registry = "" if registry_url is None else f", schemas on {registry_url}"
    addresses = broker.bootstrap_servers
    if len(broker.listeners) > 1:
        addresses = ", ".join(f"{address} ({name})" for name, address in broker.listeners.items())
    say(f"listening on {addresses}, data in {settings.data_dir}{metrics}{registry}")
    logger.info(
        "broker started",
        address=broker.bootstrap_servers,
        data_dir=str(settings.data_dir),
        listeners={each.name: each.protocol for each in settings.addresses()},
        fsync=settings.fsync,
        http=http,
        registry=registry_url,
        pid=os.getpid(),
    )


def _allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: each partition keeps a few open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _spare_the_collector() -> None:
    """Run the garbage collector rarely: requests make short-lived objects and no cycles.

    With requests of 30 records, the collector took 9 % of the broker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _GENERATIONS, _GENERATIONS)
