"""The HTTP server of a process: verdicts, the body's errors, and requests under way at its end."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aiohttp
import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kmr.service.http import HttpServer, verdict

if TYPE_CHECKING:
    from starlette.requests import Request


def listen() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def fetch(url: str) -> tuple[int, str, str | None]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text(), response.headers.get("Cache-Control")


async def well(_: Request) -> Response:
    return verdict("")


async def ill(_: Request) -> Response:
    return verdict("map-0 stands still")


async def test_a_problem_is_the_text_of_a_503_that_is_not_cached() -> None:
    app = Starlette(routes=[Route("/live", well), Route("/ready", ill)])
    async with HttpServer(app, listen) as server:
        assert await fetch(f"{server.url}/live") == (200, "ok\n", "no-store")
        assert await fetch(f"{server.url}/ready") == (503, "map-0 stands still\n", "no-store")


async def test_an_error_of_the_body_is_raised_unchanged_and_the_port_is_free_again() -> None:
    server = HttpServer(Starlette(), listen)

    async def fail() -> None:
        async with server:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(aiohttp.ClientConnectionError):
        await fetch(server.url)


def test_a_server_can_be_made_before_the_event_loop_that_runs_it() -> None:
    begun = []

    async def beside() -> None:
        begun.append(1)
        await anyio.sleep_forever()

    server = HttpServer(Starlette(), listen, beside=beside)

    async def run() -> None:
        async with server:
            while not begun:
                await anyio.lowlevel.checkpoint()

    anyio.run(run)
    assert begun == [1]


async def test_an_address_that_cannot_be_opened_is_the_error_of_entering() -> None:
    with listen() as taken:
        server = HttpServer(Starlette(), lambda: socket.create_server(taken.getsockname()))
        with pytest.raises(OSError, match="in use"):
            await server.__aenter__()


async def test_a_request_under_way_is_answered_before_the_server_is_left() -> None:
    asked = anyio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await anyio.sleep(0.1)
        return PlainTextResponse("answered")

    answers: list[tuple[int, str, str | None]] = []

    async def ask(url: str) -> None:
        answers.append(await fetch(url))

    app = Starlette(routes=[Route("/", slow)])
    async with anyio.create_task_group() as group, HttpServer(app, listen) as server:
        group.start_soon(ask, server.url)
        await asked.wait()
    assert answers == [(200, "answered", None)]
