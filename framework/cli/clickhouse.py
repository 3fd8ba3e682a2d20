"""`kmr clickhouse`: serve the embedded ClickHouse, and query any ClickHouse."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import App, Parameter
from rich.console import Console

from .._extras import require_extra
from ..embedded.query import parse_statement
from ..errors import SettingsError
from ..sinks.clickhouse.client import URL_VARIABLE, Target, connect

if TYPE_CHECKING:
    from ..embedded.server import EmbeddedClickHouse

__all__ = ["app"]

DEFAULT_URL = "http://127.0.0.1:8123"

app = App(
    name="clickhouse", help="The embedded ClickHouse: serve it over HTTP, query any ClickHouse."
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
    console = Console(soft_wrap=True, highlight=False)
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

    Parameters
    ----------
    sql
        The statement; by default read from standard input: query < statement.sql
    url
        http://user:password@host:8123/database, or chdb:///directory; by default the environment's
        KMR_CLICKHOUSE_URL, else http://127.0.0.1:8123.
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
    with connect(Target.of(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL)) as client:
        answer = client.raw_query(sql, fmt=format if choose else None)
    sys.stdout.write(answer.decode(errors="replace"))
