"""A registry for all tests of a module, and a client of it without any library of registries."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import pytest

from kmr.broker import Broker, BrokerSettings
from kmr.broker.cli.registry import registry_beside

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.registry.server import SchemaRegistry

Start = Callable[..., Awaitable["Served"]]


class Served(NamedTuple):
    """A broker, and the registry beside it."""

    broker: Broker
    registry: SchemaRegistry

    @property
    def url(self) -> str:
        return self.registry.url


class Rest:
    """Sends requests; answers are the status and the decoded JSON."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Send one request; `path` is sent as it is."""
        data = None if body is None else BytesIO(json.dumps(body).encode())
        async with self.session.request(method, path, data=data, headers=headers) as answer:
            return answer.status, json.loads(await answer.read())

    async def get(self, path: str) -> Any:
        """The answer to a request that must succeed."""
        status, found = await self.call("GET", path)
        assert status == 200, found
        return found

    async def put(self, path: str, **body: Any) -> Any:
        """The answer to a change that must succeed."""
        status, found = await self.call("PUT", path, body)
        assert status == 200, found
        return found

    async def delete(self, path: str) -> Any:
        """The answer to a deletion that must succeed."""
        status, found = await self.call("DELETE", path)
        assert status == 200, found
        return found

    async def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a schema, text or JSON; return its id."""
        status, found = await self.call(
            "POST", f"/subjects/{subject}/versions", {"schema": text_of(schema), **more}
        )
        assert status == 200, found
        schema_id: int = found["id"]
        return schema_id

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, int]:
        """Status and error code of a request that must be refused."""
        status, found = await self.call(method, path, body)
        assert status >= 400, found
        assert found["message"]
        return status, found["error_code"]


def login(user: str, password: str) -> dict[str, str]:
    """The header of basic authentication."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def text_of(schema: Any) -> str:
    """The text of a schema that is given as text or JSON."""
    return schema if isinstance(schema, str) else json.dumps(schema)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts brokers on `tmp_path/data` with a registry beside them, as the command line does."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Served:
            defaults = {"data_dir": tmp_path / "data", "port": 0}
            broker = Broker(BrokerSettings(**{**defaults, **settings}))
            await stack.enter_async_context(broker)
            return Served(broker, await stack.enter_async_context(registry_beside(broker, 0)))

        yield start


@pytest.fixture
async def served(start: Start) -> Served:
    """A broker with a registry."""
    return await start()


@pytest.fixture
async def open_rest() -> AsyncIterator[Callable[..., Rest]]:
    """Makes clients of a registry."""
    sessions: list[aiohttp.ClientSession] = []

    def make(served: Served, **options: Any) -> Rest:
        sessions.append(aiohttp.ClientSession(served.url, **options))
        return Rest(sessions[-1])

    yield make
    for each in sessions:
        await each.close()


@pytest.fixture
async def rest(served: Served, open_rest: Callable[..., Rest]) -> Rest:
    """A client of an empty registry."""
    return open_rest(served)
