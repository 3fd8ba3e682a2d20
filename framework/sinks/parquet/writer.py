"""Write rows to Parquet files, one for each range of offsets."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec
import numpy as np
import pyarrow as pa

from ...columns.fitted import Fitted
from ...errors import StrategyError, reason_of
from ...reducers.reducer import Retry
from ...service.storage import without_secrets
from ...service.threads import run_in_thread
from ..answers import PutOff, put_off
from ..ranges import RangeWriter
from .columns import DestinationColumns, stored_type
from .files import (
    DEFAULT_MAX_AGE,
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_ROWS,
    Compression,
    open_directory,
    unnamed_partitions,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ...config.schema import Duration
    from ...reducers.reducer import Context, Policies
    from ..planning import RangeRows
    from ..ranges import RangeDelivery
    from .files import Directory

_REFUSED = b"kmr.refused"
"""The key in the footer of the first file of a range: a JSON object with the rows that were refused."""


class ParquetWriter(RangeWriter):
    """Writes rows to Parquet files: a directory on this machine, or an object store. It needs no Spark.

    A file has the rows of one range of offsets, and is named by it:
    `group~topic~partition~first-last.parquet`, with the generation of the offsets behind it where they have
    one. So a range that is written again is the same file: exactly once. On a local disk a file is
    written under a hidden name, synced and renamed; on an object store it appears when its upload is
    complete. Readers never see a part of it.

    Types are those of the rows. The first of these decides which type a column has: `schema`, the columns
    that the strategy declares, a file that exists, the first flush. A value that does not fit goes to
    `reduce_err`; a new column is added to the files that follow.

    Many small files are slow to read: flush rarely. `kmr spark compact` merges files that it knows by
    their names, without Spark.

    Example:
        ```python
        from kmr.sinks import ParquetWriter

        hits = ParquetWriter("hits", partition_by=["day"], max_rows=1_000_000, max_age=300)
        ```

    Args:
        url: a directory, or its URI: `s3://bucket/directory?region=eu-central-1`, `gs://...`, `abfs://...`,
            `hdfs://...`. pyarrow opens it, which finds credentials as the cloud's own tools do; a scheme
            that it lacks is opened by fsspec, which is then needed. It need not exist yet.
        filesystem: of pyarrow or fsspec, opened already; `url` is then a path in it.
        partition_by: columns of text, integers, booleans or dates, whose values become directories:
            `day=2026-01-31`. A range is then one file in each of them.
        schema: columns and their types; rows may have further columns.
        compression: `zstd`, `snappy`, `gzip`, `brotli`, `lz4` or `none`.
        delivery: see `RangeWriter`.
        concurrency: see `RangeWriter`.
        max_rows: of a file; for this and the other limits see `Reducer`.
        policies: those of `Reducer`.

    Raises:
        StrategyError: an argument is invalid, or no file system can be opened.
    """

    range_name = "file"

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        partition_by: str | Sequence[str] = (),
        schema: pa.Schema | None = None,
        compression: Compression = "zstd",
        delivery: RangeDelivery = "exactly-once",
        concurrency: int = 4,
        max_rows: int | None = DEFAULT_MAX_ROWS,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        max_age: Duration | None = DEFAULT_MAX_AGE,
        **policies: Unpack[Policies],
    ) -> None:
        super().__init__(
            delivery=delivery,
            concurrency=concurrency,
            max_rows=max_rows,
            max_bytes=max_bytes,
            max_age=max_age,
            **policies,
        )
        self.url = str(url)
        self.filesystem = filesystem
        self.partition_by = (
            (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        )
        self.schema = schema
        self.compression: Compression = compression
        self._directory: Directory | None = None
        self._columns: DestinationColumns | None = None

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy without rows; the file system, if one is given, is shared."""
        other = copy.copy(self)
        other.rows, other._written = [], {}  # noqa: SLF001  of our own class
        return other

    async def open(self, context: Context) -> None:
        """Open the file system, and find out which columns there are.

        Raises:
            StrategyError: the directory cannot be written to.
        """
        await super().open(context)
        if isinstance(opened := context.for_sinks.opened, ParquetWriter):
            self._directory, self._columns = opened._directory, opened._columns  # noqa: SLF001  of our class
            return
        await run_in_thread(self._open, context)

    def _open(self, context: Context) -> None:
        directory = open_directory(
            self.url,
            filesystem=self.filesystem,
            partition_by=self.partition_by,
            compression=self.compression,
        )
        try:
            directory.check()
            schema = self.schema or context.for_sinks.schema_of(context.stage) or directory.schema()
        except OSError as error:
            raise StrategyError(
                f"{context.stage}: cannot write to {self}: {reason_of(error)}. Create the directory or the "
                "bucket, or grant the permission"
            ) from error
        except pa.ArrowInvalid as error:
            raise StrategyError(
                f"{context.stage}: a file in {self} cannot be read: {error}. Remove it, or set schema="
            ) from error
        for field in schema or ():
            try:
                stored_type(field.type)
            except StrategyError as error:
                raise StrategyError(
                    f"{context.stage}: column {field.name} of {self}: {error}"
                ) from None
        self._directory = directory
        self._columns = DestinationColumns(str(self), schema, letters=self.takes_letters)
        if schema is not None:
            stored = {field.name: field.type for field in schema}
            context.for_sinks.tell_types(context.stage, stored)

    def has(self, rows: RangeRows) -> bool:
        """Return whether all files of the range exist."""
        try:
            return bool(paths := self._paths(rows)) and self._opened.exist(paths)
        except OSError as error:
            raise self._retry(error) from error

    def write(self, rows: RangeRows) -> Mapping[int, str]:
        """Write the files of the range, and replace those that exist.

        Raises:
            StrategyError: rows and files do not fit, or a partition column is missing.
        """
        fitted = self._fit(rows)
        self.set_up.judge(self, len(rows), fitted.refused, fitted.general)
        self.require_taken(rows, fitted.refused)
        self.leaving_out.of(self, fitted)
        metadata = {_REFUSED: msgspec.json.encode(fitted.refused)} if fitted.refused else None
        if not (kept := fitted.kept()).num_rows:
            return fitted.refused
        unwritable: dict[int, str] = {}
        late = PutOff[OSError]()
        numbers = np.delete(np.arange(len(rows)), list(fitted.refused))

        def refuse(some: NDArray[np.int64], error: OSError) -> None:
            late.note(error)
            reason = put_off(f"{self}: {reason_of(error)}")
            unwritable.update(dict.fromkeys(numbers[some].tolist(), reason))

        try:
            on_unwritable = refuse if rows.divides_later else None
            written = self._opened.write(rows.file_name, kept, metadata, on_unwritable)
            late.is_written = bool(written)
        except OSError as error:
            raise self._retry(error) from error
        if (unwritten := late.reason_to_wait) is not None:
            raise self._retry(unwritten) from unwritten
        self.require_taken(rows, unwritable)
        return {**fitted.refused, **unwritable}

    def refused(self, rows: RangeRows) -> Mapping[int, str]:
        """Read the rows that do not fit from a file of the range: other columns may be known now."""
        try:
            found = self._opened.metadata(self._paths(rows)[0]).get(_REFUSED)
        except OSError as error:
            raise self._retry(error) from error
        return msgspec.json.decode(found, type=dict[int, str]) if found else {}

    def _paths(self, rows: RangeRows) -> list[str]:
        kept = self._fit(rows).kept()
        return self._opened.paths(rows.file_name, kept) if kept.num_rows else []

    def _fit(self, rows: RangeRows) -> Fitted:
        assert self._columns is not None  # noqa: S101  `flush` has looked
        table = rows.table
        for column in self.partition_by:
            self._columns.learn_whole_numbers(table, column)
        known = self._columns.schema
        names = () if known is None else known.names
        problem = self._opened.partition_problem(table.schema, names)
        if problem is not None:
            return Fitted(table, dict.fromkeys(range(len(table)), problem), frozenset((problem,)))
        fitted = self._columns.fit(table)
        for column in self.partition_by:
            if column not in fitted.table.column_names:  # it has no value yet
                nulls = pa.nulls(len(table), pa.string())
                fitted = fitted._replace(table=fitted.table.append_column(column, nulls))
        unnamed = unnamed_partitions(fitted.table, self.partition_by)
        return fitted._replace(refused=unnamed | fitted.refused)

    @property
    def _opened(self) -> Directory:
        assert self._directory is not None  # noqa: S101  `flush` has looked
        return self._directory

    def _retry(self, error: OSError) -> Retry:
        return Retry(f"{self}: {reason_of(error)}", may_double=False)
