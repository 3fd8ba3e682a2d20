"""Rows into ClickHouse: large inserts, one per partition, each of which can be repeated without harm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import structlog

from framework.errors import KmrError, SinkError, StrategyError
from framework.reducer import (
    DEFAULT_MAX_AGE,
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_ROWS,
    Empty,
    Flushed,
    Reducer,
    Retry,
)
from framework.sinks.clickhouse.client import Target, connect_async
from framework.sinks.clickhouse.delivery import Inserter
from framework.sinks.clickhouse.errors import classify
from framework.sinks.clickhouse.inserts import MAX_BLOCK_ROWS, Insert, plan_inserts
from framework.sinks.clickhouse.replay import verify
from framework.sinks.clickhouse.table import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from framework.announcement import Announcement
    from framework.record import Rows
    from framework.reducer import (
        Context,
        Delivery,
        FlushResult,
        OnError,
        OnShutdown,
        Poisoned,
        WhenFull,
    )
    from framework.sinks.clickhouse.client import Connection
    from framework.sinks.clickhouse.table import Compression, ExtraColumns, Table

__all__ = ["ClickHouseWriter"]

_RECONNECT = 0.5  # seconds between attempts to reach a server that is not there yet
_OURS = ("insert_deduplication_token", "async_insert")

_log = structlog.get_logger(__name__)


class ClickHouseWriter(Reducer):
    """Writes rows to a table of ClickHouse.

    Every INSERT has the rows of one partition, and the deduplication token
    `group:topic:partition:first-last`: repeated after a lost answer, or by another worker, it is
    recognised by the table and not written twice (`non_replicated_deduplication_window`, or the
    replicated one, must be large enough; a warning at start says how to set it). So a topic that was
    deleted and created anew, whose offsets begin again, needs another group, or a table that was emptied:
    else its first rows count as repetitions. Columns are matched by
    name and cast to the table's types; rows with a value that does not fit go to `reduce_err`, the
    others are written.

    With `exactly-once` each range of offsets is announced in the group's committed offset before it is
    written; after a crash just that range is read, mapped and written again with the same token, and
    counted where the table has the columns `partition` and `offset` (and `topic`). That takes one commit
    a flush, and holds if the map gives the same rows for the same records, if the topic still has them
    (retention), and if the table still remembers the token. It is the default where the table
    deduplicates. With `at-least-once` an INSERT that was under way in a crash may be doubled, because the
    records are divided into other ranges afterwards.

    Args:
        table: `table` or `database.table`; it must exist.
        delivery: `exactly-once`, which an unsuitable table refuses at start, or `at-least-once`. None:
            exactly once if the table deduplicates, else at least once with a warning.
        url: `http://user:password@host:8123/database`, `https://...`, or `chdb:///directory` for the
            engine inside this process. None: the environment's KMR_CLICKHOUSE_URL, else the embedded
            ClickHouse in `.kmr/clickhouse`.
        database: wins over that of the URL.
        columns: write these columns only; None: all that the rows have.
        extra_columns: what a column of the rows that the table lacks means: an `error`, or `ignore`.
        settings: ClickHouse settings for every request.
        concurrency: inserts at a time.
        compression: of the blocks on the wire; `auto` is lz4, but none for this machine.
        connect_timeout: seconds to wait for the server at start.
        timeout: seconds for one request; then it is tried again.
        client: more arguments for clickhouse-connect's client, such as `ca_cert` or `http_proxy`.
        max_rows: of each partition, or, with `at-least-once`, of all together; at most 1,000,000 for
            exactly once. See `Reducer` for this and the rest.

    Raises:
        StrategyError: an argument makes no sense.
    """

    block_rows = MAX_BLOCK_ROWS

    def __init__(
        self,
        table: str,
        *,
        delivery: Literal["exactly-once", "at-least-once"] | None = None,
        url: str | None = None,
        database: str | None = None,
        columns: Sequence[str] | None = None,
        extra_columns: ExtraColumns = "error",
        settings: Mapping[str, Any] | None = None,
        concurrency: int = 4,
        compression: Compression | Literal["auto"] = "auto",
        connect_timeout: float = 10.0,
        timeout: float = 60.0,
        client: Mapping[str, Any] | None = None,
        max_rows: int | None = DEFAULT_MAX_ROWS,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        max_age: float | None = DEFAULT_MAX_AGE,
        when_full: WhenFull = "flush",
        on_shutdown: OnShutdown = "flush",
        on_error: OnError = "retry",
    ) -> None:
        super().__init__(
            max_rows=max_rows,
            max_bytes=max_bytes,
            max_age=max_age,
            when_full=when_full,
            on_shutdown=on_shutdown,
            on_error=on_error,
        )
        if not table:
            raise StrategyError("ClickHouseWriter needs the name of a table")
        if delivery not in (None, "exactly-once", "at-least-once"):
            raise StrategyError(
                "ClickHouseWriter: delivery must be 'exactly-once' or 'at-least-once', not "
                f"{delivery!r}; 'at-most-once' is set in Strategy(delivery=...)"
            )
        if delivery != "at-least-once" and max_rows is not None and max_rows > MAX_BLOCK_ROWS:
            raise StrategyError(
                f"ClickHouseWriter: max_rows={max_rows} is more than one block of ClickHouse "
                f"({MAX_BLOCK_ROWS} rows), which is written all or none; lower it"
            )
        if url is not None:
            Target.of(url)
        if concurrency < 1 or timeout <= 0 or connect_timeout <= 0:
            raise StrategyError(
                "ClickHouseWriter: concurrency must be at least 1, timeouts above 0 seconds"
            )
        if taken := [name for name in _OURS if name in (settings or {})]:
            raise StrategyError(
                f"ClickHouseWriter sets {' and '.join(taken)} itself: without it a repeated INSERT "
                "would double its rows"
            )
        self.table = table
        self._wanted = delivery
        self.delivery: Delivery = delivery or "exactly-once"
        self.url = url
        self.database = database
        self.columns = None if columns is None else tuple(columns)
        self.extra_columns = extra_columns
        self.settings = dict(settings or {})
        self.concurrency = concurrency
        self.compression = compression
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.client = dict(client or {})
        self._added: list[Rows] = []
        self._group = ""
        self._inserter: Inserter | None = None
        self._limiter: anyio.CapacityLimiter | None = None
        self._shares = False
        self._announcement: Announcement | None = None
        self._replayed = False
        self._tried = False  # since the last flush that was complete
        self._warned: set[str] = set()

    def spawn(self) -> Self:
        """A copy of its own, but for the memory of what was warned of: once is enough for a stage."""
        copy = super().spawn()
        copy._warned = self._warned  # noqa: SLF001  of our own class
        return copy

    async def open(self, context: Context) -> None:
        """Connect and read the table.

        Raises:
            SinkError: the server cannot be reached, or refuses us.
            StrategyError: there is no such table, or it cannot recognise repeated inserts and must.
        """
        self._group = context.group
        if isinstance(context.opened, ClickHouseWriter):
            self._share(context.opened)
            return
        database, _, name = self.table.rpartition(".")
        target = Target.of(self.url, self.database or database or None)
        connection = await self._connect(target)
        try:
            table = await read_table(connection, target.database, name)
            if context.prepare and table.remedy is not None:
                await connection.execute(table.remedy)
                _log.info("table altered", statement=table.remedy)
                table = await read_table(connection, target.database, name)
            self._settle_delivery(table, context.stage)
        except Exception as error:
            await connection.close()
            if isinstance(error, KmrError):
                raise
            raise SinkError(
                f"{target}: cannot read the table {self.table}: {classify(error).reason}"
            ) from error
        compression = self.compression
        if compression == "auto":
            compression = None if target.is_local else "lz4"
        self._limiter = anyio.CapacityLimiter(self.concurrency)
        self._inserter = Inserter(connection, table, self.columns, self.extra_columns, compression)

    def _share(self, opened: ClickHouseWriter) -> None:
        """Write through the connection of another copy, which closes it."""
        assert opened._inserter is not None  # noqa: S101  it is open
        self._inserter = replace(opened._inserter, _fates={})
        self._limiter = opened._limiter
        self.delivery = opened.delivery
        self._shares = True

    def _settle_delivery(self, table: Table, stage: str) -> None:
        """Decide what can be promised with this table, and say what should be done about it."""
        advice = table.deduplication_advice()
        if not table.deduplicates:
            if self._wanted == "exactly-once":
                raise StrategyError(
                    f"ClickHouseWriter({self.table!r}, delivery='exactly-once'): "
                    f"{advice or f'{table} ({table.engine}) cannot tell which inserts it knows'}"
                )
            self.delivery = "at-least-once"
        if advice is not None and advice not in self._warned:
            self._warned.add(advice)
            _log.warning("inserts may be doubled", stage=stage, advice=advice)

    async def _connect(self, target: Target) -> Connection:
        deadline = anyio.current_time() + self.connect_timeout
        while True:
            try:
                return await connect_async(
                    target,
                    settings=self.settings,
                    connect_timeout=self.connect_timeout,
                    timeout=self.timeout,
                    options=self.client,
                )
            except KmrError:
                raise
            except Exception as error:
                trouble = classify(error)
                if trouble.kind != "later":
                    raise SinkError(f"{target} refuses: {trouble.reason}") from error
                if anyio.current_time() >= deadline:
                    raise SinkError(
                        f"{target} did not answer for {self.connect_timeout:g} s: {trouble.reason}. "
                        "Is it running, and the URL right?"
                    ) from error
            await anyio.sleep(_RECONNECT)

    async def close(self) -> None:
        """Disconnect."""
        if self._inserter is not None and not self._shares:
            await self._inserter.connection.close()

    def add(self, rows: Rows) -> None:
        """Keep the rows for the next flush."""
        self._added.append(rows)

    def reset(self) -> None:
        """Forget the rows. What was written of them stays known until a flush is complete."""
        self._added = []
        self._announcement = None

    def announce(self, announcement: Announcement, *, replayed: bool) -> None:
        """See `Reducer.announce`: the token of the next flush."""
        self._announcement = announcement
        self._replayed = replayed

    async def flush(self) -> FlushResult:
        """Write what was added, but for what an earlier attempt has written already.

        Raises:
            StrategyError: rows and table do not fit each other.
        """
        inserter, limiter = self._inserter, self._limiter
        if inserter is None or limiter is None:
            raise SinkError(f"ClickHouseWriter({self.table!r}) is used before it was opened")
        if not self._added:
            return Empty()
        results: list[list[Poisoned] | Retry | Exception] = []
        repeated, self._tried = self._replayed or self._tried, True

        async def write(insert: Insert) -> None:
            async with limiter:
                try:
                    result = await inserter.write(insert)
                    if repeated and isinstance(result, list):
                        alone = self.delivery == "exactly-once"
                        result = await verify(inserter, insert, result, alone=alone) or result
                    results.append(result)
                except Exception as error:  # noqa: BLE001  the others are still written, and remembered
                    results.append(error)

        async with anyio.create_task_group() as tasks:
            for insert in self._inserts():
                tasks.start_soon(write, insert)
        poisoned: list[Poisoned] = []
        for result in sorted(results, key=lambda result: not isinstance(result, Exception)):
            if isinstance(result, Exception):
                raise result
            if isinstance(result, Retry):
                return result
            poisoned += result
        inserter.forget()
        self._tried = False
        return Flushed(poisoned=poisoned)

    def _inserts(self) -> list[Insert]:
        announcement = self._announcement
        if announcement is None:
            return plan_inserts(self._added, self._group)
        insert = Insert(
            announcement.token, tuple(self._added), announcement.chunk or MAX_BLOCK_ROWS
        )
        return [insert] if len(insert) else []
