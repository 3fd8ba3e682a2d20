"""The broker is killed and started again while clients work: they go on by themselves."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from anyio import to_thread

from .clients.base import Journal, Message

if TYPE_CHECKING:
    from pathlib import Path

    from .clients.base import Client
    from .conftest import Serve

pytestmark = pytest.mark.slow

KILLS = 3
BATCH = 200
"""Records that are sent together, all of which are acknowledged or none."""


class Stream:
    """Sends batch after batch until it is stopped; `acknowledged` has every acknowledged value."""

    def __init__(self, client: Client, servers: str) -> None:
        self.acknowledged: list[bytes] = []
        self._client = client
        self._servers = servers
        self._stop = asyncio.Event()
        self._progress = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._client.producer(self._servers, idempotent=True) as producer:
            number = 0
            while not self._stop.is_set():
                values = [b"%d" % each for each in range(number, number + BATCH)]
                await producer.send("t", [Message(value) for value in values])
                self.acknowledged += values
                number += BATCH
                self._progress.set()

    async def until_more(self, batches: int) -> None:
        """Wait until so many more batches are acknowledged."""
        wanted = len(self.acknowledged) + batches * BATCH
        while len(self.acknowledged) < wanted:
            self._progress.clear()
            moved = asyncio.create_task(self._progress.wait())
            await asyncio.wait({self._running, moved}, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
            if self._running.done():
                await self._running  # raises what ended it
                raise AssertionError("producing ended before it was stopped")

    async def stop(self) -> None:
        self._stop.set()
        await self._running


async def test_producers_and_consumers_go_on_after_a_kill_and_nothing_acknowledged_is_lost(
    client: Client, serve: Serve, tmp_path: Path
) -> None:
    broker = serve(tmp_path / "data")
    port, servers = broker.port, broker.servers
    stream = Stream(client, servers)
    await stream.until_more(1)
    journal = Journal()
    async with client.reader(servers, "t") as reader, client.member(servers, "g", "t", journal):
        # A client that is killed off its first answers may never ask again: it has to be at work.
        await journal.until_assigned(1)
        for _ in range(KILLS):
            await stream.until_more(3)
            await to_thread.run_sync(broker.kill)
            broker = await to_thread.run_sync(partial(serve, tmp_path / "data", port=port))
        await stream.until_more(3)
        await stream.stop()
        followed = await reader.read(len(stream.acknowledged))
        await journal.until_read(stream.acknowledged)
    assert [record.offset for record in followed] == list(range(len(followed)))
    assert [record.message.value for record in followed] == stream.acknowledged, "each once"
    async with client.reader(servers, "t") as reader:
        assert await reader.read(len(followed)) == followed
