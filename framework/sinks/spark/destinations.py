"""Where a flush goes: files that are named after their offsets, or whatever Spark itself writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyarrow import fs

from framework.errors import StrategyError
from framework.sinks.spark.files import open_directory
from framework.sinks.spark.tables import read_table, sees
from framework.sinks.spark.types import Fitted, fit, to_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from framework.sinks.spark.files import Compression, Directory, PartitionValues
    from framework.sinks.spark.names import Part
    from framework.sinks.spark.session import SharedSession
    from framework.sinks.spark.tables import CatalogTable

__all__ = [
    "FILE_FORMATS",
    "Columns",
    "Destination",
    "Files",
    "Frames",
    "choose_path",
    "choose_table",
]

FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "xml")
"""Formats that are nothing but files in a directory: overwriting a directory replaces what it held."""

RANGE_COLUMN = "kmr_range"
"""The partition column that names a flush's directory, where Spark writes the files."""


class Destination(Protocol):
    """Takes the parts of a flush; everything may be called again with the same part."""

    @property
    def doubt(self) -> str | None:
        """Why the same part, written again, may be doubled; None if it is not."""

    def write(self, part: Part, rows: pa.Table) -> dict[int, str]:
        """Write rows; returns the numbers of those that do not fit, and why: they are not written."""

    def write_frame(self, part: Part, frame: DataFrame) -> None:
        """Write what a transform made of a part's rows."""

    def publish(self) -> None:
        """All parts of a flush are written: make them known."""


@dataclass(slots=True)
class Columns:
    """The columns of a destination as far as they are known.

    Attributes:
        reread: the columns of a table that has no others; None where new columns are welcome.
    """

    destination: str
    schema: pa.Schema | None = None
    reread: Callable[[], pa.Schema] | None = None

    def fit(self, rows: pa.Table) -> Fitted:
        """Cast rows to the columns that are there already, so that all files have the same types.

        Raises:
            StrategyError: a column is unknown to a table, or of a type that cannot become that of the
                destination.
        """
        rows = to_spark(rows)
        if self.schema is None:
            self.schema = rows.schema
            return Fitted(rows, {})
        if self.reread is not None and self._unknown(rows):
            self.schema = self.reread()
            if unknown := self._unknown(rows):
                raise StrategyError(
                    f"{self.destination} has no column {', '.join(unknown)}; its columns are "
                    f"{', '.join(self.schema.names)}. Alter the table, or return other columns"
                )
        fitted = fit(rows, self.schema, self.destination)
        for name in self._unknown(rows):
            self.schema = self.schema.append(pa.field(name, rows.schema.field(name).type))
        return fitted

    def _unknown(self, rows: pa.Table) -> list[str]:
        known = () if self.schema is None else self.schema.names
        return [name for name in rows.column_names if name not in known]


@dataclass(slots=True)
class Files:
    """Parquet files, written here and renamed: no JVM is asked, but that of a table to look again."""

    directory: Directory
    columns: Columns
    session: SharedSession | None = None
    table: CatalogTable | None = None
    doubt: str | None = None
    _known: set[PartitionValues] = field(default_factory=set)
    _new: set[PartitionValues] = field(default_factory=set)

    def write(self, part: Part, rows: pa.Table) -> dict[int, str]:
        fitted = self.columns.fit(rows)
        if fitted.table.num_rows:
            self._new.update(self.directory.write(part.name, fitted.table))
        return fitted.refused

    def write_frame(self, part: Part, frame: DataFrame) -> None:
        refused = self.write(part, frame.toArrow())
        if refused:
            raise StrategyError(
                f"{len(refused)} rows that transform made do not fit: {next(iter(refused.values()))}"
            )

    def publish(self) -> None:
        if self.table is not None and self.session is not None and self._new:
            self.table.publish(self.session.get(), self._new - self._known)
        self._known |= self._new
        self._new = set()


@dataclass(slots=True)
class Frames:
    """What Spark writes: for formats and file systems that only Spark can reach.

    Args:
        table, path: where to; one of them is None.
        options: for Spark's writer.
    """

    session: SharedSession
    format: str
    columns: Columns
    table: CatalogTable | None
    path: str | None
    partition_by: Sequence[str]
    options: Mapping[str, str]
    doubt: str | None

    def write(self, part: Part, rows: pa.Table) -> dict[int, str]:
        fitted = self.columns.fit(rows)
        if fitted.table.num_rows:
            self.write_frame(part, self.session.get().createDataFrame(fitted.table).coalesce(1))
        return fitted.refused

    def write_frame(self, part: Part, frame: DataFrame) -> None:
        writer: Any = frame.write.format(self.format).options(**self.options)
        if self.format == "delta" and part.span is not None:
            span = part.span
            application = f"kmr:{span.group}:{span.topic}:{span.partition}"
            writer = writer.option("txnAppId", application).option("txnVersion", str(span.last))
        if self.table is not None:
            writer.mode("append").saveAsTable(self.table.identifier)
            return
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        if self.format in FILE_FORMATS:
            writer.mode("overwrite").save(f"{self.path}/{RANGE_COLUMN}={part.name}")
        else:
            writer.mode("append").save(self.path)

    def publish(self) -> None:
        """Spark knows what it wrote."""


def choose_table(
    session: SharedSession, name: str, *, compression: Compression, options: Mapping[str, str]
) -> Files | Frames:
    """How to write into a table: as files if it is made of files that can be put there, else by Spark.

    Raises:
        StrategyError: there is no such table.
    """
    table = read_table(session.get(), name)
    columns = Columns(f"table {name}", table.schema, lambda: read_table(session.get(), name).schema)
    doubt: str | None
    if table.provider == "delta":
        doubt = None
    elif table.provider != "parquet" or table.location is None:
        doubt = f"Spark appends to {table.provider} tables, and they do not know what they have"
    elif options:
        doubt = "Spark appends with options"
    else:
        try:
            directory = open_directory(
                table.location, partition_by=table.partition_by, compression=compression
            )
        except StrategyError as error:
            doubt = str(error)
        else:
            local = isinstance(directory.filesystem, fs.LocalFileSystem)
            if not local or sees(session.get(), directory, table.location):
                return Files(directory, columns, session, table)
            doubt = f"{table.location} here is not what Spark has there"
    return Frames(session, table.provider, columns, table, None, (), options, doubt)


def choose_path(
    session: SharedSession | None,
    path: str,
    *,
    format: str,  # noqa: A002  the user's word
    partition_by: Sequence[str],
    compression: Compression,
    options: Mapping[str, str],
    schema: pa.Schema | None,
) -> Files | Frames:
    """How to write to a path: Parquet as files from here, anything else by Spark.

    Raises:
        StrategyError: this process cannot write there, and there is no session that could.
    """
    if format == "parquet" and not options:
        try:
            directory = open_directory(path, partition_by=partition_by, compression=compression)
        except StrategyError:
            if session is None:
                raise
        else:
            return Files(directory, Columns(path, schema or directory.schema()))
    if session is None:
        raise StrategyError(f"{path}: only Spark writes {format}")
    doubt = None
    if format not in (*FILE_FORMATS, "delta"):
        doubt = f"Spark appends to {format}, which does not know what it has"
    return Frames(session, format, Columns(path, schema), None, path, partition_by, options, doubt)
