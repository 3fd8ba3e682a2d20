"""Run the query of a table before the first record, and again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from ..errors import KmrError, SinkUnavailable
from ..service.threads import run_in_thread
from .follower import Follower

if TYPE_CHECKING:
    import asyncio

    from .databases import Database
    from .query import QueryLookup
    from .table import LookupTable

_START: Final = 30.0  # seconds in which a database that is not there yet has to answer
_LONGEST: Final = 30.0  # seconds between attempts after an error
_RECONNECT: Final = 0.5  # seconds between attempts at the start


class QueryFollower(Follower):
    """A table of a query's result; `as_columns`: for a per-batch map."""

    def __init__(
        self, name: str, source: QueryLookup, database: Database, *, as_columns: bool
    ) -> None:
        super().__init__(name, source)
        self._query, self._database, self._as_columns = source, database, as_columns

    @property
    def _again(self) -> float:
        return min(self._query.every, _LONGEST)

    def _may_pass(self, error: KmrError) -> bool:
        return True

    async def _read(self, loaded: asyncio.Future[None]) -> None:
        give_up = anyio.current_time() + _START
        while True:
            begun = anyio.current_time()
            try:
                table, nbytes = await run_in_thread(self._load, abandon_on_cancel=True)
            except SinkUnavailable:
                if loaded.done() or begun >= give_up:
                    raise
                await anyio.sleep(_RECONNECT)
                continue
            self._publish(table, loaded, nbytes)
            self._current_at = begun
            await anyio.sleep(self._query.every)

    def _load(self) -> tuple[LookupTable, int]:
        query = self._query
        try:
            rows = self._database.read(query.sql, query.max_bytes)
        except KmrError as error:
            raise type(error)(f"table {self.name} ({query}): {error}") from error
        return query.table(self.name, rows, as_columns=self._as_columns)
