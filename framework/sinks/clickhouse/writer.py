"""Write rows to ClickHouse: large inserts, one per partition, each safe to repeat."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import pyarrow as pa
import structlog

from ...columns.kinds import JSON_OBJECTS
from ...config.schema import Duration, parse_duration
from ...errors import KmrError, SinkError, StrategyError
from ...record import COORDINATES
from ...reducers.sink import declared_columns
from ...service.threads import run_in_thread
from ..answers import connected, of_clickhouse, one_line, sink_error
from ..changes import Changes
from ..choosing import ExtraColumns, schema_to_create
from ..planning import MAX_BLOCK_ROWS, divided, together
from ..ranges import RangeWriter
from .changes import Versions
from .client import ClickHouseAddress, connect_async
from .counting import columns_to_count
from .ddl import TableLayout, create_table
from .deduplication import read_deduplication, read_memories, takes_joined
from .examination import Examination
from .inserts import Inserter, moved
from .repeating import fingerprint, found_among, repeat, was_counted
from .table import MissingTable, read_table, signature_of
from .types import is_cast_by_server, stored_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...reducers.finding import Finding
    from ...reducers.reducer import Context, Limits
    from ..planning import RangeRows
    from ..ranges import RangeDelivery
    from .client import ClickHouseConnection
    from .deduplication import InsertMemory
    from .table import ClickHouseTable

_SMALL_ROWS = 100_000  # of a flush that is written with those of other partitions
_RESERVED = (
    *("insert_deduplication_token", "async_insert"),
    *("insert_deduplicate", "deduplicate_insert"),
)

_log = structlog.get_logger(__name__)


class ClickHouseWriter(RangeWriter):
    """Writes rows to a ClickHouse table.

    Columns are matched by name and cast to the table's types; rows with a value that does not fit go to
    `reduce_err`, the others are written. Columns topic, partition, offset and timestamp that the table has
    and the rows lack are those of the record.

    Every INSERT has the rows of one partition and the deduplication token
    `group:topic:partition:first-last`, so the table recognises one that is repeated after a lost answer
    or by another worker (`non_replicated_deduplication_window`, or the replicated ones, must be large
    enough, also of tables that materialized views fill; a warning at start shows how to set
    them). A topic that was deleted and created anew therefore needs another group or an emptied table:
    its offsets begin again, and its first rows would count as repetitions.

    Ranges of up to 100,000 rows that have waited for `max_age`, or have four times `max_rows` rows together,
    are one INSERT of up to 500,000 rows, where the table has the columns topic, partition and offset, no
    PARTITION BY and no materialized view (docs/clickhouse.md).

    With `exactly-once` each range of offsets is announced in the group's committed offset before it is
    written; after a crash exactly that range is read, mapped and written again with the same token, and
    counted where the table has the columns topic, partition and offset of the record. It takes one commit
    per flush. It requires that the map returns the same rows for the same records, that the topic still
    has them (retention), and that the table still remembers the token; a replicated table is counted
    before. A power failure of ClickHouse can lose rows that it has acknowledged, unless the table has
    `fsync_after_insert = 1`. It is the default where the table
    deduplicates. With `at-least-once` an INSERT that was under way in a crash may be doubled, because the
    records are divided into other ranges afterwards; where a flush has rows of more than 8 partitions, up
    to 64 that have fewer than 1,000 rows each are one INSERT.

    Example:
        ```python
        from kmr.sinks import ClickHouseWriter

        embedded = ClickHouseWriter("hits", create=True)
        server = ClickHouseWriter("web.hits", url="http://reader@clickhouse:8123", max_age=2)
        ```

    Args:
        table: `table` or `database.table`; it must exist, unless `create` is set.
        delivery: `exactly-once`, which an unsuitable table refuses at start, or `at-least-once`. None:
            exactly-once if the table deduplicates, else at-least-once with a warning.
        url: `http://user:password@host:8123/database`, `https://...`, or `chdb:///directory` for the
            engine inside this process. None: the environment's KMR_CLICKHOUSE_URL, else the embedded
            ClickHouse in `.kmr/clickhouse`.
        database: overrides that of the URL.
        columns: write these columns only; None: all columns of the rows.
        extra_columns: `error`, or `ignore` columns of the rows that the table lacks.
        settings: ClickHouse settings for every request.
        concurrency: the most inserts at a time.
        inserts_per_second: the most inserts in a second that a worker makes for the age of their rows, where
            each partition has its own, or small ranges are joined; see `RangeWriter`. A server refuses
            inserts when a table gets more parts than it can merge.
        compression: of the blocks on the wire; `auto`: lz4, but none to this machine.
        connect_timeout: seconds to wait for the server at start.
        timeout: seconds until a request is retried.
        client: further arguments of clickhouse-connect's client, such as `ca_cert` or `http_proxy`.
        create: make the table at start if it is missing, for the columns that the strategy declares, with
            topic, partition and offset of the record, or for those of a schema.
        evolve: `add`: a column of the rows that the table lacks is added to it, and rows that do not fit
            the table go to `reduce_err`. None: both are errors.
        order_by: the sorting key of a table that is made: names of columns, or expressions. None: topic,
            partition and offset if the rows have them, else the first time that is never null.
        partition_by: of a table that is made: an expression.
        ttl: of a table that is made: an expression, such as `ts + INTERVAL 30 DAY`.
        engine: of a table that is made. None: MergeTree, with a cluster ReplicatedMergeTree.
        cluster: create and alter the table on every server of this cluster.
        changes: the rows are changes, with a column `op` (docs/changes.md): the table is a ReplacingMergeTree
            that keeps the last version of each key. Versions make it exactly once, whatever is repeated.
        key: with `changes`, the columns that name a row.
        limits: the limits and policies of `Reducer`. `max_rows` is for each partition, or, with
            `at-least-once`, for all together; at most 1,000,000 with exactly-once.

    Raises:
        StrategyError: an argument is not allowed.
    """

    joins_ranges = True

    def __init__(
        self,
        table: str,
        *,
        delivery: RangeDelivery | None = None,
        url: str | None = None,
        database: str | None = None,
        columns: Sequence[str] | None = None,
        extra_columns: ExtraColumns = "error",
        settings: Mapping[str, Any] | None = None,
        concurrency: int = 4,
        inserts_per_second: float | None = 4.0,
        compression: Literal["lz4", "zstd", "auto"] | None = "auto",
        connect_timeout: Duration = 10.0,
        timeout: Duration = 60.0,
        client: Mapping[str, Any] | None = None,
        create: bool | pa.Schema = False,
        evolve: Literal["add"] | None = None,
        order_by: Sequence[str] | None = None,
        partition_by: str | None = None,
        ttl: str | None = None,
        engine: str | None = None,
        cluster: str | None = None,
        changes: bool = False,
        key: Sequence[str] | None = None,
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(
            delivery=delivery or "exactly-once",
            concurrency=concurrency,
            inserts_per_second=inserts_per_second,
            **limits,
        )
        self.capabilities = replace(
            self.capabilities,
            block_rows=MAX_BLOCK_ROWS,
            joins_rows=0 if changes or partition_by else _SMALL_ROWS,
            shares_tokens=True,
        )
        if not table:
            raise StrategyError("ClickHouseWriter needs the name of a table")
        if delivery != "at-least-once" and (self.max_rows or 0) > MAX_BLOCK_ROWS:
            raise StrategyError(
                f"ClickHouseWriter: max_rows={self.max_rows} is more than one block of ClickHouse "
                f"({MAX_BLOCK_ROWS} rows), the most that it writes atomically; lower it"
            )
        if url is not None:
            ClickHouseAddress.of(url)
        if evolve is not None and extra_columns == "ignore":
            raise StrategyError(
                "ClickHouseWriter: evolve='add' adds the columns that extra_columns='ignore' leaves out; "
                "set one of them"
            )
        if create and "{" in table:
            raise StrategyError(
                f"ClickHouseWriter: ClickHouse would replace the part in braces of {table!r}, a macro; give "
                "the table another name"
            )
        if database is not None and "." in table:
            raise StrategyError(
                f"ClickHouseWriter: the table {table!r} names its database, and database={database!r} "
                "another; give one of them"
            )
        if taken := [name for name in _RESERVED if name in (settings or {})]:
            raise StrategyError(
                f"ClickHouseWriter sets {' and '.join(taken)} itself: without it a repeated INSERT "
                "would double its rows"
            )
        self.table = table
        self._wanted = delivery
        self.url = url
        self.database = database
        self.columns = None if columns is None else tuple(columns)
        self.extra_columns = extra_columns
        self.settings = dict(settings or {})
        self.compression = compression
        self.connect_timeout = parse_duration(connect_timeout, "ClickHouseWriter: connect_timeout")
        self.timeout = parse_duration(timeout, "ClickHouseWriter: timeout")
        self.client = dict(client or {})
        self.create = create
        self.evolve = evolve
        self.layout = TableLayout(
            None if order_by is None else tuple(order_by), partition_by, ttl, engine, cluster
        )
        self.changes = changes
        self._versions: Versions | None = None
        if (by_key := Changes.of("ClickHouseWriter", key, changes=changes)) is not None:
            self._versions = Versions(by_key)
            self.replaces_by = by_key.key
            self.layout = self._versions.layout(self.layout)
        self._inserter: Inserter | None = None
        self._shares = False
        self._before: int | None = None  # fingerprint before the first attempt of a flush
        self._warned: set[str] = set()

    def __deepcopy__(self, memo: object) -> Self:
        """Copy; the copies share the set of logged warnings, so that a stage logs each once."""
        other = copy.copy(self)
        other._forget()  # noqa: SLF001  of our own class
        other.reset()
        return other

    async def open(self, context: Context) -> None:
        """Connect, create the table if that is wanted, and read it.

        Raises:
            SinkError: the server cannot be reached, or refuses the connection or the statement.
            StrategyError: there is no such table, or it does not deduplicate and must.
        """
        await super().open(context)
        if isinstance(context.for_sinks.opened, ClickHouseWriter):
            self._share(context.for_sinks.opened)
            return
        target, name = self.target()
        connection = await self._connect(target)
        try:
            table = await self._read_or_create(connection, context)
            if self.evolve is not None and table.engine == "Distributed":
                raise StrategyError(
                    f"ClickHouseWriter({self.table!r}, evolve='add'): {table} is Distributed, and the tables "
                    "behind it would lack the new columns; write to one of them, with cluster="
                )
            name = table.name
            memories = await read_memories(connection, target.database, name)
            if context.for_sinks.prepare and (
                remedies := [each.remedy for each in memories if each.remedy]
            ):
                for remedy in remedies:
                    await connection.execute(remedy)
                    _log.info("table altered", statement=remedy)
                memories = await read_memories(connection, target.database, name)
            self.choose_delivery(memories)
            if self._versions is not None:
                await self._versions.check(connection, table)
            else:
                self._warn(memories, context.stage)
            deduplication = await read_deduplication(connection)
            signature = await signature_of(connection, table)
            if not await self.takes_joined(connection, table):
                self.capabilities = replace(self.capabilities, joins_rows=0)
        except Exception as error:
            await connection.close()
            if isinstance(error, KmrError):
                raise
            what = f"{target}: cannot read or create the table {self.table}"
            raise sink_error(what, of_clickhouse(error)) from error
        compression = self.compression
        if compression == "auto":
            compression = None if target.is_local else "lz4"
        stored = {
            each.name: JSON_OBJECTS if each.type.base_type == "JSON" else stored_type(each.type)
            for each in table.columns
            if each.type.base_type == "JSON" or not is_cast_by_server(each.type)
        }
        context.for_sinks.tell_types(context.stage, stored)
        self._inserter = Inserter(
            connection,
            context.group,
            table,
            self.columns,
            self.extra_columns,
            compression,
            memories[0].deduplicates or self._versions is not None,
            self.set_up,
            self.leaving_out,
            self.layout if self.evolve else None,
            deduplication,
            frozenset(column.name for column in table.columns),
            self.takes_letters,
            self._versions is not None,
            self.require_taken,
            signature,
        )

    async def examine(self, context: Context) -> Sequence[Finding]:
        """See `Sink.examine`: the server and the table, and what `open` would create or alter."""
        target, name = self.target()
        connection = await self._connect(target)
        try:
            declared = await declared_columns(context)
            if self._versions is not None and declared is not None:
                declared = self._versions.columns(declared)
            return await Examination(self, connection, target.database, name, context).run(declared)
        except KmrError:
            raise
        except Exception as error:
            raise SinkError(
                f"{target}: cannot read the table {self.table}: {of_clickhouse(error).reason}"
            ) from error
        finally:
            await connection.close()

    def target(self) -> tuple[ClickHouseAddress, str]:
        """Return the address with the table's database, and the table's name without it."""
        database, _, name = self.table.rpartition(".")
        return ClickHouseAddress.of(self.url, self.database or database or None), name

    @property
    def counts_in(self) -> tuple[str, ...]:
        database, _, name = self.table.rpartition(".")
        return self.url or "", self.database or database, name

    def doubts(self, declared: pa.Schema | None) -> Sequence[str]:
        """Name the columns of `order_by` that are missing or may be null: a null goes to `reduce_err`."""
        schema = self.create if isinstance(self.create, pa.Schema) else declared
        if not self.create or schema is None or self.layout.order_by is None or self._versions:
            return ()
        known = {*schema.names, *COORDINATES.names}
        missing = [
            f"order_by names {name}, which the rows do not have, so the table cannot be made"
            for name in self.layout.order_by
            if name.isidentifier() and name not in known
        ]
        return missing or [
            f"column {name} may be null, and a column of order_by never is in the table: rows with a null go "
            f"to reduce_err. Declare it without null, or order by ifNull({name}, ...)"
            for name in self.layout.order_by
            if name in schema.names and schema.field(name).nullable
        ]

    def create_statement(self, declared: pa.Schema | None) -> str:
        """Return the CREATE TABLE for rows with the columns of `create`, or else the declared ones.

        Args:
            declared: the columns of the rows; None if the strategy does not declare them.

        Raises:
            StrategyError: no columns are declared, ClickHouse has no type for one of them, or they lack one
                of `columns`.
        """
        schema = schema_to_create(self.table, self.create, declared, self._versions, self.columns)
        if schema is None:
            raise StrategyError(
                f"ClickHouseWriter({self.table!r}): the columns of its rows are not declared, so no CREATE "
                "TABLE can be made of them; declare them with Strategy(value=Json(Hit)), the map's return "
                "annotation (-> Hit), @map_record(schema=...) or ClickHouseWriter(create=pa.schema(...)), or "
                "take those of a sample: kmr clickhouse create-table STRATEGY --sample FILE"
            )
        target, name = self.target()
        return create_table(target.database, name, schema, self.layout)

    async def _read_or_create(
        self, connection: ClickHouseConnection, context: Context
    ) -> ClickHouseTable:
        """Read the table; create it before if it is missing and `create` is set."""
        target, name = self.target()
        try:
            table = await read_table(connection, target.database, name, context.group)
        except MissingTable:
            declared = await declared_columns(context)
            try:
                statement = self.create_statement(declared)
            except StrategyError as error:
                raise StrategyError(
                    f"There is no table {target.database}.{name}. {error}"
                ) from None
            if not self.create:
                raise StrategyError(
                    f"There is no table {target.database}.{name}. Create it, or set create=True: "
                    f"{one_line(statement)}"
                ) from None
        else:
            if message := moved(name, table):
                _log.warning(message)
            return table
        await connection.execute(statement)
        _log.info("table created", statement=one_line(statement))
        for doubt in self.doubts(declared):
            _log.warning("rows may be refused", stage=context.stage, reason=doubt)
        return await read_table(connection, target.database, name, context.group)

    def _share(self, opened: ClickHouseWriter) -> None:
        """Use the connection of another copy, which closes it, and what it knows of the table."""
        assert opened._inserter is not None  # noqa: S101  `SinkContext.opened` is open
        self._inserter = replace(opened._inserter, _outcomes={})
        self._shares = True

    def choose_delivery(self, memories: Sequence[InsertMemory]) -> None:
        """Choose the guarantee that the table supports. Raises StrategyError if another was demanded."""
        table = memories[0]
        if not table.deduplicates and self._versions is None:
            if self._wanted == "exactly-once":
                raise StrategyError(
                    f"ClickHouseWriter({self.table!r}, delivery='exactly-once'): "
                    f"{table.advice() or f'{self.table} ({table.engine}) does not deduplicate'}"
                )
            self.capabilities = replace(self.capabilities, delivery="at-least-once")

    def _warn(self, memories: Sequence[InsertMemory], stage: str) -> None:
        """Log how to make the tables recognise repeated INSERTs."""
        for advice in dict.fromkeys(memory.advice() for memory in memories):
            if advice is not None and advice not in self._warned:
                self._warned.add(advice)
                _log.warning("inserts may be doubled", stage=stage, advice=advice)

    async def _connect(self, target: ClickHouseAddress) -> ClickHouseConnection:
        connect = partial(
            connect_async,
            target,
            settings=self.settings,
            connect_timeout=self.connect_timeout,
            timeout=self.timeout,
            options=self.client,
        )
        return await connected(target, self.connect_timeout, connect, of_clickhouse)

    async def close(self) -> None:
        """Disconnect."""
        if self._inserter is not None and not self._shares:
            await self._inserter.connection.close()

    def reset(self) -> None:
        """Drop the rows. The inserter remembers which are written until a flush is complete."""
        super().reset()
        self._before = None

    def _forget(self) -> None:
        super()._forget()
        if self._inserter is not None:
            self._inserter.forget()

    @property
    def _opened(self) -> Inserter:
        assert self._inserter is not None  # noqa: S101  `flush` has looked
        return self._inserter

    def __str__(self) -> str:
        return str(self._inserter.table) if self._inserter is not None else self.table

    async def has(self, rows: RangeRows) -> bool:
        """Count the rows of a range that may have been written: the table may have forgotten its token.

        Where that proves nothing the token decides.
        """
        if not rows.repeated or self.capabilities.delivery != "exactly-once":
            return False
        if self._versions is not None:  # they are written again: that changes nothing
            return False
        return await was_counted(self._opened, rows)

    async def refused(self, rows: RangeRows) -> Mapping[int, str]:
        return await self._opened.refused(rows)

    async def write(self, rows: RangeRows) -> Mapping[int, str]:
        """Write a range; the table drops it if it knows the token.

        Raises:
            StrategyError: rows and table do not fit.
            UnexpectedDuplicate: see `_write_first`.
        """
        if self._versions is not None:
            return await self._apply(self._versions, rows)
        is_first = self._is_first(rows) and not rows.shared
        return await (self._write_first(rows) if is_first else self._write(rows))

    async def takes_joined(self, connection: ClickHouseConnection, table: ClickHouseTable) -> bool:
        """Return whether ranges of several partitions may be one INSERT into a table."""
        counts = bool(columns_to_count(table, self.columns)) and table.counting.missing
        return counts and await takes_joined(connection, table.database, table.name)

    def may_join(self) -> bool:
        """Return whether a count proves that the table has the rows, or lacks them."""
        return self._opened.counts(self.rows)

    async def found_among(self, ranges: Sequence[RangeRows]) -> Sequence[RangeRows]:
        """Return those of the ranges that have rows in the table."""
        return await found_among(self._opened, ranges)

    async def write_together(self, ranges: Sequence[RangeRows]) -> Sequence[Mapping[int, str]]:
        """Write ranges in one INSERT under their token. See `RangeWriter.write_together`."""
        refused = await self._opened.write(together(ranges))
        self._opened.forget()
        return divided(ranges, refused)

    async def _apply(self, versions: Versions, rows: RangeRows) -> Mapping[int, str]:
        """Write the changes of a range; each has a version, so writing them again changes nothing."""
        prepared = await run_in_thread(versions.prepare, rows, self._opened.table)
        applied = prepared.applied
        if prepared.truncate is not None:
            await self._opened.execute(prepared.truncate)
        refused = dict(applied.refused)
        if len(prepared.rows):
            for row, reason in (await self._opened.write(prepared.rows)).items():
                refused[int(applied.source[row])] = reason
        return refused

    async def _write(self, rows: RangeRows) -> Mapping[int, str]:
        if rows.repeated:
            return await repeat(
                self._opened, rows, alone=self.capabilities.delivery == "exactly-once"
            )
        return await self._opened.write(rows)

    async def _write_first(self, rows: RangeRows) -> Mapping[int, str]:
        """Write the first range of a partition that this process announces.

        Raises:
            UnexpectedDuplicate: the table dropped the rows as a repetition, so it remembers a range that
                was never announced: the offsets were moved back by another tool.
        """
        if self._before is None:
            self._before = await fingerprint(self._opened, rows)
            if self._before is None:
                return await self._write(rows)
        result = await self._write(rows)
        if len(result) == len(rows):
            return result
        if await fingerprint(self._opened, rows) == self._before:
            raise self._unexpected(rows)
        self._before = None
        return result
