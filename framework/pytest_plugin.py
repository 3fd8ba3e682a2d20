"""Fixtures for tests of strategies. pytest loads them by itself where the package is installed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.registry.server import SchemaRegistry

    from .testing import StartBroker, VirtualClock


@pytest.fixture
async def kmr_clock() -> VirtualClock:
    """The clock for tests whose `anyio_backend` is `("asyncio", {"loop_factory": VirtualTimeLoop})`."""
    from .testing import VirtualClock, VirtualTimeLoop

    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "set the anyio_backend fixture to use VirtualTimeLoop"
    return VirtualClock(loop)


@pytest.fixture
async def kmr_start_broker(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Start brokers with given settings: `broker = await kmr_start_broker(default_partitions=4)`."""
    from kmr.broker import Broker, BrokerSettings

    async with AsyncExitStack() as stack:
        started = 0

        async def start(**settings: Any) -> Broker:
            nonlocal started
            started += 1
            defaults: dict[str, Any] = {"data_dir": tmp_path / f"broker-{started}", "port": 0}
            return await stack.enter_async_context(Broker(BrokerSettings(**defaults | settings)))

        yield start


@pytest.fixture
async def kmr_broker(kmr_start_broker: StartBroker) -> Broker:
    """A broker in this process with default settings and an empty data directory."""
    return await kmr_start_broker()


@pytest.fixture
async def kmr_registry(kmr_broker: Broker) -> AsyncIterator[SchemaRegistry]:
    """An empty schema registry over `kmr_broker`, on its `url`.

    It runs in the test's event loop: call a blocking client of it in a thread.
    """
    from kmr.registry.server import SchemaRegistry

    async with SchemaRegistry(kmr_broker.bootstrap_servers) as registry:
        yield registry
