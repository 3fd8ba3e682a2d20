"""A running broker, and clients that talk to it in raw protocol messages."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from kmr.broker import Broker, BrokerSettings
from kmr.broker.log.records import Codec, NewRecord, build_batch
from tests.broker.loop_guard import LoopGuard, loop_guard
from tests.broker.raw_client import RawClient

__all__ = ["loop_guard"]

Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start(tmp_path: Path, loop_guard: LoopGuard | None) -> AsyncIterator[Start]:
    """Starts brokers, by default on `tmp_path/data` and any free port; stops them at the end."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Broker:
            defaults = {"data_dir": tmp_path / "data", "port": 0}
            broker = Broker(BrokerSettings(**{**defaults, **settings}))
            with loop_guard.starting() if loop_guard else nullcontext():
                return await stack.enter_async_context(broker)

        yield start


@pytest.fixture
async def broker(start: Start) -> Broker:
    """A running broker with default settings."""
    return await start()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Broker], Awaitable[RawClient]]]:
    """Opens connections to a broker; closes them at the end."""
    clients: list[RawClient] = []

    async def connect(broker: Broker) -> RawClient:
        clients.append(await RawClient.connect(broker.bootstrap_servers))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Runs the event loop until a condition holds."""

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)

    return until


@pytest.fixture(scope="session")
def batch() -> Callable[..., bytes]:
    """One record batch as a producer sends it."""

    def batch(*values: bytes, timestamp: int = 1_700_000_000_000, codec: Codec = "none") -> bytes:
        records = [NewRecord(None, value, (), timestamp + at) for at, value in enumerate(values)]
        return bytes(build_batch(records, codec=codec))

    return batch
