"""Rows to Spark: into a table or a directory that Spark reads, or through a function on DataFrames."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self, cast, get_args

import structlog
from anyio import to_thread

from framework.errors import KmrError, SinkError, StrategyError
from framework.reducer import Empty, Flushed, Reducer, Retry
from framework.reducers.tables import one_table
from framework.results import reason_of
from framework.sinks.spark.destinations import choose_path, choose_table
from framework.sinks.spark.files import Compression
from framework.sinks.spark.names import plan_parts
from framework.sinks.spark.session import SharedSession
from framework.sinks.spark.types import to_spark

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from framework.record import Rows
    from framework.reducer import (
        Context,
        FlushResult,
        OnError,
        OnShutdown,
        Poisoned,
        WhenFull,
    )
    from framework.sinks.spark.destinations import Destination
    from framework.sinks.spark.names import Part

__all__ = ["SparkWriter"]

DEFAULT_MAX_ROWS = 500_000
DEFAULT_MAX_BYTES = 128 * 1024 * 1024
DEFAULT_MAX_AGE = 60.0

_log = structlog.get_logger(__name__)


class SparkWriter(Reducer):
    """Writes rows for Spark: into a table of its catalog, to a path, or through a function of yours.

    A flush is one Parquet file per topic partition, written here by pyarrow under a hidden name and then
    renamed to `group~topic~partition~first-last.parquet`: the same offsets, written again after a crash
    or by another worker, replace the file that has them, so that nothing is doubled as long as ranges
    are the same. For a table, Spark is then told to look again. This is the fastest way: a flush of
    32,768 rows took 0.02 s (0.12 s into a table) and `DataFrame.write` 0.6 s, one of 500,000 rows 0.1 s
    (0.4 s) and `DataFrame.write` 2 to 6 s (2 cores; `python -m bench.spark_sink` measures it). It needs
    no JVM unless there is a table or a transform.

    Where files cannot be put so, Spark writes them:

    - other file formats (ORC, JSON, CSV, Avro), and file systems that only Spark reaches: a directory
      `kmr_range=...` per flush and topic partition, overwritten as a whole. Nothing is doubled;
      `kmr_range` is one more column when it is read;
    - Delta: with `txnAppId` = `kmr:group:topic:partition` and `txnVersion` = the last offset, so that a
      range that is there already is skipped. It also skips offsets that begin anew: after a topic was made
      anew, or to write old offsets once more, use another consumer group;
    - everything else (Iceberg, ORC tables, a transform that writes by itself) is at least once: a flush
      that is repeated after a crash may be there twice. A line in the log says so at start.

    Rows that belong to no single topic partition, such as aggregates, are named after all of the offsets
    behind them; in Delta they are at least once.

    Types are those that Spark has: unsigned integers become wider signed ones, timestamps microseconds
    (what is finer is cut off). The first flush, or what is there already, decides about a column; a
    value that does not fit later goes to `reduce_err`. Name the types with `schema` where the first rows
    do not show them.

    What Spark is given as a DataFrame is held by its driver as a whole: with `transform` and more than
    100,000 rows a flush, give it (or the Spark Connect server) `spark.driver.memory` of 2g and more.

    Many small files are slow to read: flush rarely, and let `kmr spark compact` put them together.

    With `--engine spark`, tasks write Parquet files to a path, one for each range of offsets. All else is
    written by the driver, once for each micro-batch and topic partition, with the engine's own session.

    Args:
        table: `table`, `database.table` or `catalog.database.table`; it must exist.
        path: a directory, or its URI: `s3://bucket/directory`. It need not exist yet.
        format: of a path: `parquet`, or what the Spark session has: `delta`, `iceberg`, `orc`, `json`.
        partition_by: of a path: columns of text, integers, booleans or dates; each value is a directory.
        transform: called with a DataFrame of the rows of one topic partition in one flush. What it
            returns is written to the table or path; with neither of them, it writes by itself and
            returns None. It runs again when a flush is tried again.
        schema: of a path: columns and their types; further ones are welcome.
        master: `local[2]`, `spark://host:port`, or `sc://host:port` (Spark Connect: no JVM here). None:
            the session that runs in this process, else what Spark's own configuration says. All writers of
            a process share one session.
        settings: Spark settings for a session that is opened.
        compression: of Parquet files that are written here: `zstd`, `snappy`, `gzip`, `lz4`, `none`.
        options: for Spark's writer, which writes then, also Parquet.
        max_rows: of all partitions together; see `Reducer` for this and the rest.

    Raises:
        StrategyError: an argument makes no sense.
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
        compression: Compression = "zstd",
        options: Mapping[str, str] | None = None,
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
        if table is not None and path is not None:
            raise StrategyError("SparkWriter: either table or path, not both")
        if table is None and path is None and transform is None:
            raise StrategyError(
                "SparkWriter needs a table, a path, or a transform that writes by itself"
            )
        if path is None and (format != "parquet" or partition_by or schema is not None):
            raise StrategyError(
                "SparkWriter: format, partition_by and schema are for a path; a table has its own"
            )
        if compression not in get_args(Compression):
            raise StrategyError(
                f"SparkWriter: compression must be one of {get_args(Compression)}, not {compression!r}"
            )
        self.table = table
        self.path = None if path is None else str(path)
        self.format = format.lower()
        self.partition_by = (
            (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        )
        self.transform = transform
        self.schema = None if schema is None else to_spark(schema.empty_table()).schema
        self.compression = compression
        self.options = dict(options or {})
        self.session = SharedSession(master, settings or {})
        self._group = ""
        self._added: list[Rows] = []
        self._destination: Destination | None = None
        self._opened = False
        self._written: dict[str, list[Poisoned]] = {}
        self._told: set[str] = set()

    def spawn(self) -> Self:
        """A copy with rows of its own, and the same Spark session."""
        other = copy.copy(self)
        other._added, other._written = [], {}  # noqa: SLF001  of our own class
        return other

    @property
    def needs_session(self) -> bool:
        """Whether Spark itself is needed: for a table, a transform, options, or what is not Parquet."""
        return (
            self.path is None
            or self.transform is not None
            or self.format != "parquet"
            or bool(self.options)
        )

    async def open(self, context: Context) -> None:
        """Open the session, if one is needed, and read the table.

        Raises:
            SparkUnavailable: Spark does not start or answer.
            StrategyError: there is no such table, or the path cannot be written to.
        """
        self._group = context.group
        await to_thread.run_sync(self._open)
        doubt = self.at_least_once
        if doubt is not None and doubt not in self._told:
            self._told.add(doubt)
            _log.info("delivers at least once", stage=context.stage, reason=doubt)

    def _open(self) -> None:
        if self.needs_session:
            self.session.acquire()
            self._opened = True
        try:
            self._destination = self._choose()
        except KmrError:
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _choose(self) -> Destination | None:
        if self.table is not None:
            return choose_table(
                self.session, self.table, compression=self.compression, options=self.options
            )
        if self.path is not None:
            return choose_path(
                self.session if self.needs_session else None,
                self.path,
                format=self.format,
                partition_by=self.partition_by,
                compression=self.compression,
                options=self.options,
                schema=self.schema,
            )
        return None

    def _explain(self, error: Exception) -> SinkError:
        return SinkError(f"cannot write to {self.table or self.path}: {reason_of(error)}")

    @property
    def at_least_once(self) -> str | None:
        """Why a flush that is repeated may be there twice; None if it is not. Known once it is open."""
        if self._destination is None:
            return "the transform writes by itself"
        return self._destination.doubt

    async def close(self) -> None:
        """End the session, if it was opened here and nobody else uses it."""
        if self._opened:
            self._opened = False
            await to_thread.run_sync(self.session.release)

    def add(self, rows: Rows) -> None:
        """Keep the rows for the next flush."""
        self._added.append(rows)

    def reset(self) -> None:
        """Forget the rows. What was written of them stays known until a flush is complete."""
        self._added = []

    def flush(self) -> FlushResult:
        """Write what was added, but for what an earlier attempt has written already. Blocks: for a thread.

        Raises:
            StrategyError: rows and destination do not fit each other.
        """
        if not self._added:
            return Empty()
        try:
            for part in plan_parts(self._added, self._group):
                if part.name not in self._written:
                    self._written[part.name] = self._write(part)
            if self._destination is not None:
                self._destination.publish()
        except KmrError:
            raise
        except Exception as error:
            meaning = self.session.translate(error) if self._opened else error
            if meaning is not error:
                raise meaning from error
            if isinstance(error, OSError):
                return Retry(None, f"{self.table or self.path}: {reason_of(error)}")
            raise
        poisoned = [refused for rows in self._written.values() for refused in rows]
        self._written = {}
        return Flushed(poisoned=poisoned)

    def _write(self, part: Part) -> list[Poisoned]:
        rows = one_table(part.insert.parts)
        if self.transform is not None:
            self._transform(part, rows)
            return []
        destination = cast("Destination", self._destination)
        return list(part.insert.poisoned(destination.write(part, rows)))

    def _transform(self, part: Part, rows: pa.Table) -> None:
        transform: Any = self.transform
        made = transform(self.session.get().createDataFrame(to_spark(rows)))
        name = getattr(transform, "__qualname__", repr(transform))
        if self._destination is None:
            if made is not None:
                raise StrategyError(
                    f"SparkWriter: {name} returned {type(made).__name__}, and there is no table or path to "
                    "write it to"
                )
        elif made is None:
            raise StrategyError(
                f"SparkWriter: {name} returned None, but what it returns is written to "
                f"{self.table or self.path}: return a DataFrame, or leave out table and path"
            )
        else:
            self._destination.write_frame(part, made)
