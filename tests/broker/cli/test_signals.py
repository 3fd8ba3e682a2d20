"""produce and consume as processes: pipes that stay open, pipes that close, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from tests.broker.cli.conftest import Kmr

RUN = ["-c", "from kmr.broker.cli import app; app()"]


@asynccontextmanager
async def running(servers: str, *arguments: str, stdout: int = -1) -> AsyncIterator[Process]:
    """A command in a process of its own; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *RUN,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KMR_BOOTSTRAP_SERVERS": servers},
    )
    try:
        async with asyncio.timeout(300):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read(process: Process, lines: int) -> list[bytes]:
    assert process.stdout is not None
    return [(await process.stdout.readline()).strip() for _ in range(lines)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_consume_follow_normally(
    kmr: Kmr, servers: str, number: signal.Signals
) -> None:
    topic = f"followed-{number.name}"
    await asyncio.to_thread(kmr, "topic", "create", topic)
    follow = ("consume", topic, "--group", topic, "--from-beginning", "--follow")
    async with (
        running(servers, *follow) as consumer,
        running(servers, "produce", topic) as producer,
    ):
        assert producer.stdin is not None
        for line in (b"1\n", b"2\n"):
            producer.stdin.write(line)
            # It arrives although the pipe stays open and no batch is full.
            assert await read(consumer, 1) == [line.strip()]
        consumer.send_signal(number)
        assert (await consumer.communicate(), await consumer.wait()) == ((b"", b""), 0)

    shown = await asyncio.to_thread(kmr, "group", "describe", topic)
    assert shown.lines[0] == f"{topic}: Empty, 0 members"
    assert shown.lines[-1].split() == [topic, "0", "2", "2", "0"]


async def test_new_records_are_followed_by_default(kmr: Kmr, servers: str) -> None:
    await asyncio.to_thread(kmr, "topic", "create", "new")
    await asyncio.to_thread(kmr, "produce", "new", stdin=b"old\n")
    async with running(servers, "consume", "new") as consumer:
        reading = asyncio.ensure_future(read(consumer, 1))
        while not reading.done():  # it says nothing before it is ready
            await asyncio.to_thread(kmr, "produce", "new", stdin=b"new\n")
        assert reading.result() == [b"new"]


async def test_a_closed_stdout_ends_consume_quietly(kmr: Kmr, servers: str) -> None:
    await asyncio.to_thread(kmr, "topic", "create", "piped")
    await asyncio.to_thread(kmr, "produce", "piped", stdin=b"x" * 100 + b"\n")
    reader, writer = os.pipe()
    os.close(reader)
    consume = ("consume", "piped", "--from-beginning")
    async with running(servers, *consume, stdout=writer) as consumer:
        os.close(writer)
        _, err = await consumer.communicate()
        assert (consumer.returncode, err) == (128 + signal.SIGPIPE, b"")


async def test_an_interrupt_ends_produce_after_sending_complete_lines(
    kmr: Kmr, servers: str
) -> None:
    await asyncio.to_thread(kmr, "topic", "create", "typed")
    consume = ("consume", "typed", "--from-beginning", "--follow")
    async with (
        running(servers, "produce", "typed") as producer,
        running(servers, *consume) as consumer,
    ):
        assert producer.stdin is not None
        producer.stdin.write(b"line\n")
        assert await read(consumer, 1) == [b"line"]
        producer.send_signal(signal.SIGINT)
        _, err = await producer.communicate()
        assert (producer.returncode, err) == (128 + signal.SIGINT, b"")
