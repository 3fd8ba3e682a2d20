"""A ClickHouse to write to, and a proxy that makes requests fail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import clickhouse_connect
import pytest
from aiohttp import web
from yarl import URL

from kmr.reducers.reducer import Context

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

CreateTable = Callable[..., str]


@pytest.fixture
def context() -> Context:
    """The context of the writers in these tests."""
    return Context(group="g", stage="reduce-1")


@pytest.fixture
def client(clickhouse_url: str) -> Iterator[Client]:
    """A client that reads the tables directly."""
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        yield client


@pytest.fixture
def create_table(client: Client, request: pytest.FixtureRequest) -> Iterator[CreateTable]:
    """Creates tables with names of their own, which remember 10,000 tokens; dropped after the test."""
    created: list[str] = []

    def create(
        columns: str, engine: str = "MergeTree ORDER BY tuple()", window: int = 10_000
    ) -> str:
        name = f"t{abs(hash(request.node.nodeid))}_{len(created)}"
        settings = f" SETTINGS non_replicated_deduplication_window = {window}"
        client.command(f"DROP TABLE IF EXISTS {name}")
        client.command(
            f"CREATE TABLE {name} ({columns}) ENGINE = {engine}"
            + (settings if "MergeTree" in engine else "")
        )
        created.append(name)
        return name

    yield create
    for name in created:
        client.command(f"DROP TABLE IF EXISTS {name}")


@dataclass
class Proxy:
    """Forwards requests of a writer to ClickHouse, and makes INSERTs fail.

    Attributes:
        url: its address.
        faults: of the next INSERTs, one each: `lose` the answer after the rows are written, `forget` the
            rows too but not the token (as a server that dies in between), `hang` without forwarding, or
            an error code to answer with. Later INSERTs succeed.
        alter_faults: the same of the next ALTERs.
        tokens: the deduplication tokens of all INSERTs, in order.
        settings: the parameters of the last INSERT.
    """

    upstream: str
    url: str = ""
    faults: list[str | int] = field(default_factory=list)
    alter_faults: list[str | int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        statement = request.query.get("query", "") + body[:20].decode(errors="replace")
        fault: str | int | None = None
        if statement.startswith("INSERT"):
            self.tokens.append(request.query.get("insert_deduplication_token", ""))
            self.settings = dict(request.query)
            fault = self.faults.pop(0) if self.faults else None
        elif statement.startswith("ALTER") and self.alter_faults:
            fault = self.alter_faults.pop(0)
        if fault == "hang":
            await self.hanging.wait()
        if isinstance(fault, int):
            text = f"Code: {fault}. DB::Exception: a fault of the test. (FAULT)"
            return web.Response(
                status=500, text=text, headers={"X-ClickHouse-Exception-Code": str(fault)}
            )
        path, body = self.forwarded(request.path_qs, body)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                URL(self.upstream + path, encoded=True),
                data=body,
                headers={
                    name: value
                    for name, value in request.headers.items()
                    if name.lower() in ("content-encoding", "accept-encoding")
                },
            ) as response,
        ):
            answer = await response.read()
            headers: dict[str, Any] = {
                name: value
                for name, value in response.headers.items()
                if name.startswith("X-ClickHouse") or name == "Content-Encoding"
            }
        if fault == "forget":
            await self.delete_rows(request.query["query"])
        if fault in ("lose", "forget"):
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=response.status, body=answer, headers=headers)

    def forwarded(self, path: str, body: bytes) -> tuple[str, bytes]:
        """Return what ClickHouse gets in place of a request."""
        return path, body

    async def delete_rows(self, insert: str) -> None:
        """Delete everything from the table of this INSERT."""
        found = re.search(r"INSERT INTO (\S+)", insert)
        assert found is not None, insert
        sql = f"ALTER TABLE {found[1]} DELETE WHERE 1 SETTINGS mutations_sync = 2"
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.upstream, data=sql) as done,
        ):
            assert done.status == 200, await done.text()


@asynccontextmanager
async def serving(proxy: Proxy) -> AsyncIterator[Proxy]:
    """Serve a proxy at its `url`."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield proxy
    proxy.hanging.set()
    await runner.cleanup()


@pytest.fixture
async def proxy(clickhouse_url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of ClickHouse."""
    async with serving(Proxy(clickhouse_url)) as proxy:
        yield proxy
