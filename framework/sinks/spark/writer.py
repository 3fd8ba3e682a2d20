"""The sink for Spark: tables, directories of files, or a function on DataFrames."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import numpy as np
import pyarrow as pa
import structlog

from ...dead_letters.letters import without_contents
from ...errors import KmrError, SinkError, StrategyError, reason_of
from ...record import Rows
from ...reducers.collect import Collecting
from ...reducers.finding import Finding
from ...reducers.reducer import ERROR_STAGE, Retry
from ...reducers.sink import (
    AT_LEAST_ONCE_ON_SPARK,
    NEW,
    Capabilities,
    RowsRefused,
    Sink,
    declared_columns,
)
from ...service.threads import run_in_thread
from ...spark.session import SharedSession
from ..answers import (
    Patience,
    PutOff,
    SetUp,
    cause_of_spark,
    may_be_of_rows,
    put_off,
    refusal_of_spark,
)
from ..bisecting import bisect
from ..changes import Changes
from ..choosing import schema_to_create
from ..parquet.files import DEFAULT_MAX_AGE, DEFAULT_MAX_BYTES, DEFAULT_MAX_ROWS
from ..planning import plan_ranges
from ..ranges import LeavingOut
from .destinations import (
    FILE_FORMATS,
    SparkDestination,
    TableFiles,
    choose_path,
    choose_table,
)
from .merging import choose_merged, create_statement, is_there
from .raising import raising
from .types import to_spark

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from ...columns.fitted import Fitted
    from ...config.schema import Duration
    from ...record import TopicPartition
    from ...reducers.reducer import Context, Policies
    from ...reducers.sink import Refusal, Write
    from ..planning import RangeRows
    from .merging import MergedTable

    Destination = TableFiles | SparkDestination | MergedTable

_log = structlog.get_logger(__name__)


class SparkWriter(Collecting, Sink):
    """Writes rows by Spark: into a table of its catalog, to a path, or through your own function.

    Parquet files without Spark are `ParquetWriter`'s. A table that is made of Parquet files gets the same
    files, at its location: one for each topic partition of a flush,
    `group~topic~partition~first-last.parquet`, which is replaced if the same offsets are written again.
    Spark then refreshes its list of files. A flush of 32,768 rows took 0.12 s and `DataFrame.write` 0.6 s (2
    cores; `python -m bench.spark_sink` measures it).

    Everything else is written by Spark:

    - files at a path (ORC, JSON, CSV, Avro, and Parquet that a transform makes): a directory
      `kmr_range=...` per flush and topic partition, overwritten as a whole. Nothing is doubled; readers
      see `kmr_range` as one more column;
    - Delta: with `txnAppId` = `kmr:group:topic:partition` and `txnVersion` = the last offset, Delta skips
      a range that it has. It also skips offsets that restart from 0: use another consumer group after a
      topic was created again. After `kmr offsets reset` the id has a generation, so old offsets are
      written once more;
    - Iceberg, tables of other formats, and a transform that writes are at least once: a flush that is
      repeated after a crash may be doubled. The log says so at start.

    With `changes=True` the rows are changes of a table (docs/changes.md), and the table follows them by one
    MERGE for each topic partition of a flush: upserts and deletes by `key`, exactly once in Delta, also where
    the worker or the driver is killed. A MERGE takes seconds: flush rarely.

    Rows that belong to no single topic partition, such as aggregates, are named after all of their
    offsets; in Delta they are at least once.

    Types are Spark's: unsigned integers become wider signed ones, timestamps become microseconds (finer
    digits are cut off). The existing data, or else the first flush, decides the type of a column; a value
    that does not fit later goes to `reduce_err`. Set `schema` if the first rows do not show the types.

    Spark's driver holds a whole DataFrame: with `transform` and more than 100,000 rows a flush, give the
    driver (or the Spark Connect server) a `spark.driver.memory` of 2g or more.

    Many small files are slow to read: flush rarely.

    With `--engine spark` the driver writes, once for each micro-batch and topic partition, with the
    engine's session.

    Example:
        ```python
        from kmr.sinks import SparkWriter

        hits = SparkWriter(table="warehouse.hits", max_rows=500_000, max_age=60)
        ```

    Args:
        table: `table`, `database.table` or `catalog.database.table`; it must exist, unless `create` is set.
        path: a directory, or its URI: `s3://bucket/directory`. It need not exist yet.
        format: of a path: `delta`, `iceberg`, `orc`, `json`, or another one of the Spark session; `parquet`
            with a transform or options.
        partition_by: of a path: columns of text, integers, booleans or dates; each value is a directory.
        transform: called with a DataFrame of the rows of one topic partition in one flush. Its result is
            written to the table or path; without either of them, it must write the rows and return None.
            It runs again when a flush is retried, and where Spark refuses values: its result is then
            evaluated to find the rows, and written without them.
        schema: of a path: columns and their types; rows may have further columns.
        master: `local[2]`, `spark://host:port`, or `sc://host:port` (Spark Connect: no JVM here). None:
            the running session of this process, else Spark's own configuration. All writers of a process
            share one session.
        settings: Spark settings for a session that the writer opens.
        options: for Spark's writer, which then also writes into a table of Parquet files.
        changes: the rows are changes, with a column `op`. It needs a table of Delta, or a path with
            `format="delta"`, which is made if it is missing. The changes of a key must be in one partition.
        key: with `changes`, the columns that name a row.
        create: with `changes`, make a missing table of Delta for the columns that the strategy declares, or
            for those of a schema.
        max_rows: of all partitions together; for this and the other limits see `Reducer`.
        policies: those of `Reducer`.

    Raises:
        StrategyError: an argument is invalid, or arguments contradict each other.
    """

    def __init__(
        self,
        *,
        table: str | None = None,
        path: str | os.PathLike[str] | None = None,
        format: str = "parquet",  # noqa: A002  the user's word
        partition_by: str | Sequence[str] = (),
        transform: Callable[[DataFrame], DataFrame | None] | None = None,
        schema: pa.Schema | None = None,
        master: str | None = None,
        settings: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        changes: bool = False,
        key: Sequence[str] | None = None,
        create: bool | pa.Schema = False,
        max_rows: int | None = DEFAULT_MAX_ROWS,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        max_age: Duration | None = DEFAULT_MAX_AGE,
        **policies: Unpack[Policies],
    ) -> None:
        super().__init__(max_rows=max_rows, max_bytes=max_bytes, max_age=max_age, **policies)
        if table is not None and path is not None:
            raise StrategyError("SparkWriter: either table or path, not both")
        if table is None and path is None and transform is None:
            raise StrategyError("SparkWriter needs a table, a path, or a transform that writes")
        if path is None and (format != "parquet" or partition_by or schema is not None):
            raise StrategyError(
                "SparkWriter: format, partition_by and schema are for a path; a table has its own"
            )
        if path is not None and format.lower() == "parquet" and transform is None and not options:
            raise StrategyError(
                f"SparkWriter: Parquet files at {path} need no Spark: use ParquetWriter, with the same path"
            )
        self._changes = Changes.of("SparkWriter", key, changes=changes)
        self.replaces_by = () if self._changes is None else self._changes.key
        self.create = create
        self.table = table
        self.path = None if path is None else str(path)
        self.format = format.lower()
        self.partition_by = (
            (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        )
        self.transform = transform
        self.schema = None if schema is None else self._of_spark(schema)
        self.options = dict(options or {})
        self._check_changes()
        self.session = SharedSession(master, settings or {})
        self._group = ""
        self._generations: Mapping[TopicPartition, int] = {}
        self._destination: Destination | None = None
        self._opened = self._takes_letters = False
        self._written: dict[str, list[Refusal]] = {}
        self._set_up, self._leaving_out = SetUp(), LeavingOut()
        self._patience = Patience()
        self._logged: set[str] = set()
        self.capabilities = Capabilities(
            names_ranges=True,
            needs_session=True,
            on_spark=self._guarantee(),
            difference_on_spark="master= and settings= have no effect: the engine's session writes",
        )

    def _of_spark(self, schema: pa.Schema) -> pa.Schema:
        fitted = to_spark(schema.empty_table())
        for reason in fitted.general:
            raise StrategyError(reason)
        return fitted.table.schema

    def _check_changes(self) -> None:
        if self._changes is None:
            if self.create is not False:
                raise StrategyError(
                    "SparkWriter: create= is for changes=True; create the table, or write to a path"
                )
        elif self.transform is not None or self.options:
            raise StrategyError(
                "SparkWriter(changes=True) makes its own MERGE: remove transform= and options="
            )
        elif self.path is not None and self.format != "delta":
            raise StrategyError(
                f"SparkWriter(changes=True) cannot change rows in files of {self.format}: set "
                "format='delta'"
            )

    def _guarantee(self) -> str:
        """Return what holds on Spark, for `Capabilities.on_spark`."""
        if self._changes is not None:
            return (
                "exactly once in Delta, by a MERGE for each micro-batch and topic partition, with txnAppId "
                "and txnVersion; in another format a MERGE that comes late is not recognised"
            )
        if self.table is not None:
            return (
                "exactly once if the table is made of Parquet files that the driver can write, or is "
                "Delta (there, rows of an Aggregate are at least once); else at least once, which the "
                "log says at start"
            )
        if self.path is None:
            return f"the transform writes, {AT_LEAST_ONCE_ON_SPARK}"
        if self.format == "delta":
            return (
                "exactly once, by txnAppId and txnVersion; rows of several topic partitions, as of an "
                "Aggregate, at least once"
            )
        if self.format in FILE_FORMATS:
            return "exactly once, by a directory per micro-batch, which is replaced"
        return f"Spark appends to {self.format}, {AT_LEAST_ONCE_ON_SPARK}"

    def __str__(self) -> str:
        return f"Spark table {self.table}" if self.table else self.path or "Spark"

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy without rows that shares the Spark session."""
        other = copy.copy(self)
        other.rows, other._written = [], {}  # noqa: SLF001  of our own class
        other._patience = Patience()  # noqa: SLF001
        return other

    async def open(self, context: Context) -> None:
        """Open the session, and read the table.

        Raises:
            SparkUnavailable: Spark does not start or answer.
            StrategyError: there is no such table, or the path cannot be written to.
        """
        self._group, self._generations = context.group, context.for_sinks.generations
        self._leaving_out = LeavingOut(context.stage, context.for_sinks.count_left_out)
        self._takes_letters = context.stage == ERROR_STAGE
        if context.for_sinks.session is not None:
            self.session.use(context.for_sinks.session)
        declared = await declared_columns(context) if self._changes is not None else None
        await run_in_thread(self._open, declared)
        if self._destination is not None:
            self._destination.columns.letters = self._takes_letters
        if (
            self._destination is not None
            and (schema := self._destination.columns.schema) is not None
        ):
            stored = {field.name: field.type for field in schema}
            context.for_sinks.tell_types(context.stage, stored)
        doubt = self.at_least_once
        if doubt is not None and doubt not in self._logged:
            self._logged.add(doubt)
            _log.info("delivers at least once", stage=context.stage, reason=doubt)

    def _open(self, declared: pa.Schema | None) -> None:
        self.session.acquire()
        self._opened = True
        try:
            self._destination = self._choose(declared)
        except KmrError:
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _choose(self, declared: pa.Schema | None) -> Destination | None:
        if self._changes is not None:
            return self._merged(self._changes, declared)
        if self.table is not None:
            return choose_table(self.session, self.table, self.options)
        if self.path is not None:
            return choose_path(
                self.session,
                self.path,
                format=self.format,
                partition_by=self.partition_by,
                options=self.options,
                schema=self.schema,
            )
        return None

    def _merged(self, changes: Changes, declared: pa.Schema | None) -> MergedTable:
        name, made = self._followed(changes, declared)
        return choose_merged(self.session, name, changes, made, self.partition_by)

    def _followed(
        self, changes: Changes, declared: pa.Schema | None
    ) -> tuple[str, pa.Schema | None]:
        """Return the name of the table that follows changes, and its columns if it may be made."""
        name, path = self.table, self.path or ""
        if name is None:
            name = f"delta.`{path if '://' in path else Path(path).resolve()}`"
        if self.create is False and not path:
            return name, None
        wanted = self.create if self.schema is None else self.schema
        return name, schema_to_create(name, wanted, declared, changes, None)

    async def examine(self, context: Context) -> Sequence[Finding]:
        """See `Sink.examine`: a table for changes is not made, and the session is closed."""
        if self._changes is None:
            return await super().examine(context)
        declared = await declared_columns(context)
        return [await run_in_thread(self._examine, self._changes, declared, context.stage)]

    def _examine(self, changes: Changes, declared: pa.Schema | None, stage: str) -> Finding:
        name, made = self._followed(changes, declared)
        with self.session as session:
            if made is not None and not is_there(session, name):
                statement = create_statement(name, made, self.partition_by)
                return Finding("ok", stage, f"table {name} will be created: {statement}")
            choose_merged(self.session, name, changes, None)
        return Finding("ok", stage, f"Spark can MERGE into table {name}")

    def _explain(self, error: Exception) -> SinkError:
        return SinkError(f"cannot write to {self.table or self.path}: {reason_of(error)}")

    @property
    def at_least_once(self) -> str | None:
        """Why a repeated flush may be doubled; None if it never is. Known after `open`."""
        if self._destination is None:
            return "the transform writes"
        return self._destination.doubt

    async def close(self) -> None:
        """Release the session; the last writer of the process stops it, if a writer opened it."""
        if self._opened:
            self._opened = False
            await run_in_thread(self.session.release)

    def flush(self, write: Write = NEW) -> None:
        """Write the added rows, except parts that an earlier attempt wrote. Blocks; call it in a thread.

        Raises:
            RowsRefused: some rows do not fit the destination.
            StrategyError: rows and destination do not fit each other.
        """
        missing: list[RangeRows] = []
        try:
            parts = plan_ranges(self.rows, self._group, self._generations)
            missing = [part for part in parts if part.file_name not in self._written]
            for part in missing:
                try:
                    self._written[part.file_name] = self._write(part)
                except Exception as error:
                    if may_be_of_rows(error):
                        self._patience.note(part.token, cause_of_spark(error))
                    raise
            if self._destination is not None:
                self._destination.publish()
        except KmrError:
            raise
        except Exception as error:
            meaning = self.session.translate(error) if self._opened else error
            if meaning is not error:
                raise meaning from error
            if isinstance(error, OSError):
                reason = f"{self.table or self.path}: {reason_of(error)}"
                doubles = any(self._doubles(part) for part in missing)
                raise Retry(reason, may_double=doubles) from error
            raise
        refusals = [refused for rows in self._written.values() for refused in rows]
        self._written = {}
        self._patience.forget()
        if refusals:
            raise RowsRefused(refusals)

    def _doubles(self, part: RangeRows) -> bool:
        return self._destination is None or self._destination.doubles(part)

    def _write(self, part: RangeRows) -> list[Refusal]:
        refused = self._write_rows(part)
        if refused and self._takes_letters:
            rows = sorted(refused)
            letters = part.table.take(rows)
            letters = _without_refused_values(letters, [refused[row] for row in rows])
            short = replace(part, parts=(Rows(letters, part.ranges),), piece="short")
            found = self._write_rows(short)
            refused = {rows[row]: reason for row, reason in found.items()}
        return part.refusals(refused)

    def _write_rows(self, part: RangeRows) -> dict[int, str]:
        """Write rows; return those that are refused."""
        table, general = part.table, set[str]()
        late = PutOff[Exception]()

        def refusal(error: Exception) -> str | None:
            reason = refusal_of_spark(error, general)
            if reason is not None or not may_be_of_rows(error):
                return reason
            late.note(error)
            if late.is_hopeless or not self._patience.is_over(part.token):
                return None
            return put_off(cause_of_spark(error))

        def write(numbers: NDArray[np.int64], is_piece: bool) -> Mapping[int, str]:
            piece = part
            if is_piece:
                piece = replace(part, piece=f"{numbers[0]}-{numbers[-1] + 1}")
            rows = table if len(numbers) == len(table) else table.take(numbers)
            if self.transform is not None:
                fitted = self._transform(piece, rows)
            else:
                fitted = cast("Destination", self._destination).write(piece, rows)
            self._leaving_out.of(self, fitted)
            general.update(fitted.general)
            late.is_written = True
            return fitted.refused

        refused = bisect(len(table), write, refusal, lambda: self._raising(table, refusal))
        if (error := late.reason_to_wait) is not None:
            raise error
        self._set_up.judge(self, len(table), refused, general)
        return refused

    def _raising(
        self, table: pa.Table, refusal: Callable[[Exception], str | None]
    ) -> dict[int, str]:
        """Return rows for which the transform raises, by their numbers; perhaps not all of them."""
        transform, destination = self.transform, self._destination
        if transform is None or destination is None:  # one that writes must not be tried
            return {}
        fitted = to_spark(table)
        numbers = np.delete(np.arange(len(table)), list(fitted.refused))
        fit = destination.fit if isinstance(destination, TableFiles) else None

        def made(frame: DataFrame) -> DataFrame | None:
            result = transform(frame)
            if result is not None and isinstance(destination, SparkDestination):
                return destination.stored(result)
            return result

        found = raising(self.session.get(), made, fitted.kept(), refusal, fit)
        return {int(numbers[row]): reason for row, reason in found.items()}

    def _transform(self, part: RangeRows, rows: pa.Table) -> Fitted:
        fitted = to_spark(rows)
        if (kept := fitted.kept()).num_rows:
            self._write_result(part, kept)
        return fitted

    def _write_result(self, part: RangeRows, rows: pa.Table) -> None:
        transform: Any = self.transform
        made = transform(self.session.get().createDataFrame(rows))
        name = getattr(transform, "__qualname__", repr(transform))
        if self._destination is None:
            if made is not None:
                raise StrategyError(
                    f"SparkWriter: {name} returned {type(made).__name__}, and there is no table or path to "
                    "write it to"
                )
        elif made is None:
            raise StrategyError(
                f"SparkWriter: {name} returned None, but its result is written to {self.table or self.path}: "
                "return a DataFrame, or leave out table and path"
            )
        else:
            self._destination.write_frame(part, made)


def _without_refused_values(failed: pa.Table, reasons: Sequence[str]) -> pa.Table:
    """Return failed records that Spark refuses as they are, without contents and time; the reason says so."""
    short = without_contents(failed)
    texts = [
        f"{text or ''} (not stored: timestamp, key, value and headers: {why})"
        for text, why in zip(short["reason"].to_pylist(), reasons, strict=True)
    ]
    changed: dict[str, list[Any]] = {"reason": texts, "timestamp": [None] * len(texts)}
    for name, values in changed.items():
        column = short.schema.field(name)
        at = short.schema.get_field_index(name)
        short = short.set_column(at, column, pa.array(values, column.type))
    return short
