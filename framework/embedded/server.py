"""Serve the embedded ClickHouse on ClickHouse's HTTP interface (port 8123).

It has what clickhouse-connect and curl send: queries, inserts in every format, parameters, sessions,
external tables, compression both ways, deduplication tokens. A response is sent when the query
is done, so that an error always has its own status code.

It is made for one machine: no users, no TLS, loopback by default.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from .chdb_engine import ChdbEngine
from .query import ClickHouseError, ServerError
from .request import COMPRESSIONS, read_query

if TYPE_CHECKING:
    from .query import Query, StatementResult

_MAX_BODY_BYTES = 1024 * 1024 * 1024
_CONCURRENT_QUERIES = 16
_KEEP_ALIVE = 3600.0  # seconds; long, because clients handle a closed idle connection badly

_STATUS = {"SYNTAX_ERROR": 400, "UNKNOWN_TABLE": 404, "QUERY_IS_TOO_LARGE": 413}
"""HTTP statuses of errors that a person with curl meets; clients read the code in the header."""


class EmbeddedClickHouse:
    """ClickHouse's HTTP interface to a data directory, in this process.

    An async context manager, which serves at `url`. Leaving it lets running queries finish for up to
    `stop_timeout` seconds, stops the others and releases the directory.

    Args:
        path: the data directory; created if it is missing. One process at a time can open it, and one
            process can open one directory at a time.
        host: the address to listen on. There is no authentication: every client that reaches it can
            read and write all files that this process can.
        port: 0 picks a free one.
        max_body_bytes: larger requests are refused with status 413; bodies are held in memory.
        stop_timeout: seconds.

    Raises:
        MissingExtra: on entering, when chDB is not installed.
        ServerError: on entering, when the directory or the port is in use.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_body_bytes: int = _MAX_BODY_BYTES,
        stop_timeout: float = 10.0,
    ) -> None:
        self.path = Path(path)
        self.host = host
        self.port = port
        self._max_body_bytes = max_body_bytes
        self._stop_timeout = stop_timeout

    @property
    def url(self) -> str:
        """The URL to connect to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether it listens on loopback only."""
        return _is_local(self.host)

    @property
    def version(self) -> str:
        """The version of ClickHouse."""
        return self._engine.version

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._engine = await asyncio.to_thread(ChdbEngine, self.path)
            self._threads = ThreadPoolExecutor(_CONCURRENT_QUERIES, "clickhouse")
            stack.push_async_callback(asyncio.to_thread, self._stop_engine)
            await self._listen(stack)
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._running.aclose()

    async def _listen(self, stack: AsyncExitStack) -> None:
        app = web.Application()
        app.router.add_get("/ping", self._ping)
        app.router.add_get("/", self._query)
        app.router.add_post("/", self._query)
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,  # a compressed INSERT is decompressed by the engine
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE,
            shutdown_timeout=self._stop_timeout,
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        try:
            await web.TCPSite(runner, self.host, self.port).start()
        except OSError as error:
            # asyncio has its own text for errno; the resolver has its own numbers
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise ServerError(
                f"Cannot listen on {self.host}:{self.port}: {reason}. "
                "Choose another port with --port (0 picks a free one)."
            ) from error
        self.port = runner.addresses[0][1]

    def _stop_engine(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.kill_all()
        self._threads.shutdown(wait=True)
        self._engine.close()

    async def _ping(self, _request: web.Request) -> web.Response:
        return web.Response(text="Ok.\n", headers=self._headers())

    async def _query(self, request: web.Request) -> web.Response:
        if request.method != "POST" and not request.query.get("query"):
            return await self._ping(request)
        query_id = request.query.get("query_id") or str(uuid.uuid4())
        headers = self._headers(query_id)
        try:
            return await self._answer(request, query_id, headers)
        except ClickHouseError as error:
            return web.Response(
                status=_STATUS.get(error.name, 500),
                text=error.body(self._engine.version),
                headers={**headers, "X-ClickHouse-Exception-Code": str(error.code)},
            )

    async def _answer(
        self, request: web.Request, query_id: str, headers: dict[str, str]
    ) -> web.Response:
        self._refuse_web_pages(request)
        with ExitStack() as resources:
            query = await read_query(
                request, resources, query_id=query_id, max_body_bytes=self._max_body_bytes
            )
            if request.method != "POST" and query.statement.kind != "read":
                raise ClickHouseError(
                    164,
                    "READONLY",
                    "Cannot execute query in readonly mode: to modify data, POST it",
                )
            held = resources.pop_all()
        answer = await self._in_thread(query, held)
        body = answer.body
        if answer.format is not None:
            headers["X-ClickHouse-Format"] = answer.format  # clickhouse-connect: there is a result
        compression = _compression(request)
        if compression is not None and body:
            headers["Content-Encoding"] = compression
            body = bytes(await asyncio.to_thread(COMPRESSIONS[compression].compress, body))
        headers["X-ClickHouse-Summary"] = msgspec.json.encode(answer.summary).decode()
        return web.Response(body=body, headers=headers)

    def _refuse_web_pages(self, request: web.Request) -> None:
        """Keep web sites that a browser on this machine visits from running SQL here.

        Browsers send `Origin` with a POST of another site's page, and a site whose name resolves to this
        machine has that name in `Host`.
        """
        origin = request.headers.get("Origin")
        names = [request.host] if self.is_local else []
        if not all(map(_is_local, [*names, *([origin] if origin else [])])):
            raise ClickHouseError(497, "ACCESS_DENIED", "Web pages of other sites may not query")

    async def _in_thread(self, query: Query, held: ExitStack) -> StatementResult:
        """Run a query. A client that disconnects cancels its reading query, never an INSERT."""

        def run() -> StatementResult:
            with held:  # until the engine has read the spooled rows, even without a client
                return self._engine.run(query)

        job = self._threads.submit(run)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if job.cancelled():
                held.close()
            elif query.statement.kind == "read":
                with suppress(ClickHouseError):
                    await asyncio.to_thread(self._engine.kill, query.tag)
            raise

    def _headers(self, query_id: str | None = None) -> dict[str, str]:
        headers = {
            "X-ClickHouse-Server-Display-Name": "kmr",
            "X-ClickHouse-Timezone": self._engine.timezone,
        }
        if query_id is not None:
            headers["X-ClickHouse-Query-Id"] = query_id
        return headers


def _is_local(address: str) -> bool:
    """Return whether `host`, `host:port` or `scheme://host:port` names the loopback interface."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname
    return host in ("localhost", "127.0.0.1", "::1")


def _compression(request: web.Request) -> str | None:
    """Return the first known encoding of `Accept-Encoding`, if `enable_http_compression=1` asks for it."""
    if request.query.get("enable_http_compression") == "1":
        for choice in request.headers.get("Accept-Encoding", "").split(","):
            name = choice.partition(";")[0].strip().lower()
            if name in COMPRESSIONS:
                return name
    return None
