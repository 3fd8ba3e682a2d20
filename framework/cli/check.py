"""`kmr check`: count missing and doubled deliveries in a table, or in all tables of a strategy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from ..config.flags import Given, settings_flags
from ..config.schema import show_count
from ..delivery.announcement import BackfillRange
from ..errors import ConsumerError, SettingsError, SinkError
from ..history.deliveries import COLUMNS, CoordinateColumns, check, check_spark
from ..history.plan import BackfillPlan
from ..kafka.admin import connect_admin
from ..kafka.connection import connection_config
from ..kafka.subscription import subscription_of
from ..loading import load_strategy
from ..mapping.annotations import at_most_one_row
from ..settings import GROUP, WORKER, GroupSettings, Settings
from .offsets import committed_offsets
from .output import plain_console

if TYPE_CHECKING:
    from ..history.audit import AuditResult
    from ..history.deliveries import CheckResult, Committed
    from ..strategy import Strategy

app = App(name="check")


async def _committed(settings: GroupSettings) -> Committed:
    """Return the first and the committed offset of the group's partitions.

    Raises:
        ConsumerError: no broker answers, or the group has committed nothing.
    """
    async with connect_admin(connection_config(settings)) as admin:
        committed = await committed_offsets(admin, settings)
        if not committed:
            wanted = subscription_of(settings)
            of_topics = "" if wanted is None else f" of {wanted}"
            raise ConsumerError(f"group {settings.group} has no committed offsets{of_topics}")
        starts = await admin.beginning_offsets(committed)
    return {at: (starts[at], entry.offset) for at, entry in committed.items()}


async def check_strategy(
    strategy: Strategy, settings: Settings, committed: Committed
) -> AuditResult:
    """Count what a group has committed in the tables of a strategy, and map again what has not one row each.

    So what was filtered, is a dead letter, is missing or is doubled can be told apart.

    Raises:
        KmrError: the brokers or a table do not answer, or the map cannot run.
    """
    from ..history.audit import audit  # its tables need the libraries of all sinks

    spans = {
        at: BackfillRange(first, max(first, until)) for at, (first, until) in committed.items()
    }
    return await audit(settings, strategy, BackfillPlan(settings.group, 0, spans))


def show(result: CheckResult, console: Console) -> None:
    """Print a result as a table and a verdict."""
    table = Table(title=f"Deliveries in {result.table}", title_justify="left", header_style="dim")
    topics = any(partition.topic for partition in result.partitions)
    for heading in (
        *(["topic"] if topics else []),
        "partition",
        "offsets",
        "rows",
        "missing" if result.filtered is None else "filtered or missing",
        "records" if result.several else "doubled",
    ):
        table.add_column(heading, justify="left" if heading == "topic" else "right")
    for partition in result.partitions:
        table.add_row(
            *([partition.topic] if topics else []),
            str(partition.partition),
            "none" if not partition.deliveries else f"{partition.first}..{partition.last}",
            f"{partition.deliveries:,}",
            _count(partition.missing) if partition.filtered is None else f"{partition.filtered:,}",
            f"{partition.deliveries - partition.surplus:,}"
            if result.several
            else _count(partition.doubled)
            + ("" if partition.example is None else f" (offset {partition.example}, ...)"),
        )
    if result.partitions:
        console.print(table, highlight=False)
    unclear = bool(result.filtered) and result.expected is None
    colour = "bold red" if not result.clean else "yellow" if unclear else "green"
    expected = "" if result.expected is None else f" of {result.expected:,} expected"
    counts = [] if result.several else [f"{result.doubled:,} doubled"]
    if result.filtered is None or result.expected is not None:
        counts.insert(0, f"{result.missing:,} missing")
    if result.filtered is not None:
        counts.insert(0, f"{result.filtered:,} filtered or missing")
    rows = f" in {show_count(result.deliveries, 'row')}" if result.several else ""
    console.print(
        f"[{colour}]{show_count(result.messages, 'message')}{expected}{rows}: {', '.join(counts)}[/{colour}]",
        highlight=False,
    )
    if result.several:
        console.print(
            "A record may have several rows here, so doubled rows are not looked for",
            highlight=False,
        )
    if result.doubled:
        console.print(
            "A map that makes several rows of a record has the same place in each: then give "
            "--strategy module:attribute, or --rows-per-record any",
            highlight=False,
        )
    if unclear or (result.filtered is None and result.missing and result.expected is None):
        console.print(
            "What was filtered, went to reduce_err, or is no record (a transaction's mark, a compacted one) "
            "has no row either: kmr check --strategy module:attribute --group GROUP tells it from what is "
            "missing; so does --expected",
            highlight=False,
        )


def _count(number: int) -> str:
    return f"[bold red]{number:,}[/bold red]" if number else "0"


def _may_make_several(path: str) -> bool:
    """Return whether a map of the strategy may make several rows of a record."""
    specs = [(part.map, part.map_spec.per) for part in load_strategy(path).parts]
    return not all(per == "value" or (per == "record" and at_most_one_row(of)) for of, per in specs)


@app.default
@settings_flags(GROUP)
def _command(
    *,
    given: Given[GroupSettings],
    table: str | None = None,
    url: str | None = None,
    database: str | None = None,
    spark: str | None = None,
    master: str | None = None,
    format: str | None = None,  # noqa: A002  Spark's word
    columns: Annotated[CoordinateColumns, Parameter(name="*")] = COLUMNS,
    rows_per_record: Literal["one", "any"] | None = None,
    strategy: str | None = None,
    expected: int | None = None,
) -> int:
    """Count missing and doubled deliveries of a strategy, or in a table of ClickHouse or Spark, or in files.

    The exit code is 0 if there are none, else 1. With --strategy and --group, its tables of ClickHouse and
    PostgreSQL and its Parquet files are counted up to the committed offsets, and the records that have not
    one row each are mapped again: what is filtered, a dead letter, missing or doubled is known for certain.

        kmr check --strategy hits:strategy --group errors

    With --table or --spark alone, every offset between the first and the last must have a row. With --group,
    offsets that it has committed and that have no row are counted as "filtered or missing", and do not
    change the exit code.

        kmr check --table hits --url http://127.0.0.1:8123 --group errors

    Parameters
    ----------
    table
        ClickHouse: table or database.table, with a row per message.
    url
        http://user:password@host:8123/database, or chdb:///directory; default: KMR_CLICKHOUSE_URL, else
        the embedded ClickHouse in .kmr/clickhouse.
    database
        Overrides the database of the URL.
    spark
        Spark: the path or URI of a directory, or catalog.database.table.
    master
        Spark: local[2], spark://host:port or sc://host:port; default: Spark's own configuration.
    format
        Spark: format of the files; default: delta if the path is a Delta table, else parquet.
    rows_per_record
        any: a map may make several rows of a record, so a record with several rows is not doubled: records
        are counted, each once, however many rows it has. Default: one, or what --strategy says.
    strategy
        The strategy, module:attribute: alone, its tables are counted. With --table or --spark: if its map
        does not declare that it returns at most one row of a record (-> Row | None), --rows-per-record is
        any.
    expected
        The number of messages.
    """
    if strategy is not None and table is None and spark is None:
        return _check_strategy(strategy, given)
    if (table is None) == (spark is None):
        raise SettingsError(
            "give --strategy and --group, or --table, or --spark with a path or a table"
        )
    committed = anyio.run(_committed, given.load()) if "group" in given.find() else None
    if spark is not None:
        result = check_spark(
            spark,
            master=master,
            format=format,
            columns=columns,
            expected=expected,
            committed=committed,
        )
    else:
        result = check(
            table=str(table),
            url=url,
            database=database,
            columns=columns,
            expected=expected,
            committed=committed,
        )
    if rows_per_record is None and strategy is not None and _may_make_several(strategy):
        rows_per_record = "any"
    if rows_per_record == "any":
        result = result.of_several_rows()
    show(result, Console(emoji=False))
    return 0 if result.clean else 1


def _check_strategy(path: str, given: Given[GroupSettings]) -> int:
    committed = anyio.run(_committed, given.load())
    topics = sorted({at.topic for at in committed})
    flags = {**given.flags, "topics": topics, "topic_pattern": None}
    settings = WORKER.load(given.config, os.environ, flags)
    result = anyio.run(check_strategy, load_strategy(path), settings, committed)
    if result.uncounted:
        raise SinkError(f"{path} cannot be counted: {result.uncounted}")
    console = plain_console()
    for line in result.lines():
        console.print(line)
    return 0 if result.is_complete else 1
