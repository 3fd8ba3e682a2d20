"""A worker of a test, in this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from kmr.settings import Settings
from kmr.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.broker import Broker
    from kmr.strategy import Strategy


def quick_settings(broker: Broker, **options: Any) -> Settings:
    """The settings of a worker that notices and commits soon."""
    quick = {"heartbeat_interval": 0.1, "commit_interval": 0.05, "session_timeout": 6.0}
    given = {"topics": ("t",), "group": "g", "bootstrap_servers": broker.bootstrap_servers}
    return Settings(**given | quick | options)


@asynccontextmanager
async def working(strategy: Strategy, settings: Settings) -> AsyncIterator[Worker]:
    """A worker that has its partitions; it drains at the end."""
    worker = Worker(strategy, settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            await worker.ready()
            yield worker
        worker.shutdown("done")
