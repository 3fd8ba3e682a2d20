"""`kmr clickhouse`: serve the embedded ClickHouse, and ask any ClickHouse a question."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import App, Parameter
from rich.console import Console

from demo.clickhouse_errors import ServerError
from demo.clickhouse_server import EmbeddedClickHouse
from framework.errors import KmrError
from framework.sinks.clickhouse_client import Target, connect

__all__ = ["app"]

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
    """Answer on ClickHouse's HTTP interface until SIGTERM or Ctrl-C.

    Any ClickHouse client that speaks HTTP can connect. There are no users and no passwords: keep it on
    loopback.

    Parameters
    ----------
    data
        The directory with the database; created if it is not there. One process at a time.
    port
        0 picks a free one.
    host
        The address to listen on.
    max_body_bytes
        Refuse requests that are larger.
    """
    try:
        anyio.run(
            _serve, EmbeddedClickHouse(data, host=host, port=port, max_body_bytes=max_body_bytes)
        )
    except ServerError as error:
        _fail(str(error))


async def _serve(server: EmbeddedClickHouse) -> None:
    console = Console(soft_wrap=True, highlight=False)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with server:
            console.print(
                f"ClickHouse {server.version} (embedded) answers on {server.url}, "
                f"data in {server.path}. Stop it with Ctrl-C."
            )
            async for _ in signals:
                break


@app.command
def query(
    sql: str,
    *,
    url: str | None = None,
    format: Annotated[str, Parameter(name=["--format", "-f"])] = "PrettyCompactMonoBlock",  # noqa: A002
) -> None:
    """Run one statement and print what it returns.

    Parameters
    ----------
    sql
        The statement.
    url
        http://user:password@host:8123/database, or chdb:///directory; by default the environment's
        KMR_CLICKHOUSE_URL.
    format
        Any ClickHouse format: CSV, JSONEachRow, Vertical, ...
    """
    try:
        with connect(Target.of(url)) as client:
            answer = client.raw_query(sql, transport_settings={"X-ClickHouse-Format": format})
    except KmrError as error:
        _fail(str(error))
    else:
        sys.stdout.write(answer.decode(errors="replace"))


def _fail(message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
    sys.exit(1)
