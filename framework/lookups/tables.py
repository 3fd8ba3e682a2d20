"""The tables of a strategy in one process."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import anyio

from .given import GivenRows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ..kafka.connection import ConnectionConfig
    from ..record import Batch
    from .follower import Follower
    from .source import TableSource
    from .table import LookupTable


class Tables:
    """The tables of a strategy in this process. Called, it returns them for one batch.

    Args:
        config: of the brokers that have the topics; None: there are none.
        as_columns: for per-batch maps.

    Attributes:
        followers: of those that are kept up to date.

    Raises:
        StrategyError: a topic cannot be read here.
    """

    def __init__(
        self,
        sources: Mapping[str, TableSource | GivenRows],
        config: ConnectionConfig | None,
        *,
        as_columns: bool,
    ) -> None:
        self.followers: Sequence[Follower] = [
            each.follower(name, config, as_columns=as_columns)
            for name, each in sources.items()
            if not isinstance(each, GivenRows)
        ]
        self._given = {
            name: each.table(name, as_columns=as_columns)
            for name, each in sources.items()
            if isinstance(each, GivenRows)
        }
        self._waited_for = [each for each in self.followers if each.source.wait]

    def __call__(self) -> dict[str, LookupTable]:
        return {**self._given, **{each.name: each.table() for each in self.followers}}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Self]:
        """Load the tables, and follow them in the block.

        Raises:
            ConsumerError: no broker answers, or there is no such topic.
            SinkError: a database does not answer, or refuses a query.
            StrategyError: a table needs too much memory, or has no rows that can be looked up.
        """
        loop = asyncio.get_running_loop()
        waits: list[asyncio.Future[None]] = [loop.create_future() for _ in self.followers]
        tasks = [
            asyncio.create_task(each.run(wait))
            for each, wait in zip(self.followers, waits, strict=True)
        ]
        try:
            await asyncio.gather(*waits)
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def catch_up(self) -> None:
        """Return when each table has everything that its topic has at the time of the call."""
        for each in self.followers:
            await each.catch_up()

    @property
    def are_waited_for(self) -> bool:
        """Whether a map waits for one of them (`Lookup.wait`)."""
        return bool(self._waited_for)

    def behind(self, batch: Batch) -> list[Follower]:
        """Return the tables that a batch may have to wait for."""
        newest = batch.max_timestamp_ms
        return [each for each in self._waited_for if each.passed_ms < newest]

    async def wait_for_all(self, batch: Batch) -> None:
        """Return when each table has passed the time of a batch, or at its limit."""
        for table in self.behind(batch):
            await self.wait_for(table, batch)

    async def wait_for(self, table: Follower, batch: Batch) -> None:
        """Return when a table has passed the time of a batch, or at its limit."""
        left = batch.max_timestamp_ms / 1000 + table.source.wait - time.time()
        with anyio.move_on_after(min(left, table.source.wait)):
            await table.until_passed(batch.max_timestamp_ms)
