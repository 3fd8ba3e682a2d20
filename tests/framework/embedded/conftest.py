"""An embedded ClickHouse in this process, and plain requests to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from kmr.embedded.server import EmbeddedClickHouse

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def code(self) -> int:
        """ClickHouse's error code; 0 without one."""
        return int(self.headers.get("X-ClickHouse-Exception-Code", 0))


Ask = Callable[..., Coroutine[Any, Any, Answer]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedClickHouse]:
    """A server with an empty data directory."""
    async with EmbeddedClickHouse(tmp_path / "data", max_body_bytes=1_000_000) as server:
        yield server


@pytest.fixture
async def ask(server: EmbeddedClickHouse) -> AsyncIterator[Ask]:
    """Sends one request: `ask(body, method=, headers=, path=, **parameters)`."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def ask(
            data: Any = None,
            *,
            method: str = "POST",
            path: str = "/",
            headers: Mapping[str, str] | None = None,
            **parameters: str | int,
        ) -> Answer:
            async with session.request(
                method, server.url + path, params=parameters, data=data, headers=headers
            ) as response:
                return Answer(response.status, await response.read(), response.headers)

        yield ask
