"""Destinations of a flush: the files of a table of Parquet files, or Spark's own writer.

The files are those of `ParquetWriter`, at the table's location. All destinations have the same methods;
`merging` has the one for changes.
`write` and `write_frame` may be called again with the same part; `publish` is called when all parts of a
flush are written. `doubt` says why a part that is written again may be doubled, None if no part is;
`doubles` answers for one part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ...columns.fitted import TargetColumn
from ...columns.kinds import either, is_nested, rows_where
from ...errors import StrategyError
from ...service.storage import HIDDEN
from ..answers import PartRefused
from ..parquet.columns import DestinationColumns
from ..parquet.files import open_directory, unnamed_partitions
from .types import stored_type, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ...columns.casting import Cast
    from ...columns.fitted import Fitted
    from ...spark.session import SharedSession
    from ..parquet.files import Directory, PartitionValues
    from ..planning import RangeRows

FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "xml")
"""Formats of plain files in a directory: overwriting the directory replaces its rows."""

RANGE_COLUMN = "kmr_range"
"""The partition column whose value is the name of a flush, where Spark writes the files."""

_MICROSECONDS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_SPACES = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_OPTIONS = {"csv": _MICROSECONDS | _SPACES, "json": _MICROSECONDS, "xml": _MICROSECONDS}
"""Spark's defaults for texts lose digits of times and spaces."""

# Spark writes old times into ORC by the Julian calendar, which is behind by 2,180 and 44,084 days there.
_FIRST_MICROSECOND = -9_223_183_684_854_000_000
_FIRST_DAY = -(2**31) + 44_084

_DEFAULT = "CURRENT_DEFAULT"
_DETAILS = "# Detailed Table Information"
_PARTITIONS = "# Partition Information"
_OWN_CATALOG = "spark_catalog"


@dataclass(slots=True)
class TableFiles:
    """Parquet files at the location of a table: this process writes them, then Spark refreshes its list."""

    directory: Directory
    columns: DestinationColumns
    session: SharedSession
    table: CatalogTable
    doubt: str | None = None
    _known: set[PartitionValues] = field(default_factory=set)
    _new: set[PartitionValues] = field(default_factory=set)

    def write(self, part: RangeRows, rows: pa.Table) -> Fitted:
        """Write the rows that fit. Raises StrategyError: the table was made anew, in another place."""
        self._look_for_changes()
        rows = self.table.with_defaults(self.session.get(), rows)
        fitted = self.fit(rows)
        if (kept := fitted.kept()).num_rows:
            self._new.update(self.directory.write(part.file_name, kept))
        return fitted

    def _look_for_changes(self) -> None:
        """Read the table again if its columns are others: Spark reads no file of other types."""
        known = self.table
        if self.session.get().table(known.identifier).schema == known.fields:
            return
        self.table = table = read_table(self.session.get(), known.identifier)
        if (table.location, table.partition_by) != (known.location, known.partition_by):
            raise StrategyError(
                f"{self.columns.destination} was made anew, in another place: start the worker again"
            )
        self.columns.schema, self.columns.target = table.schema, table.target

    def fit(self, rows: pa.Table) -> Fitted:
        """Cast rows to the columns of the table."""
        return _fitted(self.columns, rows, self.directory.partition_by)

    def write_frame(self, part: RangeRows, frame: DataFrame) -> None:
        """Write the result of a transform of a part's rows.

        Raises:
            PartRefused: some of it does not fit the table; nothing is written.
        """
        made = frame.toArrow()
        for reason in self.fit(made).refused.values():
            raise PartRefused(f"a row of the transform does not fit: {reason}")
        self.write(part, made)

    def doubles(self, _part: RangeRows) -> bool:
        """Return False: a file is replaced by its name."""
        return False

    def publish(self) -> None:
        """Add new files and partitions to the table."""
        if self._new:
            self.table.publish(self.session.get(), self._new - self._known)
        self._known |= self._new
        self._new = set()


def _fitted(columns: DestinationColumns, rows: pa.Table, partition_by: Sequence[str]) -> Fitted:
    fitted = columns.fit(rows)
    unnamed = unnamed_partitions(fitted.table, partition_by)
    return fitted._replace(refused=unnamed | fitted.refused)


def transaction_of(part: RangeRows) -> tuple[str, str] | None:
    """Return Delta's `txnAppId` and `txnVersion` for a part; None for rows of several partitions.

    Delta skips a version that is not above the last one of the same application.
    """
    span = part.span
    if span is None:
        return None
    application = f"kmr:{span.group}:{span.topic}:{span.partition}"
    if span.generation:  # else Delta would skip what a reset reads again
        application += f"@{span.generation}"
    if part.piece:  # else it would skip all but the first of them
        application += f"#{part.piece}"
    return application, str(span.last)


@dataclass(slots=True)
class SparkDestination:
    """DataFrames that Spark writes: for formats and file systems that only Spark supports.

    Args:
        table, path: the destination; one of them is None.
        options: for Spark's writer.
    """

    session: SharedSession
    format: str
    columns: DestinationColumns
    table: CatalogTable | None
    path: str | None
    partition_by: Sequence[str]
    options: Mapping[str, str]
    doubt: str | None

    def write(self, part: RangeRows, rows: pa.Table) -> Fitted:
        """Write rows, as `TableFiles.write` does. Delta fills columns that they lack: some are computed."""
        if self.table is not None and self.format != "delta":
            rows = self.table.with_defaults(self.session.get(), rows)
        fitted = _fitted(self.columns, rows, self.partition_by)
        kept = fitted.kept()
        if self.format == "delta":
            kept = kept.select([name for name in kept.column_names if name in rows.column_names])
        if kept.num_rows:
            self.write_frame(part, self.session.get().createDataFrame(kept).coalesce(1))
        return fitted

    def write_frame(self, part: RangeRows, frame: DataFrame) -> None:
        """Write a DataFrame: replace the directory of a part, or append with Delta's transaction id."""
        writer: Any = frame.write.format(self.format).options(**self.options)
        if self.format == "delta" and (transaction := transaction_of(part)) is not None:
            application, version = transaction
            writer = writer.option("txnAppId", application).option("txnVersion", version)
        if self.table is not None:
            # Raises if the table was dropped: `saveAsTable` would make another one.
            _ = self.session.get().table(self.table.identifier).schema
            writer.mode("append").saveAsTable(self.table.identifier)
            return
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        if self.format in FILE_FORMATS:
            writer.mode("overwrite").save(f"{self.path}/{RANGE_COLUMN}={part.file_name}")
        else:
            writer.mode("append").save(self.path)

    def stored(self, frame: DataFrame) -> DataFrame:
        """Return a DataFrame with the casts and checks that Spark makes where it writes into the table."""
        from pyspark.sql import functions

        if self.table is None:
            return frame
        fields = {each.name.lower(): each for each in self.table.fields or ()}
        columns = []
        for name in frame.columns:
            column = functions.col(quote(name))
            if (known := fields.get(name.lower())) is not None:
                limited = self.table.texts.get(known.name)
                if limited is not None:
                    longest = functions.lit(longest_of(limited))
                    reason = functions.lit(f"column {known.name} ({limited}) cannot hold it")
                    fits = functions.char_length(functions.rtrim(column)) <= longest
                    column = functions.when(~fits, functions.raise_error(reason)).otherwise(column)
                column = column.cast(known.dataType)
            columns.append(column.alias(name))
        return frame.select(columns)

    def doubles(self, part: RangeRows) -> bool:
        """Return whether a part that is written again may be doubled.

        Delta has no transaction id for rows of several partitions: they have no last offset.
        """
        return self.doubt is not None or (self.format == "delta" and part.span is None)

    def publish(self) -> None:
        """Do nothing: Spark knows its own files."""


def choose_table(
    session: SharedSession, name: str, options: Mapping[str, str]
) -> TableFiles | SparkDestination:
    """Choose how to write to a table: Parquet files from here if possible, else by Spark.

    Raises:
        StrategyError: there is no such table.
    """
    table = read_table(session.get(), name)
    target = _target_of_orc(table.target) if table.provider == "orc" else table.target
    columns = DestinationColumns(
        f"table {name}",
        table.schema,
        lambda: read_table(session.get(), name).schema,
        stored_type,
        target,
    )
    doubt: str | None
    if table.provider == "delta":
        doubt = None
    elif table.provider != "parquet" or table.location is None:
        doubt = f"Spark appends to {table.provider} tables, which do not detect repeated writes"
    elif options:
        doubt = "Spark appends with options"
    else:
        try:
            directory = open_directory(table.location, partition_by=table.partition_by)
        except StrategyError as error:
            doubt = str(error)
        else:
            local = isinstance(directory.filesystem, fs.LocalFileSystem)
            if not local or sees(session.get(), directory, table.location):
                return TableFiles(directory, columns, session, table)
            doubt = f"Spark does not see the files that this process writes to {table.location}"
    return SparkDestination(session, table.provider, columns, table, None, (), options, doubt)


def choose_path(
    session: SharedSession,
    path: str,
    *,
    format: str,  # noqa: A002  the user's word
    partition_by: Sequence[str],
    options: Mapping[str, str],
    schema: pa.Schema | None,
) -> SparkDestination:
    """Let Spark write to a path."""
    doubt = None
    if format not in (*FILE_FORMATS, "delta"):
        doubt = f"Spark appends to {format}, which does not detect repeated writes"
    if is_files := format in FILE_FORMATS:
        options = {**_OPTIONS.get(format, {}), **options}
    stored = _scalar_type if format == "csv" else stored_type
    taken = (RANGE_COLUMN,) if is_files else ()
    target = _target_of_orc(target_of) if format == "orc" else target_of
    columns = DestinationColumns(path, schema, None, stored, target, taken)
    return SparkDestination(session, format, columns, None, path, partition_by, options, doubt)


def _target_of_orc(
    target_of: Callable[[pa.Field[Any]], TargetColumn],
) -> Callable[[pa.Field[Any]], TargetColumn]:
    """Return what says which values a column of ORC takes: no times for which Spark's writer overflows."""

    def target(column: pa.Field[Any]) -> TargetColumn:
        made = target_of(column)
        number: Any
        if pa.types.is_timestamp(column.type):
            number, first = pa.int64(), _FIRST_MICROSECOND
        elif pa.types.is_date32(column.type):
            number, first = pa.int32(), _FIRST_DAY
        else:
            return made

        def cast(array: Any) -> Cast:
            found = made.cast(array)
            early = rows_where(pc.less(found.array.cast(number), pa.scalar(first, number)))
            return found._replace(bad=either(found.bad, early))

        return made._replace(cast=cast)

    return target


def _scalar_type(kind: Any) -> Any:
    """Return the type of Spark, as `stored_type` does; a file of CSV has no nested values."""
    if is_nested(kind):
        raise StrategyError(f"CSV has no nested values ({kind}): return text")
    return stored_type(kind)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """The definition of a table, at the time of `read_table`.

    Attributes:
        identifier: the name, quoted for SQL.
        provider: the format: `parquet`, `delta`, ...
        location: the URI of its directory; None if files must not be added to it.
        partition_by: its partition columns.
        schema: its columns, in Arrow's types.
        texts: the columns whose texts have a limit, and their types: `varchar(3)`.
        defaults: the columns with a DEFAULT, and SQL of its value.
        fields: its columns, in Spark's types.
    """

    identifier: str
    provider: str
    location: str | None
    partition_by: tuple[str, ...]
    schema: pa.Schema
    texts: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    fields: StructType | None = None

    def with_defaults(self, session: SparkSession, rows: pa.Table) -> pa.Table:
        """Return rows with the columns that they lack and the table has a DEFAULT for."""
        lacking = {name: of for name, of in self.defaults.items() if name not in rows.column_names}
        if not lacking:
            return rows
        values = session.sql(f"SELECT {', '.join(lacking.values())}").toArrow()
        for name, value in zip(lacking, values.columns, strict=True):
            column: Any = pa.repeat(value[0], rows.num_rows)
            rows = rows.append_column(name, column)
        return rows

    def target(self, column: pa.Field[Any]) -> TargetColumn:
        """Return what a column takes. Spark reads texts of any length, and checks them where it writes."""
        target = target_of(column)
        limited = self.texts.get(column.name)
        if limited is None:
            return target
        longest = pa.scalar(longest_of(limited))

        def cast(array: Any) -> Cast:
            made = target.cast(array)
            too_long = rows_where(pc.greater(pc.utf8_length(made.array), longest))
            return made._replace(bad=either(made.bad, too_long))

        return TargetColumn(column.name, limited, cast)

    def publish(self, session: SparkSession, partitions: Iterable[PartitionValues]) -> None:
        """Add new partitions to the table, and refresh Spark's list of its files."""
        specs = [
            ", ".join(
                f"{quote(column)} = {_literal(value)}"
                for column, value in zip(self.partition_by, values, strict=True)
            )
            for values in partitions
        ]
        if self.partition_by and specs:
            added = " ".join(f"PARTITION ({spec})" for spec in specs)
            session.sql(f"ALTER TABLE {self.identifier} ADD IF NOT EXISTS {added}")
        session.sql(f"REFRESH TABLE {self.identifier}")


def read_table(session: SparkSession, name: str) -> CatalogTable:
    """Read a table's definition.

    Raises:
        StrategyError: there is no such table, or it is a view; the message has an example of CREATE TABLE.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.pandas.types import to_arrow_schema

    identifier = ".".join(map(quote, _parts(name)))
    try:
        described = session.sql(f"DESCRIBE TABLE EXTENDED {identifier}").collect()
        stored = session.table(identifier).schema
        schema = to_arrow_schema(stored, timezone="UTC")
    except AnalysisException as error:
        raise StrategyError(
            f"Spark has no table {name} ({str(error).splitlines()[0]}). Create it with the columns that "
            f"your map returns, for example: CREATE TABLE {identifier} (`partition` INT, `offset` "
            "BIGINT, `timestamp` TIMESTAMP) USING parquet"
        ) from error
    rows = [(row[0], row[1]) for row in described]
    details = dict(_after(rows, _DETAILS))
    if "Provider" not in details:
        raise StrategyError(f"{name} is a view, or another object that cannot be written to")
    plain = details.get("Catalog", _OWN_CATALOG) == _OWN_CATALOG and "Bucket Columns" not in details
    partition_by = tuple(
        column for column, _ in _after(rows, _PARTITIONS) if not column.startswith("#")
    )
    return CatalogTable(
        identifier=identifier,
        provider=details["Provider"].lower(),
        location=details.get("Location") if plain else None,
        partition_by=partition_by,
        schema=schema,
        texts={
            name: kind
            for name, kind in rows[: len(schema)]
            if kind.startswith(("char(", "varchar("))
        },
        defaults={
            each.name: f"CAST({each.metadata[_DEFAULT]} AS {each.dataType.simpleString()})"
            for each in stored
            if _DEFAULT in each.metadata
        },
        fields=stored,
    )


def _after(rows: Sequence[tuple[str, str]], heading: str) -> list[tuple[str, str]]:
    """Return the rows of one section of DESCRIBE: from its heading to the next empty line."""
    names = [name for name, _ in rows]
    if heading not in names:
        return []
    section = rows[names.index(heading) + 1 :]
    ends = [at for at, (name, _) in enumerate(section) if not name]
    return list(section[: ends[0]] if ends else section)


def sees(session: SparkSession, directory: Directory, location: str) -> bool:
    """Return whether Spark, at a location, finds a file that this process writes into a directory."""
    from pyspark.errors import AnalysisException

    name = f"{HIDDEN}kmr-probe-{session.__hash__():x}"
    path = f"{directory.root}/{name}"
    directory.filesystem.create_dir(directory.root, recursive=True)
    with directory.filesystem.open_output_stream(path) as stream:
        pq.write_table(pa.table({"probe": pa.array([], pa.int32())}), stream)
    try:
        # Spark does not read hidden names, but fails if the path does not exist.
        reader: Any = session.read.schema("probe int")
        reader.parquet(f"{location.rstrip('/')}/{name}").isEmpty()
    except AnalysisException:
        return False
    finally:
        directory.remove(path)
    return True


def _parts(name: str) -> list[str]:
    """Split `catalog.database.table`; a part in backticks may have dots."""
    parts, quoted = [""], False
    for character in name:
        if character == "`":
            quoted = not quoted
        elif character == "." and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def quote(name: str) -> str:
    """Return a name in backticks, for SQL."""
    return "`" + name.replace("`", "``") + "`"


def longest_of(kind: str) -> int:
    """Return how many characters a type of texts holds: 3 of `varchar(3)`."""
    return int(kind.strip("abcdefghijklmnopqrstuvwxyz()"))


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
