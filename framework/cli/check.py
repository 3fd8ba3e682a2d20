"""`kmr check`: look for missing and doubled deliveries in a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.binding import quote_identifier
from cyclopts import App
from rich.console import Console
from rich.table import Table

from framework.errors import SinkError
from framework.sinks.clickhouse_client import Target, connect

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

__all__ = ["CheckResult", "PartitionResult", "app", "check", "show"]

app = App(name="check")

_SQL = Path(__file__).parents[2] / "sql" / "clickhouse"
# What the SQL files read from; it is replaced by the table that is checked.
_SOURCE = "SELECT '' AS topic, partition, offset FROM kmr_consumer_ingest"
_COLUMNS_SQL = """
SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}"""
_DOUBLED_SQL = """
SELECT topic, partition, count() AS offsets, sum(deliveries) - count() AS surplus, min(offset) AS example
FROM ({duplicates}) GROUP BY topic, partition"""


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What a table has of one partition.

    Attributes:
        topic: empty if the table has no topic column.
        first, last: the lowest and the highest offset that were delivered.
        deliveries: rows.
        missing: offsets between the first and the last without a row.
        doubled: offsets with more than one row; `surplus` rows are too many.
        example: the lowest offset that is doubled.
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


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a table has of a topic; `expected` is how many messages it should have, if that is known."""

    table: str
    partitions: tuple[PartitionResult, ...]
    expected: int | None = None

    @property
    def deliveries(self) -> int:
        """Rows in the table."""
        return sum(partition.deliveries for partition in self.partitions)

    @property
    def messages(self) -> int:
        """Different offsets in the table."""
        return sum(partition.deliveries - partition.surplus for partition in self.partitions)

    @property
    def missing(self) -> int:
        """Messages that are missing: between others, or of the expected number."""
        gaps = sum(partition.missing for partition in self.partitions)
        return gaps if self.expected is None else max(gaps, self.expected - self.messages)

    @property
    def doubled(self) -> int:
        """Messages that were delivered more than once."""
        return sum(partition.doubled for partition in self.partitions)

    @property
    def clean(self) -> bool:
        """Whether nothing is missing, nothing doubled and nothing beyond what was expected."""
        surplus = self.expected is not None and self.messages > self.expected
        return not self.missing and not self.doubled and not surplus


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
    doubles = {(row["topic"], row["partition"]): row for row in doubled}
    return CheckResult(
        table=f"{target.database}.{name}",
        partitions=tuple(
            _partition(row, doubles.get((row["topic"], row["partition"]))) for row in found
        ),
        expected=expected,
    )


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


def _partition(row: dict[str, Any], doubled: dict[str, Any] | None) -> PartitionResult:
    return PartitionResult(
        topic=row["topic"],
        partition=row["partition"],
        first=row["first_offset"],
        last=row["last_offset"],
        deliveries=row["deliveries"],
        missing=row["missing"],
        doubled=doubled["offsets"] if doubled else 0,
        surplus=doubled["surplus"] if doubled else 0,
        example=doubled["example"] if doubled else None,
    )


def show(result: CheckResult, console: Console) -> None:
    """Print a result as a table and a verdict."""
    table = Table(title=f"Deliveries in {result.table}", title_justify="left", header_style="dim")
    topics = any(partition.topic for partition in result.partitions)
    for heading in (
        *(["topic"] if topics else []),
        "partition",
        "offsets",
        "rows",
        "missing",
        "doubled",
    ):
        table.add_column(heading, justify="left" if heading == "topic" else "right")
    for partition in result.partitions:
        table.add_row(
            *([partition.topic] if topics else []),
            str(partition.partition),
            f"{partition.first}..{partition.last}",
            f"{partition.deliveries:,}",
            _count(partition.missing),
            _count(partition.doubled)
            + ("" if partition.example is None else f" (offset {partition.example}, ...)"),
        )
    if result.partitions:
        console.print(table, highlight=False)
    colour = "green" if result.clean else "bold red"
    expected = "" if result.expected is None else f" of {result.expected:,} expected"
    console.print(
        f"[{colour}]{result.messages:,} messages{expected}: "
        f"{result.missing:,} missing, {result.doubled:,} doubled[/{colour}]",
        highlight=False,
    )


def _count(number: int) -> str:
    return f"[bold red]{number:,}[/bold red]" if number else "0"


@app.default
def _command(
    *,
    table: str,
    url: str | None = None,
    database: str | None = None,
    partition_column: str = "partition",
    offset_column: str = "offset",
    topic_column: str | None = None,
    expected: int | None = None,
) -> int:
    """Look for missing and doubled deliveries in a table.

    The exit code is 0 if there are none, and 1 if there are some.

    Parameters
    ----------
    table
        table or database.table, with a row per message.
    url
        http://user:password@host:8123/database, or chdb:///directory; by default the environment's
        KMR_CLICKHOUSE_URL, else the embedded ClickHouse in .kmr/clickhouse.
    database
        Wins over that of the URL.
    partition_column
        The column with the partition's number.
    offset_column
        The column with the offset.
    topic_column
        The column with the topic; by default the column called topic, if there is one.
    expected
        How many messages there should be.
    """
    result = check(
        table=table,
        url=url,
        database=database,
        partition_column=partition_column,
        offset_column=offset_column,
        topic_column=topic_column,
        expected=expected,
    )
    show(result, Console())
    return 0 if result.clean else 1
