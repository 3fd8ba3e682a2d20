"""A worker of a test, in this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from kmr.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.settings import Settings
    from kmr.strategy import Strategy


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
