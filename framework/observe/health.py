"""The HTTP endpoints of a worker: `/live`, `/ready`, `/metrics`, `/status`, and a page for a browser."""

from __future__ import annotations

import errno
import socket
import time
from collections import deque
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import SettingsError
from ..service.http import FRESH, HttpServer, verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry
    from starlette.requests import Request

    from .metrics import Metrics
    from .status import WorkerStatus


# The page is one file: it loads nothing else, and requests only its own server.
_PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class StatusSource(Protocol):
    """What the endpoints show: of one worker, or of several."""

    async def status(self) -> WorkerStatus:
        """Return the status of this moment."""

    async def registry(self) -> CollectorRegistry:
        """Return the metrics of this moment."""


class OneWorker:
    """The source of the endpoints of one worker.

    Args:
        status: called for every request; must not block.
        metrics: served by `/metrics`.
    """

    def __init__(self, status: Callable[[], WorkerStatus], metrics: Metrics) -> None:
        self._status = status
        self._metrics = metrics

    async def status(self) -> WorkerStatus:
        return self._status()

    async def registry(self) -> CollectorRegistry:
        return self._metrics.registry


def build_app(source: StatusSource, history: StatusHistory) -> Starlette:
    """Make the ASGI application of the endpoints.

    `/live` and `/ready` answer 200, or 503 with the reason as text; `/status` is a `WorkerStatus` as
    JSON, `/history?after=SECONDS` a `HistoryAnswer` with the samples since then.
    """
    page = resources.files(__package__).joinpath("health.html").read_text(encoding="utf-8")

    async def index(_: Request) -> Response:
        return HTMLResponse(page, headers={**FRESH, "Content-Security-Policy": _PAGE_POLICY})

    async def live(_: Request) -> Response:
        now = await source.status()
        return verdict("" if now.live else now.problem or "no progress")

    async def ready(_: Request) -> Response:
        now = await source.status()
        return verdict("" if now.ready else now.problem or f"the worker is {now.state}")

    async def current(_: Request) -> Response:
        body = msgspec.json.encode(await source.status())
        return Response(body, media_type="application/json", headers=FRESH)

    async def past(request: Request) -> Response:
        try:
            after = float(request.query_params.get("after", "0"))
        except ValueError:
            return PlainTextResponse(
                "after: seconds since 1970, such as 1700000000.5\n", status_code=400
            )
        body = msgspec.json.encode(history.past(after))
        return Response(body, media_type="application/json", headers=FRESH)

    async def prometheus(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(await source.registry()), headers={"Content-Type": content_type})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/live", live),
            Route("/ready", ready),
            Route("/status", current),
            Route("/history", past),
            Route("/metrics", prometheus),
        ]
    )


class HealthServer(HttpServer):
    """HTTP server of what a source shows, with an hour of its history.

    Args:
        listen: opens the socket on entering; its errors propagate.
    """

    def __init__(self, source: StatusSource, listen: Callable[[], socket.socket]) -> None:
        history = StatusHistory(source.status)
        super().__init__(build_app(source, history), listen, beside=history.run)

    @classmethod
    def of_worker(
        cls, host: str, port: int, status: Callable[[], WorkerStatus], metrics: Metrics
    ) -> HealthServer:
        """Return the server of one worker; port 0 takes any free one. Entering it raises SettingsError."""
        return cls(OneWorker(status, metrics), partial(listen_on, host, port))


def listen_on(host: str, port: int) -> socket.socket:
    """Open the socket of an HTTP server at `http.host` and `http.port`. Raises SettingsError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise SettingsError(_explain(host, port, error)) from error


def _explain(host: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"http.host: {host!r} is no address of this machine"
    if error.errno == errno.EADDRINUSE:
        return (
            f"http.port: {port} on {host} is taken by another process; "
            "choose another with --http-port, or 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return f"http.port: no permission to listen on {port}; choose one above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror}"


STEP: Final = 5.0
"""Seconds between two samples."""

_HOUR: Final = 3_600.0


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """The figures of one moment, and of the step before it.

    Attributes:
        time: in seconds since 1970.
        consumed: records per second.
        settled: offsets per second.
        lag: records between the watermarks and the ends of the partitions; None while an end is unknown.
        failed: records that failed in the step.
        repeated: attempts to flush, and commits, that failed in the step and are repeated.
    """

    time: float
    consumed: float
    settled: float
    lag: int | None
    inflight_bytes: int
    failed: int
    repeated: int


class HistoryAnswer(msgspec.Struct, frozen=True):
    """The answer of `/history`: samples, the oldest one first."""

    step: float
    samples: tuple[Sample, ...]


class StatusHistory:
    """Samples the status of a worker, or of several; the oldest sample goes after an hour.

    Args:
        status: returns the present status; it may take long.
    """

    def __init__(self, status: Callable[[], Awaitable[WorkerStatus]]) -> None:
        self._status = status
        self._samples: deque[Sample] = deque(maxlen=int(_HOUR / STEP))
        self._last: tuple[float, WorkerStatus] | None = None

    async def run(self) -> None:
        """Take a sample at every step until cancelled."""
        while True:
            now = anyio.current_time()
            self.note(await self._status(), now, time.time())
            await anyio.sleep_until(now + STEP)

    def note(self, status: WorkerStatus, now: float, wall: float) -> None:
        """Add the sample of a status; the first one only begins the first step.

        Args:
            now: its time by a clock that never goes back, in seconds;
            wall: by the wall clock, in seconds since 1970.
        """
        last, self._last = self._last, (now, status)
        if last is None or now <= last[0]:
            return
        before, seconds = last[1], now - last[0]
        lags = [each.lag for each in status.partitions]
        known = [lag for lag in lags if lag is not None]
        self._samples.append(
            Sample(
                time=round(wall, 3),
                consumed=round(max(0, status.consumed - before.consumed) / seconds, 2),
                settled=round(max(0, status.settled - before.settled) / seconds, 2),
                lag=sum(known) if known and len(known) == len(lags) else None,
                inflight_bytes=status.inflight_bytes,
                failed=max(0, status.failed - before.failed),
                repeated=max(0, status.repeated - before.repeated),
            )
        )

    def past(self, after: float = 0.0) -> HistoryAnswer:
        """Return the samples that are newer than `after`, in seconds since 1970."""
        return HistoryAnswer(STEP, tuple(each for each in self._samples if each.time > after))
