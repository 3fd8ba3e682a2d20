"""A broker with a topic, and a client of its group APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .group_requests import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kmr.broker import Broker

    Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def broker(start: Start) -> Broker:
    """A broker with a topic "t" of four partitions."""
    broker = await start(default_partitions=4, group_min_session_timeout=0.1)
    await broker.topics.create("t")
    return broker


@pytest.fixture
async def wire(broker: Broker, connect: Callable[[Broker], Awaitable[Any]]) -> Wire:
    return Wire(await connect(broker))
