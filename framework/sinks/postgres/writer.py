"""Write rows to a table of PostgreSQL: the rows and the name of their range in one transaction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

import anyio
import numpy as np
import psycopg
import pyarrow as pa
import structlog

from ...config.schema import Duration, parse_duration
from ...errors import KmrError, SinkError, StrategyError
from ...reducers.reducer import Retry
from ...service.threads import run_in_thread
from ..answers import of_postgres, sink_error
from ..changes import Applied, Changes
from ..choosing import ExtraColumns, choose
from ..planning import divided, together
from ..ranges import RangeWriter
from .connection import Pool
from .copying import Copying, ServerAnswer, Transaction, delete_ended, deleting, upserting
from .pace import Pace
from .preparing import WriterTables
from .ranges import RangeEntry, Ranges, TableMoved
from .table import TableName, read_table
from .types import targets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import TypeVar

    from ...columns.fitted import Fitted
    from ...reducers.finding import Finding
    from ...reducers.reducer import Context, Limits
    from ..planning import RangeRows
    from ..ranges import RangeDelivery
    from .connection import Connection
    from .table import PostgresTable
    from .types import PostgresColumn

    T = TypeVar("T")

_TAKES_JSON: Final = ("json", "jsonb", "text", "varchar")  # objects and lists as JSON
_JOINED_ROWS: Final = 100_000  # of a range that is written in one transaction with others
_LOCKED: Final = 0.8  # of the timeout, that a statement may wait for a lock
_GRACE: Final = 5.0  # seconds that the server has to end a transaction itself
_IN_ORDER: Final = (
    "PostgresWriter(changes=True) applies changes in their order: it needs delivery='exactly-once' in the "
    "worker. On Spark use ClickHouseWriter(changes=True), whose rows have versions, or write change rows"
)
_SIGNATURE: Final = """
SELECT sum(hashtext(concat_ws(
    ' ', attname, atttypid, atttypmod, attnotnull, atthasdef, attgenerated, attidentity))::bigint)
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
_LIMITS: Final = """
SELECT set_config('statement_timeout', %(ms)s, true),
       set_config('lock_timeout', %(wait)s, true),
       set_config('idle_in_transaction_session_timeout', %(ms)s, true)"""

_log = structlog.get_logger(__name__)


class _Altered(Exception):
    """The definition of the table was outdated when rows were refused: they are tried again."""


class PostgresWriter(RangeWriter):
    """Writes rows to a table of PostgreSQL, by COPY.

    Columns are matched by name and cast to the table's types; rows with a value that does not fit, or that a
    constraint refuses, go to `reduce_err`, the others are written. Lists, structs and maps are JSON.

    A range of offsets is one transaction: its rows, and a row in the table `kmr_ranges` beside it. So a range
    that was written before a crash is found, also when the answer to the commit was lost. A worker that was
    suspended cannot write a range again, because a later one is there. `kmr_ranges` keeps the last range of
    each partition; those that Spark's tasks write, a day. The server must not lose commits: with
    `synchronous_commit = off` its crash can lose rows whose offsets are committed.

    Example:
        ```python
        from kmr.sinks import PostgresWriter

        orders = PostgresWriter("shop.orders", url="postgresql://kmr@db/shop", create=True)
        ```

    Args:
        table: `table` or `schema.table`; it must exist, unless `create` is set.
        url: `postgresql://user:password@host:5432/database?sslmode=require`, or what else libpq understands.
            None: the environment's KMR_POSTGRES_URL, else the variables of libpq (PGHOST, ...).
        columns: write these columns only; None: all columns of the rows.
        extra_columns: `error`, or `ignore` columns of the rows that the table lacks.
        create: make the table at start if it is missing, for the columns that the strategy declares, with
            topic, partition and offset of the record, or for those of a schema. Such columns of any table,
            and `timestamp`, are filled where the rows lack them.
        changes: the rows are changes, with a column `op` (docs/changes.md): upserts and deletes by `key`, in
            the order of each partition. It needs `delivery="exactly-once"`, and does not run on Spark.
        key: with `changes`, the columns that name a row; the table has a unique index on them.
        delivery: see `RangeWriter`.
        concurrency: the most transactions, and connections, at a time.
        inserts_per_second: the most transactions a second that a worker makes for the age of rows: each has
            the ranges of all partitions whose rows are of age. Full ranges do not wait. None: each range has
            a transaction of its own.
        connect_timeout: seconds to wait for the server at start.
        timeout: seconds until a statement is given up. Its rows are tried in smaller parts, and the next
            flushes have fewer rows; after a wait for a lock, the flush is repeated. The server ends a
            transaction that waits longer for its client.
        limits: the limits and policies of `Reducer`.

    Raises:
        StrategyError: an argument is not allowed.
    """

    range_name = "row of kmr_ranges"

    def __init__(
        self,
        table: str,
        *,
        url: str | None = None,
        columns: Sequence[str] | None = None,
        extra_columns: ExtraColumns = "error",
        create: bool | pa.Schema = False,
        changes: bool = False,
        key: Sequence[str] | None = None,
        delivery: RangeDelivery = "exactly-once",
        concurrency: int = 4,
        inserts_per_second: float | None = 4.0,
        connect_timeout: Duration = 10.0,
        timeout: Duration = 60.0,
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(
            delivery=delivery,
            concurrency=concurrency,
            inserts_per_second=None if changes else inserts_per_second,
            **limits,
        )
        if not table:
            raise StrategyError("PostgresWriter needs the name of a table")
        self._changes = Changes.of("PostgresWriter", key, changes=changes)
        self.replaces_by = () if self._changes is None else self._changes.key
        if self._changes is not None and delivery != "exactly-once":
            raise StrategyError(_IN_ORDER)
        self.capabilities = replace(
            self.capabilities, in_order=changes, joins_rows=0 if changes else _JOINED_ROWS
        )
        self.table = table
        self.url = url
        self.columns = None if columns is None else tuple(columns)
        self.extra_columns = extra_columns
        self.create = create
        self.connect_timeout = parse_duration(connect_timeout, "PostgresWriter: connect_timeout")
        self.timeout = parse_duration(timeout, "PostgresWriter: timeout")
        self._pace, self._most_rows = Pace(self.timeout), self.max_rows
        self._pool: Pool | None = None
        self._shares = False
        self._found: PostgresTable | None = None
        self._signature: tuple[object, ...] | None = None
        self._had: frozenset[str] = frozenset()  # the columns that the table has had
        self._scopes: dict[str, anyio.CancelScope] = {}  # of the ranges that are being written

    def __str__(self) -> str:
        return f"PostgreSQL table {self.table}"

    @property
    def _limits(self) -> Mapping[str, str]:
        """The values of `_LIMITS`, in milliseconds."""
        return {
            "ms": str(int(self.timeout * 1000)),
            "wait": str(int(self.timeout * _LOCKED * 1000)),
        }

    async def open(self, context: Context) -> None:
        """Connect, create the tables that are missing, and read the table.

        Raises:
            SinkError: the server cannot be reached, or refuses the connection or a statement.
            StrategyError: there is no such table, or a permission is missing.
        """
        await super().open(context)
        if isinstance(opened := context.for_sinks.opened, PostgresWriter):
            self._pool, self._found, self._had = opened._pool, opened._found, opened._had  # noqa: SLF001
            self._pace, self._shares = opened._pace, True  # noqa: SLF001
            return
        pool = Pool.of(self.url, self.timeout)
        await pool.wait(self.connect_timeout)
        try:
            async with pool.connection() as connection:
                tables = WriterTables(self, self._changes, connection, context)
                self._found = await tables.prepare()
        except KmrError:
            await pool.close()
            raise
        except Exception as error:
            await pool.close()
            what = f"{pool}: cannot read or create {self}"
            raise sink_error(what, of_postgres(error)) from error
        self._pool = pool
        self._had = frozenset(column.name for column in self._found.columns)
        stored = {
            column.name: pa.json_() if column.kind in _TAKES_JSON else column.stored
            for column in self._found.columns
        }
        context.for_sinks.tell_types(context.stage, stored)

    async def examine(self, context: Context) -> Sequence[Finding]:
        """See `Sink.examine`: the server, the table, `kmr_ranges` and the privileges."""
        pool = Pool.of(self.url, self.timeout)
        await pool.wait(self.connect_timeout)
        try:
            async with pool.connection() as connection:
                return await WriterTables(self, self._changes, connection, context).examine()
        except KmrError:
            raise
        except Exception as error:
            raise SinkError(f"{pool}: cannot read {self}: {of_postgres(error).reason}") from error
        finally:
            await pool.close()

    @property
    def _name(self) -> TableName:
        return TableName.of(self.table)

    @property
    def _ranges(self) -> Ranges:
        return Ranges(self._name.beside("kmr_ranges"))

    async def close(self) -> None:
        """Disconnect."""
        if self._pool is not None and not self._shares:
            await self._pool.close()

    async def has(self, rows: RangeRows) -> bool:
        """Return whether the range is in `kmr_ranges`, or a later one of its partition."""
        return await self._guard(self._find, rows) is not None

    async def refused(self, rows: RangeRows) -> Mapping[int, str]:
        """Read the rows that were refused when the range was written."""
        return await self._guard(self._find, rows) or {}

    async def write(self, rows: RangeRows) -> Mapping[int, str]:
        """Write the range and its name in one transaction; nothing, if it is there.

        Raises:
            StrategyError: rows and table do not fit, or the server refuses permanently.
        """
        return await self._guard(self._write, rows)

    def may_join(self) -> bool:
        """Return True: each range of a transaction has its own row in `kmr_ranges`."""
        return True

    async def write_together(self, ranges: Sequence[RangeRows]) -> Sequence[Mapping[int, str]]:
        """Write ranges in one transaction. See `RangeWriter.write_together`."""
        return await self._guard(lambda _: self._write_all(ranges), ranges[0])

    async def _guard(self, call: Callable[[RangeRows], Awaitable[T]], rows: RangeRows) -> T:
        """Call, and raise what an error means for the rows; call again if the table was altered."""
        for attempt in (1, 2, 3):
            try:
                with anyio.fail_after(
                    self.timeout + _GRACE
                ) as scope:  # where the network is silent
                    self._scopes[rows.token] = scope
                    return await call(rows)
            except _Altered:
                continue
            except TableMoved as moved:
                await self._follow(moved.to)
                raise Retry(f"{self} has this name now", after=0.0, may_double=False) from None
            except KmrError:
                if attempt > 1 or not await self._is_altered():
                    raise
            except Exception as error:
                answer = error.answer if isinstance(error, ServerAnswer) else of_postgres(error)
                if answer.kind == "later":
                    raise Retry(f"{self}: {answer.reason}", may_double=False) from error
                if answer.kind == "unknown":
                    raise
                raise StrategyError(f"{self} refuses the rows: {answer.reason}") from error
            finally:
                self._scopes.pop(rows.token, None)
        raise AssertionError  # the table was altered during every attempt

    def _progress(self, ranges: Sequence[RangeRows]) -> None:
        """Let the next step take as long as the timeout allows: rows that are bisected take many steps."""
        for rows in ranges:
            rows.write.progressed()
            if (scope := self._scopes.get(rows.token)) is not None:
                scope.deadline = anyio.current_time() + self.timeout + _GRACE

    async def _follow(self, name: str) -> None:
        """Write to the table of another name from now on: `kmr cutover` has exchanged it."""
        before, self.table = self.table, ".".join(filter(None, (self._name.schema, name)))
        await self._is_altered()
        _log.warning(
            "kmr cutover has exchanged the table: rows of this group go on under its new name. Write it in "
            "the strategy before you drop the other one",
            table=before,
            now=self.table,
        )

    async def _was_altered(self, connection: Connection) -> bool:
        """Return whether the columns have changed: the server may have rounded values, or refused others.

        In the transaction that has written, whose lock keeps the table as it is.
        """
        found = await (await connection.execute(_SIGNATURE, (str(self._name),))).fetchone()
        if found == self._signature:
            return False
        self._signature = found
        return await self._is_altered()

    async def _is_altered(self) -> bool:
        """Read the table again; return whether its definition has changed."""
        try:
            async with self._opened.connection() as connection:
                found = await read_table(connection, self._name)
        except (psycopg.Error, OSError):
            return False
        if found is None:
            raise StrategyError(f"There is no {self} any more: create it, or write to another one")
        if found == self._found:
            return False
        self._found = found
        self._had |= {column.name for column in found.columns}
        return True

    @property
    def _opened(self) -> Pool:
        assert self._pool is not None  # noqa: S101  `flush` has looked
        return self._pool

    def _entry(self, rows: RangeRows) -> RangeEntry:
        return RangeEntry(
            str(self._name), self._group, rows, ordered=rows.write.announcement is not None
        )

    async def _find(self, rows: RangeRows) -> dict[int, str] | None:
        """Return what the range refused; None if it is not there."""
        async with self._opened.connection() as connection:
            return await self._ranges.find(connection, self._entry(rows))

    async def _write(self, rows: RangeRows) -> Mapping[int, str]:
        return (await self._write_all([rows]))[0]

    async def _write_all(self, written: Sequence[RangeRows]) -> Sequence[Mapping[int, str]]:
        """Write ranges in one transaction, but those that are there; return what each refused."""
        ranges, claimed = self._ranges, []
        outcomes: dict[str, Mapping[int, str]] = {}
        async with self._opened.connection() as connection, connection.transaction():
            await connection.execute(_LIMITS, self._limits)
            # A constraint that is checked at the commit only would refuse the whole transaction.
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            # In one order, so that two workers that claim the same ones do not wait for each other.
            for rows in sorted(written, key=lambda rows: rows.token):
                entry = self._entry(rows)
                if await ranges.claim(connection, entry):
                    claimed.append(rows)
                else:
                    outcomes[rows.token] = await ranges.find(connection, entry) or {}
            if claimed:
                progress = partial(self._progress, written)
                refused = await self._insert(connection, together(claimed), progress)
                for rows, mine in zip(claimed, divided(claimed, refused), strict=True):
                    self.require_taken(rows, mine)
                    outcomes[rows.token] = mine
                    if mine:
                        await ranges.refuse(connection, self._entry(rows), mine)
                    await ranges.prune(connection, self._entry(rows))
        return [outcomes[rows.token] for rows in written]

    async def _insert(
        self, connection: Connection, rows: RangeRows, progress: Callable[[], None]
    ) -> dict[int, str]:
        """Insert the rows that fit; return the others, with the reasons.

        Raises:
            StrategyError: the set-up is wrong.
        """
        table = await run_in_thread(rows.table_with, self._table.coordinates(self.columns))
        general: set[str] = set()
        transaction = Transaction(connection, self._name, self._pace, progress, rows.divides_later)
        if self._changes is None:
            copying = partial(Copying, transaction)
            refused = await self._send(table, general, copying, self.columns)
        elif rows.write.announcement is None:
            raise StrategyError(_IN_ORDER)
        else:
            refused = await self._apply(self._changes, transaction, table, general)
        if await self._was_altered(connection):
            raise _Altered
        self.set_up.judge(self, len(rows), refused, general)
        self.max_rows = self._pace.limit(self._most_rows)
        return refused

    async def _apply(
        self, changes: Changes, transaction: Transaction, table: pa.Table, general: set[str]
    ) -> dict[int, str]:
        """Apply changes to the table; return those that are refused."""
        connection, key = transaction.connection, changes.key
        known = [column.name for column in self._table.columns]
        applied = await run_in_thread(changes.apply, table, known)
        if applied.truncated is not None:
            await connection.execute(f"DELETE FROM {self._name}".encode())  # noqa: S608  quoted
        deletes = applied.table.filter(pa.array(applied.deleted)).select(list(key))
        gone = await self._send(deletes, general, partial(deleting, transaction), key)
        upsert = partial(upserting, transaction, key=key)
        failed = await self._send(applied.upserts, general, upsert, self.columns)
        refused = {**applied.among(gone, deleted=True), **applied.among(failed, deleted=False)}
        if applied.deletes_after_upserts:
            await self._delete_ended(connection, key, applied, list(refused))
        return {**applied.refused, **refused}

    async def _delete_ended(
        self, connection: Connection, key: Sequence[str], applied: Applied, refused: list[int]
    ) -> None:
        """Delete what a later change deletes by a key that only the table holds equal."""
        keys = applied.table.select(list(key))
        types = {column.name: column for column in self._table.columns}
        if all(types[field.name].tells_apart(field.type) for field in keys.schema):
            return
        taken = ~np.isin(applied.source, refused)
        fitted, columns = await run_in_thread(self._fit, keys.filter(pa.array(taken)), key)
        deleted = applied.deleted[taken].tolist()
        await delete_ended(connection, self._name, columns, fitted.table, deleted)

    async def _send(
        self,
        table: pa.Table,
        general: set[str],
        copying: Callable[[Sequence[PostgresColumn]], Copying],
        only: Sequence[str] | None,
    ) -> dict[int, str]:
        """Write the rows that fit; return the others, with the reasons; `general` gets those of all rows."""
        if not table.num_rows:
            return {}
        fitted, columns = await run_in_thread(self._fit, table, only)
        kept = fitted.kept()
        copied = copying(columns)
        answers = await copied.write(kept)
        # Changes may store nothing: a delete of a key that is not there, or a key alone.
        if self._changes is None:
            self.leaving_out.of_table(self, len(kept) - len(answers) - copied.stored)
        refused = dict(fitted.refused)
        general |= fitted.general
        numbers = np.delete(np.arange(table.num_rows), list(refused))
        for row, answer in answers.items():
            refused[int(numbers[row])] = reason = f"{self} refuses it: {answer.reason}"
            if not answer.about_values:
                general.add(reason)
        self.leaving_out.of(self, fitted)
        return refused

    @property
    def _table(self) -> PostgresTable:
        assert self._found is not None  # noqa: S101  open
        return self._found

    def _fit(
        self, table: pa.Table, only: Sequence[str] | None
    ) -> tuple[Fitted, Sequence[PostgresColumn]]:
        known = self._table.columns
        choice = choose(self, known, table.column_names, only, self.extra_columns, had=self._had)
        fitted = choice.fit(table, targets(choice.columns), letters=self.takes_letters)
        return fitted, choice.columns
