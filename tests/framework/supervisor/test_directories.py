"""ClickHouse directories, served to several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.embedded import server
from kmr.errors import SinkError
from kmr.supervisor.directories import Directories
from kmr.supervisor.messages import Served

if TYPE_CHECKING:
    from typing import Self


class Engine:
    """A server that notes its starts and ends; the engine itself takes seconds."""

    events: list[str]

    def __init__(self, path: str) -> None:
        self.path = path
        self.url = f"http://{path}"

    async def __aenter__(self) -> Self:
        if "taken" in self.path:
            raise SinkError("in use by process 7")
        self.events.append(f"+{self.path}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.events.append(f"-{self.path}")


async def test_a_directory_is_served_once_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("chdb", exc_type=ImportError)
    Engine.events = []
    monkeypatch.setattr(server, "EmbeddedClickHouse", Engine)
    async with Directories() as directories:
        assert await directories.serve("a") == Served("http://a")
        assert await directories.serve("b") == Served("http://b")
        assert await directories.serve("a") == Served("http://a")
        failed = await directories.serve("taken")
        assert failed == Served(None, "the supervisor cannot serve taken: in use by process 7")
        assert Engine.events == ["+a", "+b"]
    assert Engine.events == ["+a", "+b", "-b", "-a"]
