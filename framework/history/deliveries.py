"""Deliveries in a table of ClickHouse or Spark, or in files: the offsets that are missing or doubled there.

They are counted by one statement, `sql/deliveries.sql`, which people may run by hand, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clickhouse_connect.driver.binding import quote_identifier

from ..errors import SettingsError, SinkError
from ..sinks.clickhouse.client import ClickHouseAddress, connect
from ..spark.session import SharedSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clickhouse_connect.driver.client import Client
    from pyspark.sql import DataFrame, SparkSession

    from ..record import TopicPartition

_STATEMENT = Path(__file__).parents[1] / "sql" / "deliveries.sql"
_SOURCE = "SELECT '' AS topic, `partition`, `offset` FROM kmr_consumer_ingest"
"""In the statement; replaced by the table to check."""

_COLUMNS_SQL = """
SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}"""


@dataclass(frozen=True, kw_only=True)
class CoordinateColumns:
    """The columns of a table that name a message.

    Parameters
    ----------
    partition_column
        The column with the number of the partition.
    offset_column
        The column with the offset.
    topic_column
        The column with the topic; default: topic, if the table has it.
    """

    partition_column: str = "partition"
    offset_column: str = "offset"
    topic_column: str | None = None

    def topic_in(self, table: str, columns: Sequence[str]) -> str | None:
        """Return the topic column of a table with these columns; None if it has none.

        Raises:
            SinkError: a column that was named, or that is needed, is not in the table.
        """
        topic = self.topic_column or ("topic" if "topic" in columns else None)
        wanted = (self.partition_column, self.offset_column, *([topic] if topic else []))
        if absent := [column for column in wanted if column not in columns]:
            raise SinkError(
                f"{table} has no column {', '.join(absent)} (it has {', '.join(columns)}); "
                "name its columns with --partition-column, --offset-column and --topic-column. Rows of a "
                "Window, an Aggregate or a Collect are of many records: kmr check --strategy says how to "
                "count them"
            )
        return topic


COLUMNS: Final = CoordinateColumns()


@dataclass(frozen=True, slots=True)
class PartitionDeliveries:
    """Deliveries of one partition in a table.

    Attributes:
        topic: empty if the table has no topic column.
        first, last: the lowest and the highest offset that were delivered; -1 if none was.
        deliveries: rows.
        missing: offsets between the first and the last without a row; 0 if the group's offsets are known.
        doubled: offsets with more than one row; `surplus` counts the rows beyond the first.
        example: the lowest doubled offset.
        filtered: offsets that the group has committed and the log still has, without a row: the strategy
            filtered them, or they went to `reduce_err`, or they are missing. None if the group's offsets
            are not known.
    """

    topic: str
    partition: int
    first: int
    last: int
    deliveries: int
    missing: int
    doubled: int = 0
    surplus: int = 0
    example: int | None = None
    filtered: int | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Deliveries of a topic in a table.

    Attributes:
        expected: the number of messages, if it is known.
        several: whether a record may have several rows; then nothing counts as doubled.
    """

    table: str
    partitions: tuple[PartitionDeliveries, ...]
    expected: int | None = None
    several: bool = False

    def of_several_rows(self) -> CheckResult:
        """Return the result of a map that may make several rows of a record: none of them is doubled."""
        parts = tuple(replace(each, doubled=0, example=None) for each in self.partitions)
        return replace(self, partitions=parts, several=True)

    @property
    def deliveries(self) -> int:
        """Rows in the table."""
        return sum(partition.deliveries for partition in self.partitions)

    @property
    def messages(self) -> int:
        """The number of different offsets in the table."""
        return sum(partition.deliveries - partition.surplus for partition in self.partitions)

    @property
    def missing(self) -> int:
        """Missing messages: gaps between offsets, or too few for the expected number."""
        gaps = sum(partition.missing for partition in self.partitions)
        return gaps if self.expected is None else max(gaps, self.expected - self.messages)

    @property
    def filtered(self) -> int | None:
        """Messages that were filtered or are missing; None if the group's offsets are not known."""
        counts = [p.filtered for p in self.partitions if p.filtered is not None]
        return sum(counts) if counts else None

    @property
    def doubled(self) -> int:
        """Messages that were delivered more than once."""
        return sum(partition.doubled for partition in self.partitions)

    @property
    def clean(self) -> bool:
        """Whether nothing is missing, doubled, or beyond the expected number."""
        surplus = self.expected is not None and self.messages > self.expected
        return not self.missing and not self.doubled and not surplus


Committed: TypeAlias = "Mapping[TopicPartition, tuple[int, int]]"
"""For each partition the first offset of its log, and the offset that the group has committed."""


def _result(
    table: str,
    found: Iterable[Mapping[str, Any]],
    within: Iterable[Mapping[str, Any]],
    expected: int | None,
    committed: Committed | None,
) -> CheckResult:
    """Return the result of the statement.

    Args:
        found: its rows for the whole table.
        within: its rows for the offsets of `committed`.
        committed: without it, every gap counts as missing.
    """
    partitions = {
        (row["topic"], row["partition"]): PartitionDeliveries(
            topic=row["topic"],
            partition=row["partition"],
            first=row["first_offset"],
            last=row["last_offset"],
            deliveries=row["deliveries"],
            missing=row["missing"],
            doubled=row["doubled"],
            surplus=row["deliveries"] - row["messages"],
            example=row["example"],
        )
        for row in found
    }
    if committed is not None:
        counts = {(row["topic"], row["partition"]): row["messages"] for row in within}
        named = any(topic for topic, _ in partitions)
        for at, (start, end) in committed.items():
            key = (at.topic if named else "", at.partition)
            result = partitions.get(key) or PartitionDeliveries(*key, -1, -1, 0, 0)
            filtered = max(0, end - start) - counts.get(key, 0)
            partitions[key] = replace(result, missing=0, filtered=filtered)
    return CheckResult(table, tuple(partitions[key] for key in sorted(partitions)), expected)


def check(
    *,
    table: str,
    url: str | None = None,
    database: str | None = None,
    columns: CoordinateColumns = COLUMNS,
    expected: int | None = None,
    committed: Committed | None = None,
) -> CheckResult:
    """Count missing and doubled deliveries by the statement of `sql/deliveries.sql`.

    Args:
        table: `table` or `database.table`.
        url: as for `ClickHouseWriter`.
        expected: the number of messages. Without it, messages missing before the first delivered one and
            after the last are not noticed.
        committed: for a strategy that filters: offsets without a row are "filtered or missing". A table
            without a topic column must have the rows of one topic.

    Raises:
        SinkError: the server does not answer, or there is no such table or column.
        StrategyError: the URL is not valid.
    """
    in_database, _, name = table.rpartition(".")
    target = ClickHouseAddress.of(url, database or in_database or None)
    full_name = f"{target.database}.{name}"
    with connect(target) as client:
        topic = columns.topic_in(full_name, _columns(client, target, name))
        source = f"{quote_identifier(target.database)}.{quote_identifier(name)}"
        found, within = (
            list(client.query(statement).named_results())
            for statement in _statements(source, columns, topic, quote_identifier, committed)
        )
    return _result(full_name, found, within, expected, committed)


def _columns(client: Client, target: ClickHouseAddress, table: str) -> list[str]:
    where = {"database": target.database, "table": table}
    columns = [row[0] for row in client.query(_COLUMNS_SQL, parameters=where).result_rows]
    if not columns:
        raise SinkError(f"{target} has no table {target.database}.{table}")
    return columns


def _statements(
    source: str,
    columns: CoordinateColumns,
    topic: str | None,
    quote: Callable[[str], Any],
    committed: Committed | None,
) -> tuple[str, str]:
    """Return the statements for all rows, and for those of committed offsets; `source` follows FROM."""
    committed = committed or {}
    if topic is None and len({partition.topic for partition in committed}) > 1:
        raise SettingsError(
            "the table has no topic column, and the group has several topics; name one with --topic"
        )
    every = (
        f"SELECT {quote(topic) if topic else repr('')} AS topic, "  # noqa: S608  names are quoted
        f"{quote(columns.partition_column)} AS `partition`, "
        f"{quote(columns.offset_column)} AS `offset` FROM {source}"
    )
    within = " OR ".join(
        f"(`partition` = {at.partition} AND `offset` >= {start} AND `offset` < {end}"
        + ("" if topic is None else f" AND topic = '{at.topic}'")
        + ")"
        for at, (start, end) in committed.items()
    )
    some = f"SELECT * FROM ({every}) AS deliveries WHERE {within or 'FALSE'}"  # noqa: S608
    statement = _STATEMENT.read_text()
    return statement.replace(_SOURCE, every), statement.replace(_SOURCE, some)


def check_spark(
    source: str,
    *,
    master: str | None = None,
    format: str | None = None,  # noqa: A002  Spark's word
    columns: CoordinateColumns = COLUMNS,
    expected: int | None = None,
    committed: Committed | None = None,
) -> CheckResult:
    """Count deliveries in a table of Spark's catalog or in files, by the statement of `sql/deliveries.sql`.

    Args:
        source: `table`, `catalog.database.table`, or the path or URI of a directory.
        master: as for `SparkWriter`; a session that this call opens, it also stops.
        format: of a path; None: `delta` if it has a Delta log, else `parquet`.
        expected, committed: as for `check`.

    Raises:
        SinkError: there is no such table, path or column.
        SparkUnavailable: Spark does not start or answer.
    """
    with SharedSession(master, {"spark.log.level": "ERROR"}) as session:
        frame = _read(session, source, format)
        topic = columns.topic_in(source, frame.columns)
        found, within = (
            [row.asDict() for row in session.sql(statement, source=frame).collect()]
            for statement in _statements("{source}", columns, topic, _quote_for_spark, committed)
        )
    return _result(source, found, within, expected, committed)


def is_path(source: str) -> bool:
    """Return whether a source of Spark is a path: it has a slash or a colon, or is a local directory."""
    return "/" in source or ":" in source or Path(source).is_dir()


def _read(session: SparkSession, source: str, format: str | None) -> DataFrame:  # noqa: A002
    from pyspark.errors import AnalysisException

    try:
        if not is_path(source):
            frame = session.table(source)
        else:
            frame = session.read.format(format or _format_of(source)).load(source)
        frame.columns  # noqa: B018  Spark Connect looks at the source only now
    except AnalysisException as error:
        raise SinkError(f"Spark cannot read {source}: {str(error).splitlines()[0]}") from error
    return frame


def _format_of(path: str) -> str:
    local = Path(path.removeprefix("file://").removeprefix("file:"))
    return "delta" if (local / "_delta_log").is_dir() else "parquet"


def _quote_for_spark(name: str) -> str:
    # `session.sql` replaces names in braces.
    return "`" + name.replace("`", "``").replace("{", "{{").replace("}", "}}") + "`"
