"""Rows into ClickHouse: large inserts, one per partition, each of which can be repeated without harm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

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
from framework.sinks.clickhouse_client import Target, connect_async
from framework.sinks.clickhouse_delivery import Delivery
from framework.sinks.clickhouse_errors import classify
from framework.sinks.clickhouse_inserts import plan_inserts
from framework.sinks.clickhouse_table import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from framework.record import Rows
    from framework.reducer import Context, FlushResult, OnError, OnShutdown, Poisoned, WhenFull
    from framework.sinks.clickhouse_client import Connection
    from framework.sinks.clickhouse_inserts import Insert
    from framework.sinks.clickhouse_table import Compression, ExtraColumns

__all__ = ["ClickHouseWriter"]

_RECONNECT = 0.5  # seconds between attempts to reach a server that is not there yet
_OURS = ("insert_deduplication_token", "async_insert")

_log = structlog.get_logger(__name__)


class ClickHouseWriter(Reducer):
    """Writes rows to a table of ClickHouse.

    A flush is one INSERT per partition, written concurrently, with the deduplication token
    `group:topic:partition:first-last`: repeated after a lost answer, or by another worker, it is
    recognised by the table and not written twice (`non_replicated_deduplication_window`, or the
    replicated one, must be large enough; a warning at start says how to set it). So a topic that was
    deleted and created anew, whose offsets begin again, needs another group, or a table that was emptied:
    else its first rows count as repetitions. Columns are matched by
    name and cast to the table's types; rows with a value that does not fit go to `reduce_err`, the
    others are written.

    Args:
        table: `table` or `database.table`; it must exist.
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
        max_rows: of all partitions together; see `Reducer` for this and the rest.

    Raises:
        StrategyError: an argument makes no sense.
    """

    def __init__(
        self,
        table: str,
        *,
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
        self._delivery: Delivery | None = None
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
            StrategyError: there is no such table.
        """
        database, _, name = self.table.rpartition(".")
        target = Target.of(self.url, self.database or database or None)
        connection = await self._connect(target)
        try:
            table = await read_table(connection, target.database, name)
        except Exception as error:
            await connection.close()
            if isinstance(error, KmrError):
                raise
            raise SinkError(
                f"{target}: cannot read the table {self.table}: {classify(error).reason}"
            ) from error
        advice = table.deduplication_advice()
        if advice is not None and advice not in self._warned:
            self._warned.add(advice)
            _log.warning("inserts may be doubled", stage=context.stage, advice=advice)
        compression = self.compression
        if compression == "auto":
            compression = None if target.is_local else "lz4"
        self._group = context.group
        self._delivery = Delivery(connection, table, self.columns, self.extra_columns, compression)

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
        if self._delivery is not None:
            await self._delivery.connection.close()

    def add(self, rows: Rows) -> None:
        """Keep the rows for the next flush."""
        self._added.append(rows)

    def reset(self) -> None:
        """Forget the rows. What was written of them stays known until a flush is complete."""
        self._added = []

    async def flush(self) -> FlushResult:
        """Write what was added, but for what an earlier attempt has written already.

        Raises:
            StrategyError: rows and table do not fit each other.
        """
        delivery = self._delivery
        if delivery is None:
            raise SinkError(f"ClickHouseWriter({self.table!r}) is used before it was opened")
        if not self._added:
            return Empty()
        results: list[list[Poisoned] | Retry | Exception] = []
        limiter = anyio.CapacityLimiter(self.concurrency)

        async def write(insert: Insert) -> None:
            async with limiter:
                try:
                    results.append(await delivery.write(insert))
                except Exception as error:  # noqa: BLE001  the others are still written, and remembered
                    results.append(error)

        async with anyio.create_task_group() as tasks:
            for insert in plan_inserts(self._added, self._group):
                tasks.start_soon(write, insert)
        poisoned: list[Poisoned] = []
        for result in sorted(results, key=lambda result: not isinstance(result, Exception)):
            if isinstance(result, Exception):
                raise result
            if isinstance(result, Retry):
                return result
            poisoned += result
        delivery.forget()
        return Flushed(poisoned=poisoned)
