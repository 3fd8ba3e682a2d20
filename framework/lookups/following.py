"""Read the topic of a table before the first record, and follow it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from ..errors import ConsumerError, KmrError, StrategyError, reason_of
from ..kafka.reading import RecordSelection, read_topic
from ..service.threads import run_in_thread
from .columns_table import ColumnsStore
from .given import GivenRows
from .objects_table import ObjectsStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import pyarrow as pa

    from ..kafka.connection import ConnectionConfig
    from .lookup import Lookup
    from .store import Store
    from .table import LookupTable

_log = structlog.get_logger(__name__)

_AGAIN: Final = 1.0  # seconds, after the broker refused to be read
_PROGRESS: Final = 5.0  # seconds between lines of the log while a table is loaded


class Follower:
    """One table in this process.

    Args:
        as_columns: for a per-batch map.
    """

    def __init__(
        self,
        name: str,
        lookup: Lookup,
        config: ConnectionConfig,
        *,
        as_columns: bool,
    ) -> None:
        self._name, self._lookup, self._config = name, lookup, config
        self._make = ColumnsStore if as_columns else ObjectsStore
        self._table: LookupTable | None = None
        self._failure: KmrError | None = None
        self._is_stale = False
        self._rejected = 0

    def table(self) -> LookupTable:
        """Return the table for one batch.

        Raises:
            KmrError: the table cannot be followed any more.
        """
        if self._failure is not None:
            raise self._failure
        assert self._table is not None  # noqa: S101  it was loaded before the first batch
        return self._table

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return 0 if self._table is None else len(self._table)

    async def run(self, loaded: asyncio.Future[None]) -> None:
        """Load, then follow, until cancelled. After an error of the brokers everything is read again."""
        while True:
            try:
                await self._read(loaded)
            except ConsumerError as error:
                if not loaded.done():
                    loaded.set_exception(error)
                    return
                if not self._is_stale:
                    self._is_stale = True
                    _log.warning(
                        "a look-up table is not kept up to date; trying again",
                        table=self._name,
                        topic=self._lookup.topic,
                        reason=str(error),
                    )
                await anyio.sleep(_AGAIN)
            except KmrError as error:
                self._fail(error, loaded)
                return
            except Exception as error:  # noqa: BLE001  raised where the table is used
                reason = f"table {self._name} ({self._lookup}): {reason_of(error)}"
                self._fail(StrategyError(reason), loaded)
                return

    def _fail(self, error: KmrError, loaded: asyncio.Future[None]) -> None:
        self._failure = error
        if not loaded.done():
            loaded.set_exception(error)

    async def _read(self, loaded: asyncio.Future[None]) -> None:
        store = self._make(self._name, self._lookup)
        begun = said = anyio.current_time()
        is_live = False

        def publish() -> None:
            nonlocal is_live
            is_live = True
            self._table, self._is_stale = store.table(), False
            if not loaded.done():
                loaded.set_result(None)
            _log.info(
                "a look-up table is loaded",
                table=self._name,
                topic=self._lookup.topic,
                rows=len(store),
                mebibytes=round(store.nbytes / 2**20, 1),
                seconds=round(anyio.current_time() - begun, 1),
            )

        def apply(records: pa.RecordBatch) -> LookupTable | None:
            store.apply(records)
            return store.table() if is_live else None

        window = RecordSelection(follow=True, caught_up=publish)
        async with aclosing(read_topic(self._config, self._lookup.topic, window)) as batches:
            async for batch in batches:
                made = await run_in_thread(apply, batch.records)
                self._table = self._table if made is None else made
                self._report(store)
                now = anyio.current_time()
                if not is_live and now - said > _PROGRESS:
                    said = now
                    _log.info("loading a look-up table", table=self._name, rows=len(store))

    def _report(self, store: Store) -> None:
        if store.rejected > self._rejected:
            _log.warning(
                "records of a look-up table make no row",
                table=self._name,
                topic=self._lookup.topic,
                records=store.rejected,
                last=store.example,
            )
        self._rejected = store.rejected


class Tables:
    """The tables of a strategy in this process. Called, it returns them for one batch.

    Attributes:
        followers: of those that follow a topic, by name.
    """

    def __init__(self, followers: Mapping[str, Follower], given: Mapping[str, LookupTable]) -> None:
        self.followers = followers
        self._given = given

    def __call__(self) -> dict[str, LookupTable]:
        return {**self._given, **{name: each.table() for name, each in self.followers.items()}}


@asynccontextmanager
async def following(
    lookups: Mapping[str, Lookup | GivenRows], config: ConnectionConfig | None, *, as_columns: bool
) -> AsyncIterator[Tables]:
    """Load tables, and follow them in the block.

    Raises:
        ConsumerError: no broker answers, or there is no such topic.
        StrategyError: a table needs too much memory.
    """
    given = {
        name: each.table(name, as_columns=as_columns)
        for name, each in lookups.items()
        if isinstance(each, GivenRows)
    }
    read = {name: each for name, each in lookups.items() if not isinstance(each, GivenRows)}
    if read and config is None:
        raise StrategyError(
            f"the topic of table {next(iter(read))} cannot be read here; give the rows: "
            f"strategy.with_tables({{{next(iter(read))!r}: [...]}})"
        )
    followers = {
        name: Follower(name, lookup, config, as_columns=as_columns)
        for name, lookup in read.items()
        if config is not None
    }
    loop = asyncio.get_running_loop()
    waits: list[asyncio.Future[None]] = [loop.create_future() for _ in followers]
    tasks = [
        asyncio.create_task(each.run(wait))
        for each, wait in zip(followers.values(), waits, strict=True)
    ]
    try:
        await asyncio.gather(*waits)
        yield Tables(followers, given)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
