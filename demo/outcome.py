"""What one engine did with the demo's topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from kmr.observe.status import WorkerStatus

__all__ = ["STRATEGY", "Engine", "Outcome", "fetch_status"]

STRATEGY: Final = "demo.pipeline:strategy"
"""What both engines run, unchanged."""


@dataclass(frozen=True)
class Engine:
    """One half of the demo.

    Attributes:
        name: how it is called on the screen.
        group: its consumer group.
        database: of ClickHouse; its table has what it delivered.
    """

    name: str
    group: str
    database: str


@dataclass(frozen=True)
class Outcome:
    """How an engine fared.

    Attributes:
        url: of its database.
        start: seconds from the start of its processes until it was ready for the first record.
        seconds: from the first record until the last one was delivered.
    """

    engine: Engine
    url: str
    start: float
    seconds: float


async def fetch_status(session: aiohttp.ClientSession, url: str) -> WorkerStatus | None:
    """The status of a worker or of the Spark engine; None while it does not answer."""
    try:
        async with session.get(f"{url}/status") as response:
            return msgspec.json.decode(await response.read(), type=WorkerStatus)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return None
