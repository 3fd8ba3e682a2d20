"""`kmr check`: look for missing and doubled deliveries in a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.binding import quote_identifier
from cyclopts import App
from rich.console import Console

from framework.cli.check_result import CheckResult, PartitionResult, join_results, show
from framework.errors import SettingsError, SinkError
from framework.sinks.clickhouse.client import Target, connect
from framework.sinks.spark.session import SharedSession
from framework.spark.deliveries import find_deliveries

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

__all__ = ["CheckResult", "PartitionResult", "app", "check", "check_spark", "show"]

app = App(name="check")

_SQL = Path(__file__).parents[2] / "sql" / "clickhouse"
# What the SQL files read from; it is replaced by the table that is checked.
_SOURCE = "SELECT '' AS topic, partition, offset FROM kmr_consumer_ingest"
_COLUMNS_SQL = """
SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}"""
_DOUBLED_SQL = """
SELECT topic, partition, count() AS offsets, sum(deliveries) - count() AS surplus, min(offset) AS example
FROM ({duplicates}) GROUP BY topic, partition"""


def check(
    *,
    table: str,
    url: str | None = None,
    database: str | None = None,
    partition_column: str = "partition",
    offset_column: str = "offset",
    topic_column: str | None = None,
    expected: int | None = None,
) -> CheckResult:
    """Look for missing and doubled deliveries; the statements are those of `sql/clickhouse`.

    Args:
        table: `table` or `database.table`.
        url: as for `ClickHouseWriter`.
        topic_column: None: a column called `topic`, if the table has one.
        expected: how many messages there should be. Without it, messages before the first and after
            the last one that were delivered are not missed.

    Raises:
        SinkError: the server does not answer, or there is no such table or column.
        StrategyError: the URL is not valid.
    """
    in_database, _, name = table.rpartition(".")
    target = Target.of(url, database or in_database or None)
    with connect(target) as client:
        columns = _columns(client, target, name)
        topic = topic_column or ("topic" if "topic" in columns else None)
        wanted = [partition_column, offset_column, *([topic] if topic else [])]
        if absent := [column for column in wanted if column not in columns]:
            raise SinkError(
                f"{target.database}.{name} has no column {', '.join(absent)}, but {', '.join(columns)}. "
                "Name its columns with --partition-column, --offset-column and --topic-column"
            )
        source = (
            f"SELECT {quote_identifier(topic) if topic else repr('')} AS topic, "  # noqa: S608  names are quoted
            f"{quote_identifier(partition_column)} AS partition, "
            f"{quote_identifier(offset_column)} AS offset "
            f"FROM {quote_identifier(target.database)}.{quote_identifier(name)}"
        )
        doubled = _rows(
            client, _DOUBLED_SQL.format(duplicates=_statement("duplicates.sql", source))
        )
        found = _rows(client, _statement("missing.sql", source))
    return join_results(f"{target.database}.{name}", found, doubled, expected)


def _columns(client: Client, target: Target, table: str) -> list[str]:
    where = {"database": target.database, "table": table}
    columns = [row[0] for row in client.query(_COLUMNS_SQL, parameters=where).result_rows]
    if not columns:
        raise SinkError(f"{target} has no table {target.database}.{table}")
    return columns


def _statement(file: str, source: str) -> str:
    return (_SQL / file).read_text().replace(_SOURCE, source)


def _rows(client: Client, sql: str) -> list[dict[str, Any]]:
    return list(client.query(sql).named_results())


def check_spark(
    source: str,
    *,
    master: str | None = None,
    format: str | None = None,  # noqa: A002  Spark's word
    partition_column: str = "partition",
    offset_column: str = "offset",
    topic_column: str | None = None,
    expected: int | None = None,
) -> CheckResult:
    """As `check`, in a table of Spark's catalog or in files; the statements are those of `sql/spark`.

    Args:
        source: `table`, `catalog.database.table`, or the path or URI of a directory.
        master: as for `SparkWriter`; a session that is opened for this is ended.
        format: of a path; None: `delta` if it is one of Delta, else `parquet`.

    Raises:
        SinkError: there is no such table, path or column.
        SparkUnavailable: Spark does not start or answer.
    """
    session = SharedSession(master, {"spark.log.level": "ERROR"})
    session.acquire()
    try:
        deliveries = find_deliveries(
            session.get(),
            source,
            format=format,
            partition_column=partition_column,
            offset_column=offset_column,
            topic_column=topic_column,
        )
    finally:
        session.release()
    return join_results(source, deliveries.found, deliveries.doubled, expected)


@app.default
def _command(
    *,
    table: str | None = None,
    url: str | None = None,
    database: str | None = None,
    spark: str | None = None,
    master: str | None = None,
    format: str | None = None,  # noqa: A002  Spark's word
    partition_column: str = "partition",
    offset_column: str = "offset",
    topic_column: str | None = None,
    expected: int | None = None,
) -> int:
    """Look for missing and doubled deliveries in a table of ClickHouse, or in one of Spark or in files.

    The exit code is 0 if there are none, and 1 if there are some.

    Parameters
    ----------
    table
        ClickHouse: table or database.table, with a row per message.
    url
        http://user:password@host:8123/database, or chdb:///directory; by default the environment's
        KMR_CLICKHOUSE_URL, else the embedded ClickHouse in .kmr/clickhouse.
    database
        Wins over that of the URL.
    spark
        Spark: the path or URI of a directory, or catalog.database.table.
    master
        Spark: local[2], spark://host:port or sc://host:port; by default what Spark is configured for.
    format
        Spark: what the files of a path are; by default delta if it is that, else parquet.
    partition_column
        The column with the partition's number.
    offset_column
        The column with the offset.
    topic_column
        The column with the topic; by default the column called topic, if there is one.
    expected
        How many messages there should be.
    """
    if (table is None) == (spark is None):
        raise SettingsError("say what to check: either --table, or --spark with a path or a table")
    if spark is not None:
        result = check_spark(
            spark,
            master=master,
            format=format,
            partition_column=partition_column,
            offset_column=offset_column,
            topic_column=topic_column,
            expected=expected,
        )
    else:
        result = check(
            table=str(table),
            url=url,
            database=database,
            partition_column=partition_column,
            offset_column=offset_column,
            topic_column=topic_column,
            expected=expected,
        )
    show(result, Console())
    return 0 if result.clean else 1
