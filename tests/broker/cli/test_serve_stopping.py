"""How the process of a broker stops when a part of it hangs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
from aiokafka import AIOKafkaProducer

from kmr.broker.cli.serve import DEADLINE_EXCEEDED

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

RUN = "from kmr.broker.cli import app; app()"
MIB = 1024 * 1024


@asynccontextmanager
async def running(code: str, *arguments: str | Path) -> AsyncIterator[Process]:
    """A Python process; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", code, *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(300):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def unread_response(servers: str) -> AsyncIterator[None]:
    """A client that asks for more than the sockets hold and does not read it."""
    async with AIOKafkaProducer(bootstrap_servers=servers, max_request_size=MIB) as producer:
        for _ in range(48):
            await producer.send_and_wait("t", bytes(MIB - 1000))
    host, port = servers.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    fetch = (
        b"\0\1\0\4\0\0\0\1\0\0"  # Fetch, version 4, no client id
        b"\xff\xff\xff\xff\0\0\0\0\0\0\0\1\x7f\0\0\0\0"  # replica, wait, min and max bytes, isolation
        b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\x7f\0\0\0"  # t-0 from 0 on
    )
    try:
        writer.write(len(fetch).to_bytes(4, "big") + fetch)
        await reader.readexactly(1)  # it has begun
        yield
    finally:
        writer.transport.abort()


async def test_a_broker_that_stops_is_not_ready_and_a_second_signal_ends_it(tmp_path: Path) -> None:
    arguments = ("--data", tmp_path, "--port", "0", "--http-port", "0")
    slow = ("--shutdown-timeout", "50s", "--shutdown-deadline", "50s", "--fetch-max-bytes", "64MiB")
    async with running(RUN, "serve", *arguments, *slow) as process:
        assert process.stdout is not None
        words = (await process.stdout.readline()).decode().split()
        servers, http = words[2].rstrip(","), words[-1].removesuffix("/metrics")
        async with unread_response(servers), aiohttp.ClientSession(http) as session:

            async def get(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            assert (await get("/ready"))[0] == 200
            process.send_signal(signal.SIGTERM)
            while (ready := await get("/ready"))[0] == 200:
                pass  # the signal is on its way
            assert ready == (503, "the broker is stopping\n")
            assert (await get("/live"))[0] == 200
            assert (await get("/metrics"))[0] == 200
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
    assert not (tmp_path / "clean").exists()


async def test_a_stop_that_hangs_ends_at_its_deadline() -> None:
    hanging = """
from threading import Event
from kmr.service.logs import log_to_stderr
from kmr.broker.cli.serve import deadline
log_to_stderr("info", "json", quiet=())
with deadline(60): pass
with deadline(0.01): Event().wait()
"""
    async with running(hanging) as process:
        _, err = await process.communicate()
    assert process.returncode == DEADLINE_EXCEEDED == 3
    event = json.loads(err)
    assert (event["level"], event["deadline_seconds"]) == ("error", 0.01)
    assert "did not stop in time" in event["event"]
