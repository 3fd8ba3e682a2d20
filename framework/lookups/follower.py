"""What loads a look-up table and keeps it up to date, in one process."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import anyio
import structlog

from ..errors import KmrError, StrategyError, reason_of
from ..observe.status import TableStatus
from ..service.wakeup import Wakeup

if TYPE_CHECKING:
    import asyncio

    from .source import TableSource
    from .table import LookupTable

_log = structlog.get_logger(__name__)


class Follower(ABC):
    """One table in this process.

    Attributes:
        passed_ms: the table has what its topic had up to this time, in milliseconds since 1970.
    """

    def __init__(self, name: str, source: TableSource) -> None:
        self.name, self.source = name, source
        self.passed_ms: float = -1
        self._table: LookupTable | None = None
        self._failure: KmrError | None = None
        self._problem: str | None = None
        self._current_at = math.nan
        self._passed = Wakeup()

    def table(self) -> LookupTable:
        """Return the table for one batch. Raises KmrError: the table cannot be followed any more."""
        if self._failure is not None:
            raise self._failure
        assert self._table is not None  # noqa: S101  it was loaded before the first batch
        return self._table

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return 0 if self._table is None else len(self._table)

    @property
    def stale(self) -> float:
        """Seconds since the table is known to have been up to date; nan before it is loaded."""
        return anyio.current_time() - self._current_at

    def status(self) -> TableStatus:
        """Return its present status."""
        stale = self.stale
        return TableStatus(
            name=self.name,
            source=str(self.source),
            rows=self.rows,
            is_loaded=self._table is not None,
            stale=None if math.isnan(stale) else stale,
            problem=self._problem,
        )

    async def catch_up(self) -> None:  # noqa: B027  a query is asked again by time alone
        """Return when the table has everything that its topic has at the time of the call."""

    async def until_passed(self, time_ms: float) -> None:
        """Return when the table has what its topic had up to a time."""
        while self.passed_ms < time_ms:
            await self._passed.wait()

    async def run(self, loaded: asyncio.Future[None]) -> None:
        """Load, then follow, until cancelled. After an error that may pass, it is tried again."""
        while True:
            try:
                await self._read(loaded)
            except Exception as error:  # noqa: BLE001  raised where the table is used
                if not isinstance(error, KmrError):
                    reason = f"table {self.name} ({self.source}): {reason_of(error)}"
                    error = StrategyError(reason)
                if not loaded.done():
                    loaded.set_exception(error)
                    return
                if not self._may_pass(error):
                    self._failure = error
                    return
                if self._problem is None:
                    _log.warning(
                        "a look-up table is not kept up to date; trying again",
                        table=self.name,
                        source=str(self.source),
                        reason=str(error),
                    )
                self._problem = str(error)
                await anyio.sleep(self._again)

    @property
    @abstractmethod
    def _again(self) -> float:
        """Seconds between an error and the next attempt."""

    @abstractmethod
    def _may_pass(self, error: KmrError) -> bool:
        """Return whether the maps go on with the table that they have after an error."""

    @abstractmethod
    async def _read(self, loaded: asyncio.Future[None]) -> None:
        """Load the table and follow it."""

    def _publish(self, table: LookupTable, loaded: asyncio.Future[None], nbytes: int) -> None:
        """Give maps the table that was read as a whole."""
        self._table = table
        if not loaded.done() or self._problem is not None:
            _log.info(
                "a look-up table is loaded",
                table=self.name,
                source=str(self.source),
                rows=len(table),
                mebibytes=round(nbytes / 2**20, 1),
            )
        self._problem = None
        self._passed.notify()
        if not loaded.done():
            loaded.set_result(None)
