"""`kmr clickhouse`: serve the embedded ClickHouse, query any ClickHouse, create a strategy's tables."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import App, Parameter

from .._extras import require_extra
from ..embedded.query import parse_statement
from ..errors import SettingsError, StrategyError
from ..sinks.clickhouse.client import ClickHouseAddress, connect
from .output import plain_console

if TYPE_CHECKING:
    import pyarrow as pa

    from ..embedded.server import EmbeddedClickHouse
    from ..strategy import Strategy

app = App(
    name="clickhouse",
    help="The embedded ClickHouse: serve it over HTTP, query any ClickHouse, create a strategy's tables.",
)


@app.command
def serve(
    *,
    data: Path = Path(".kmr/clickhouse"),
    port: int = 8123,
    host: str = "127.0.0.1",
    max_body_bytes: int = 1024 * 1024 * 1024,
) -> None:
    """Serve ClickHouse's HTTP interface until SIGTERM or Ctrl-C.

    Any ClickHouse client that speaks HTTP can connect. There are no users and no passwords: keep it on
    loopback.

    Parameters
    ----------
    data
        The data directory; created if it is missing. One process at a time can open it.
    port
        0 picks a free one.
    host
        The address to listen on.
    max_body_bytes
        Refuse larger requests.
    """
    require_extra("embedded", "kmr clickhouse serve")
    from ..embedded.server import EmbeddedClickHouse

    server = EmbeddedClickHouse(data, host=host, port=port, max_body_bytes=max_body_bytes)
    anyio.run(_serve, server)


async def _serve(server: EmbeddedClickHouse) -> None:
    console = plain_console()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with server:
            console.print(
                f"ClickHouse {server.version} (embedded) answers on {server.url}, "
                f"data in {server.path}. Stop it with Ctrl-C."
            )
            if not server.is_local:
                console.print(
                    "There are no passwords: every client that reaches this address can read and write "
                    "all data.",
                    style="yellow",
                )
            async for _ in signals:
                break


@app.command
def query(
    sql: str | None = None,
    *,
    url: str | None = None,
    format: Annotated[str, Parameter(name=["--format", "-f"])] = "PrettyCompactMonoBlock",  # noqa: A002
) -> None:
    """Run one statement and print its result.

    For example:

        kmr clickhouse query 'SELECT count() FROM hits'
        kmr clickhouse query --format CSV < statement.sql

    Parameters
    ----------
    sql
        The statement; by default read from standard input: query < statement.sql
    url
        http://user:password@host:8123/database, or chdb:///directory; by default what a ClickHouseWriter
        without url= writes to: the environment's KMR_CLICKHOUSE_URL, else the embedded ClickHouse in
        .kmr/clickhouse.
    format
        Any ClickHouse format: CSV, JSONEachRow, Vertical, ...
    """
    if sql is None:
        if sys.stdin.isatty():
            raise SettingsError(
                "no statement: give kmr clickhouse query 'SELECT ...', or < statement.sql"
            )
        sql = sys.stdin.read()
    statement = parse_statement(sql.encode())
    sql = sql.strip().rstrip(";")
    # Only a statement with a result takes a FORMAT clause, and it takes one.
    choose = statement.answers and statement.format is None
    with connect(ClickHouseAddress.of(url)) as client:
        answer = client.raw_query(sql, fmt=format if choose else None)
    sys.stdout.write(answer.decode(errors="replace"))


@app.command
def create_table(
    strategy: str,
    /,
    *,
    stage: str | None = None,
    run: bool = False,
    sample: Path | None = None,
) -> None:
    """Print the CREATE TABLE for each ClickHouseWriter of a strategy.

    The columns are those that the strategy declares; the table remembers as many inserts as exactly once
    needs. The options of the writer (order_by, partition_by, ttl, engine, cluster) are in the statement.

    For example:

        kmr clickhouse create-table hits:strategy
        kmr clickhouse create-table hits:strategy --stage reduce-1 --run

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    stage
        Only the table of this stage: reduce-1, reduce-2, ..., reduce-err; of a branch: "reduce-1 NAME".
    run
        Also run it, at the server that the writer names, unless the table is there.
    sample
        A file with the value of a record in each line. For a map that declares no columns: they are those
        that it returns for these records.
    """
    from ..loading import load_strategy
    from ..reducers.reducer import ERROR_STAGE
    from ..sinks.clickhouse.writer import ClickHouseWriter

    loaded = load_strategy(strategy)
    writers = {
        name: reducer
        for name, reducer in {**loaded.writers, ERROR_STAGE: loaded.reduce_err}.items()
        if isinstance(reducer, ClickHouseWriter) and stage in (None, name)
    }
    if not writers:
        where = "none of its stages is" if stage is None else f"stage {stage} is not"
        raise StrategyError(f"{strategy}: {where} a ClickHouseWriter; see kmr validate")
    mapped = None if sample is None else _map_sample(loaded, sample)
    statements = {
        name: writer.create_statement(loaded.schema_of(name, mapped))
        for name, writer in writers.items()
    }
    for name, writer in writers.items():
        sys.stdout.write(f"{statements[name]};\n")
        if run:
            target, table = writer.target()
            with connect(target, create=True) as client:
                client.command(statements[name])
            sys.stderr.write(f"{target.database}.{table} is in {target}\n")


def _map_sample(strategy: Strategy, file: Path) -> pa.Schema:
    """Return the columns of the rows that the map returns for records with the values of a file's lines.

    Raises:
        StrategyError: it returns none.
        SettingsError: the file cannot be read.
    """
    from ..chaos.records import columns_of_records, map_all, read_lines, record_of
    from ..record import Batch, TopicPartition

    lines, at = read_lines(file, "--sample"), TopicPartition("sample", 0)
    batch = Batch.of(columns_of_records([record_of(line, at, n) for n, line in enumerate(lines)]))
    ((_, mapped),) = map_all(strategy.parts[0], [batch])
    if mapped.table is None:
        reason = f"; the first failed: {mapped.failures[0].reason}" if mapped.failures else ""
        raise StrategyError(
            f"--sample {file}: none of its {len(lines)} records became a row{reason}"
        )
    schema: pa.Schema = mapped.table.schema
    return schema
