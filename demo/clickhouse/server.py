"""The embedded ClickHouse over HTTP: what a ClickHouse server answers on port 8123, without a server.

Unmodified clients work against it (clickhouse-connect, curl): queries, inserts in every format,
parameters, sessions, external tables, compression both ways, deduplication tokens. Answers are sent when
a query is done, never before, so that an error always has its own status code.

It is made for one machine: no users, no TLS, loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
from aiohttp import web

from demo.clickhouse.engine import Engine
from demo.clickhouse.errors import ClickHouseError, ServerError
from demo.clickhouse.http import content_type, encoder, is_local_name, status_of
from demo.clickhouse.request import read_query

if TYPE_CHECKING:
    from demo.clickhouse.query import Answer, Query

__all__ = ["EmbeddedClickHouse"]

_MAX_BODY_BYTES = 1024 * 1024 * 1024
_CONCURRENT_QUERIES = 16
_KEEP_ALIVE = 3600.0  # seconds: an idle client should never find its connection gone


class EmbeddedClickHouse:
    """ClickHouse's HTTP interface over a data directory, in this process.

    An async context manager: inside of it `url` answers. Leaving it lets running queries finish for up
    to `stop_timeout` seconds, stops the others and releases the directory.

    Args:
        path: the data directory; created if it is not there. One process at a time can open it, and one
            process can open one directory at a time.
        host: the address to listen on. There is no authentication: anybody who can reach it can read
            and write whatever this process can.
        port: 0 picks a free one.
        max_body_bytes: a larger request is refused with status 413; bodies are held in memory.
        stop_timeout: seconds.

    Raises:
        ServerError: on entering, when chDB is missing, or the directory or the port is in use.
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
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def version(self) -> str:
        """The version of ClickHouse."""
        return self._engine.version

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._engine = await asyncio.to_thread(Engine, self.path)
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
        app.router.add_get("/replicas_status", self._ping)
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
            # asyncio words errno in its own way; the resolver has numbers of its own
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
                status=status_of(error),
                text=error.body(self._engine.version),
                headers={**headers, "X-ClickHouse-Exception-Code": str(error.code)},
            )

    async def _answer(
        self, request: web.Request, query_id: str, headers: dict[str, str]
    ) -> web.Response:
        self._refuse_web_pages(request)
        compress = encoder(
            request.headers.get("Accept-Encoding", ""),
            enabled=request.query.get("enable_http_compression") == "1",
        )
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
            headers["X-ClickHouse-Format"] = answer.format
        if compress is not None and body:
            headers["Content-Encoding"], encode = compress
            body = bytes(await asyncio.to_thread(encode, body))
        headers["X-ClickHouse-Summary"] = msgspec.json.encode(answer.summary).decode()
        headers["Content-Type"] = content_type(answer.format)
        return web.Response(body=body, headers=headers)

    def _refuse_web_pages(self, request: web.Request) -> None:
        """Let no web site that somebody on this machine visits run SQL here.

        Browsers send `Origin` with what a page of another site POSTs, and a page whose own name was
        pointed at this machine has that name in `Host`.
        """
        origin = request.headers.get("Origin")
        names = [request.host] if is_local_name(self.host) else []
        if not all(map(is_local_name, [*names, *([origin] if origin else [])])):
            raise ClickHouseError(497, "ACCESS_DENIED", "Web pages of other sites may not query")

    async def _in_thread(self, query: Query, held: ExitStack) -> Answer:
        """Run a query. A client that goes away stops its reading query, never an INSERT."""

        def run() -> Answer:
            with held:  # the engine may read the spooled rows until it is done, whoever still waits
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
