"""Keep a table in step with changes: one MERGE for each range, by Spark.

A range is reduced to the last change of each key, so that a range that is merged again, in its order,
leaves the table as it was. Delta also keeps the last offset of each partition in its log (`txnAppId`,
`txnVersion`) and skips a MERGE that is not beyond it: one that comes late, of a process that had lost the
partition, does nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ...columns.kinds import whole, without_rows
from ...errors import StrategyError
from ...reducers.reducer import Retry
from ...spark.session import apply_settings
from ..parquet.columns import DestinationColumns
from .destinations import quote, read_table, transaction_of
from .types import stored_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ...columns.fitted import Fitted
    from ...spark.session import SharedSession
    from ..changes import Applied, Changes
    from ..planning import RangeRows
    from .destinations import CatalogTable

_DELETED: Final = "kmr deleted"
"""The column of a MERGE's source that says which rows are deleted; no column of a table has a space so."""
_VIEW: Final = "kmr_changes"
_TRANSACTION: Final = ("txnAppId", "txnVersion")
_SETTING: Final = "spark.databricks.delta.write."
_LATE: Final = (
    "{provider} does not recognise a MERGE that comes late, of a process that was taken for dead; one that "
    "is repeated is harmless"
)
_NEEDS: Final = (
    "changes=True needs a table that Spark can MERGE INTO: one of Delta, in a session with "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension, "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog and Delta's JAR "
    "(spark.jars.packages=io.delta:delta-spark_...)"
)
_UNPLANNED: Final = "Error occurred during query planning"
_CONFLICT: Final = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception|MetadataChangedException"
    r"|ProtocolChangedException|CommitFailedException|exceptions\.ValidationException"
)


@dataclass(slots=True)
class MergedTable:
    """A table that follows changes. A destination, as those of `destinations`.

    Attributes:
        doubt: see `destinations`.
    """

    session: SharedSession
    changes: Changes
    table: CatalogTable
    columns: DestinationColumns
    doubt: str | None = None
    _base: SparkSession | None = None
    _own: Any = field(default=None)

    def write(self, part: RangeRows, rows: pa.Table) -> Fitted:
        """Apply changes; those that cannot be applied are refused.

        Raises:
            StrategyError: the rows are no changes.
            Retry: another writer of the table was faster.
        """
        applied = self.changes.apply(rows, self.table.schema.names)
        fitted = self.columns.fit(applied.table)
        refused = self._nulls(applied, fitted.table) | fitted.refused
        table = fitted.table.select(
            [name for name in fitted.table.column_names if name in applied.table.column_names]
        )
        table = table.append_column(_DELETED, pa.array(applied.deleted))
        kept = without_rows(table, refused)
        if kept.num_rows or applied.truncated is not None:
            self._merge(part, kept, truncates=applied.truncated is not None)
        by_change = {int(applied.source[row]): why for row, why in refused.items()}
        return fitted._replace(refused=applied.refused | by_change)

    def _nulls(self, applied: Applied, table: pa.Table) -> dict[int, str]:
        """Return the upserts that have null, or nothing, for a column that cannot be null."""
        refused: dict[int, str] = {}
        for column in self.table.schema:
            if column.nullable:
                continue
            null = whole(table.column(column.name)).is_null().to_numpy(zero_copy_only=False)
            reason = f"column {column.name}: null, and the table's column cannot be"
            refused.update(dict.fromkeys(np.flatnonzero(null & ~applied.deleted).tolist(), reason))
        return refused

    def _merge(self, part: RangeRows, table: pa.Table, *, truncates: bool) -> None:
        session = self._session()
        if self.table.provider == "delta":
            for name, value in zip(_TRANSACTION, transaction_of(part) or ("", ""), strict=True):
                if value:
                    session.conf.set(_SETTING + name, value)
                else:
                    session.conf.unset(_SETTING + name)
        session.createDataFrame(table).createOrReplaceTempView(_VIEW)
        columns = [name for name in table.column_names if name != _DELETED]
        statement = merge_statement(
            self.table.identifier, columns, self.changes.key, truncates=truncates
        )
        try:
            session.sql(statement)
        except Exception as error:
            if _CONFLICT.search(f"{type(error).__name__}: {error}"):
                reason = f"{self.columns.destination}: another write came first"
                raise Retry(reason, may_double=False) from error
            raise

    def _session(self) -> SparkSession:
        """Return a session of this writer alone: the settings of a MERGE are its session's."""
        base = self.session.get()
        if base is not self._base:
            self._own = base.newSession()
            apply_settings(self._own)
            self._own.catalog.setCurrentCatalog(base.catalog.currentCatalog())
            self._own.catalog.setCurrentDatabase(base.catalog.currentDatabase())
            self._base = base
        own: SparkSession = self._own
        return own

    def write_frame(self, part: RangeRows, frame: DataFrame) -> None:
        """Not called: a writer of changes has no transform."""
        raise NotImplementedError

    def doubles(self, _part: RangeRows) -> bool:
        """Return False: the last change of a key is the same again."""
        return False

    def publish(self) -> None:
        """Do nothing: a MERGE is visible at once."""


def choose_merged(
    session: SharedSession,
    name: str,
    changes: Changes,
    create: pa.Schema | None,
    partition_by: Sequence[str] = (),
) -> MergedTable:
    """Open a table that is to follow changes, which is made if it is missing and may be.

    Args:
        name: as SQL has it; of a path: delta.`/path`.
        create: the columns of a table that is missing; None: it must exist.

    Raises:
        StrategyError: there is no such table, Spark cannot MERGE into it, or it lacks a column of the key.
    """
    spark = session.get()
    try:
        table = read_table(spark, name)
    except StrategyError as error:
        if create is None:
            raise StrategyError(
                f"{str(error).partition(' Create it')[0]} Create it with the columns of the changes, for "
                f"example: CREATE TABLE {name} (id BIGINT NOT NULL, name STRING) USING delta; or declare "
                "them in the strategy, and set create=True"
            ) from error
        make(session, name, create, partition_by)
        table = read_table(spark, name)
    title = f"table {name}"
    if lacking := [each for each in changes.key if each not in table.schema.names]:
        raise StrategyError(
            f"{title} has no column {', '.join(lacking)}, which key= names; its columns are "
            f"{', '.join(table.schema.names)}"
        )
    require_merge(spark, table, title)

    def columns() -> pa.Schema:
        known = read_table(session.get(), name).schema
        return pa.schema([each.with_nullable(nullable=True) for each in known])

    nullable = pa.schema([each.with_nullable(nullable=True) for each in table.schema])
    doubt = None if table.provider == "delta" else _LATE.format(provider=table.provider)
    return MergedTable(
        session,
        changes,
        table,
        DestinationColumns(title, nullable, columns, stored_type, table.target),
        doubt,
    )


def is_there(spark: SparkSession, name: str) -> bool:
    """Return whether there is a table of this name."""
    try:
        read_table(spark, name)
    except StrategyError:
        return False
    return True


def require_merge(spark: SparkSession, table: CatalogTable, title: str) -> None:
    """Raise StrategyError if Spark cannot MERGE into a table."""
    from pyspark.errors import PySparkException

    nothing = f"(SELECT * FROM {table.identifier} WHERE false)"  # noqa: S608  quoted
    statement = (
        f"EXPLAIN MERGE INTO {table.identifier} AS t USING {nothing} AS s ON false "
        "WHEN MATCHED THEN DELETE"
    )
    try:
        plan = str(spark.sql(statement).collect()[0][0])
    except PySparkException as error:
        plan = f"{_UNPLANNED}: {error}"
    if _UNPLANNED in plan:
        raise StrategyError(f"SparkWriter: {title} is of {table.provider}; {_NEEDS}")


def make(
    session: SharedSession, name: str, schema: pa.Schema, partition_by: Sequence[str] = ()
) -> None:
    """Create a table of Delta.

    Raises:
        StrategyError: Spark has no type for a column, or Delta is not there.
    """
    from pyspark.errors import PySparkException

    try:
        session.get().sql(create_statement(name, schema, partition_by))
    except PySparkException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise StrategyError(
            f"SparkWriter: table {name} cannot be created: {reason}; {_NEEDS}"
        ) from error


def create_statement(name: str, schema: pa.Schema, partition_by: Sequence[str] = ()) -> str:
    """Return the statement that makes a table of Delta.

    Raises:
        StrategyError: Spark has no type for a column.
    """
    from pyspark.sql.pandas.types import from_arrow_type

    columns = []
    for each in schema:
        if (kind := stored_type(each.type)) is None:
            continue
        needed = "" if each.nullable else " NOT NULL"
        columns.append(f"{quote(each.name)} {from_arrow_type(kind).simpleString()}{needed}")
    parts = f" PARTITIONED BY ({', '.join(map(quote, partition_by))})" if partition_by else ""
    return f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}) USING delta{parts}"


def merge_statement(
    identifier: str, columns: Sequence[str], key: Sequence[str], *, truncates: bool
) -> str:
    """Return the MERGE of the rows of the view.

    Args:
        columns: those of the rows; others of the table keep their values.
        truncates: rows that are not in the view are deleted.
    """
    on = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in key)
    deleted = f"s.{quote(_DELETED)}"
    names = ", ".join(map(quote, columns))
    values = ", ".join(f"s.{quote(name)}" for name in columns)
    sets = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in columns if name not in key)
    clauses = [
        f"MERGE INTO {identifier} AS t USING {_VIEW} AS s ON {on}",
        f"WHEN MATCHED AND {deleted} THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {sets}" if sets else "",
        f"WHEN NOT MATCHED AND NOT {deleted} THEN INSERT ({names}) VALUES ({values})",  # noqa: S608
        "WHEN NOT MATCHED BY SOURCE THEN DELETE" if truncates else "",
    ]
    return " ".join(filter(None, clauses))
