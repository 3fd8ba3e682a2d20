"""Connect to ClickHouse, by HTTP or inside this process (chDB), and classify its errors."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
import clickhouse_connect
from clickhouse_connect.driver.asyncclient import AsyncClient

from ..._extras import require_extra
from ...config.secrets import read_secret
from ...errors import SinkError, StrategyError
from ...service.threads import run_in_thread
from ..answers import of_clickhouse, sink_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from io import BytesIO

    from clickhouse_connect.driver.client import Client

URL_VARIABLE = "KMR_CLICKHOUSE_URL"
DEFAULT_DIRECTORY = ".kmr/clickhouse"
_INSERT_FORMAT = "ArrowStream"


@dataclass(frozen=True, slots=True)
class ClickHouseAddress:
    """The address of a ClickHouse; `path` is the directory of an embedded one, None for a server."""

    host: str = ""
    port: int = 0
    secure: bool = False
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str = "default"
    path: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str | None, database: str | None = None) -> Self:
        """Parse a URL.

        Args:
            url: `http://user:password@host:8123/database`, `https://...` or `chdb:///directory`, with
                settings as `?name=value`. None: the environment's KMR_CLICKHOUSE_URL, or the file that
                KMR_CLICKHOUSE_URL_FILE names, else the embedded ClickHouse in the directory
                `.kmr/clickhouse`.
            database: overrides that of the URL.

        Raises:
            StrategyError: the URL has another form.
            SettingsError: the file cannot be read.
        """
        if url is None:
            url = (
                read_secret(os.environ, URL_VARIABLE) or f"chdb:{Path(DEFAULT_DIRECTORY).resolve()}"
            )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise StrategyError(f"The ClickHouse URL is not valid: {error}") from error
        settings = dict(parse_qsl(parts.query))
        if parts.scheme == "chdb" and parts.path and not parts.netloc:
            path = Path(unquote(parts.path)).resolve()
            return cls(database=database or "default", path=path, settings=settings)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StrategyError(
                f"A ClickHouse URL is http://host:8123, https://host:8443 or chdb:///directory, "
                f"not {_without_password(url)}"
            )
        secure = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (8443 if secure else 8123),
            secure=secure,
            user=unquote(parts.username or "default"),
            password=unquote(parts.password or ""),
            database=database or unquote(parts.path.strip("/")) or "default",
            settings=settings,
        )

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, so that compression gains nothing."""
        return self.path is not None or self.host in ("localhost", "127.0.0.1", "::1")

    def __str__(self) -> str:
        """Name it for messages, without the password."""
        if self.path is not None:
            return f"the embedded ClickHouse in {self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ClickHouse at {'https' if self.secure else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClickHouseConnection:
    """The operations that the sink needs, over HTTP or in this process.

    A client of the engine in this process is synchronous, so it runs in threads.
    """

    client: AsyncClient | Client
    timeout: float

    async def rows(
        self, sql: str, parameters: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        result = await self._call(
            self.client.query, sql, parameters=dict(parameters), settings=dict(settings or {})
        )
        return list(result.named_results())

    async def is_granted(self, privilege: str, table: str) -> bool | None:
        """Return whether our user has a privilege on a table; None: this version cannot tell.

        Args:
            privilege: as in GRANT: `INSERT`, `SELECT(x, y)`.
            table: quoted for SQL; it may be missing.
        """
        # Not a query: the client would take it for a command, and its result would have no columns.
        try:
            answer = await self._call(self.client.command, f"CHECK GRANT {privilege} ON {table}")
        except Exception as error:
            if "(SYNTAX_ERROR)" in str(error):  # ClickHouse has CHECK GRANT since 2024
                return None
            raise
        return int(answer) == 1

    async def insert(
        self, table: str, columns: Sequence[str], block: BytesIO, settings: Mapping[str, Any]
    ) -> None:
        """Write one block, an Arrow stream; raise unless all of it is written."""
        # A stream, because the client copies bytes, and resends them after a lost connection.
        insert = self.client.raw_insert
        await self._call(insert, table, columns, block, settings=dict(settings), fmt=_INSERT_FORMAT)

    async def execute(self, sql: str, settings: Mapping[str, Any] | None = None) -> None:
        """Run a statement without a result."""
        await self._call(self.client.command, sql, settings=dict(settings or {}))

    async def close(self) -> None:
        """Disconnect."""
        await self._call(self.client.close)

    async def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if isinstance(self.client, AsyncClient):
            with anyio.fail_after(self.timeout):
                return await method(*arguments, **options)
        return await run_in_thread(partial(method, *arguments, **options))


async def connect_async(
    target: ClickHouseAddress,
    *,
    settings: Mapping[str, Any],
    connect_timeout: float,
    timeout: float,
    options: Mapping[str, Any],
) -> ClickHouseConnection:
    """Open a connection for the sink.

    Args:
        settings: ClickHouse settings for every request, besides those of the target.
        connect_timeout: seconds for TCP and TLS.
        timeout: seconds for any one request.
        options: further arguments for clickhouse-connect: certificates, a proxy, a token.

    Raises:
        Exception: the client's own errors; `of_clickhouse` reads them.
    """
    target = replace(target, settings={**target.settings, **settings})
    if target.path is not None and _serve is not None:
        target = await run_in_thread(_served, target, _serve)
    if target.path is not None:
        target = replace(target, settings={"max_execution_time": timeout, **target.settings})
        return ClickHouseConnection(await run_in_thread(_embedded_client, target), timeout)
    with anyio.fail_after(connect_timeout + timeout):
        client = await clickhouse_connect.get_async_client(
            **_server_arguments(target),
            connect_timeout=connect_timeout,
            send_receive_timeout=timeout,
            compress=False,  # blocks are compressed, or not, as Arrow streams
            **options,
        )
    return ClickHouseConnection(client, timeout)


@contextmanager
def connect(
    target: ClickHouseAddress, *, timeout: float = 30.0, create: bool = False
) -> Iterator[Client]:
    """Open a synchronous client, for commands.

    Args:
        create: make the directory of an embedded ClickHouse that is missing.

    Raises:
        SinkError: the ClickHouse does not answer, or a query fails; one line.
    """
    if target.path is not None and _serve is not None:
        target = _served(target, _serve)
    if target.path is not None and not create and not target.path.exists():
        raise SinkError(
            f"There is no ClickHouse directory {target.path}: a ClickHouseWriter with create=True makes it, "
            "or `kmr clickhouse serve`. Or name a server by its URL"
        )
    client: Client | None = None
    try:
        if target.path is not None:
            client = _embedded_client(target)
        else:
            client = clickhouse_connect.get_client(
                **_server_arguments(target),
                connect_timeout=5,
                send_receive_timeout=timeout,
                autogenerate_session_id=False,
            )
        yield client
    except clickhouse_connect.driver.exceptions.ClickHouseError as error:
        problem = "refused" if client is not None else "does not answer"
        raise sink_error(f"{target} {problem}", of_clickhouse(error)) from error
    finally:
        if client is not None:
            client.close()


# The client logs an error, with its traceback, before it raises it. What it raises is reported here.
logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)

_serve: Callable[[Path], str] | None = None


def serve_elsewhere(serve: Callable[[Path], str]) -> None:
    """Let another process open the directories of embedded ClickHouses, for all processes that need them.

    Args:
        serve: returns the URL at which a directory is served; may block, raises SinkError.
    """
    global _serve  # noqa: PLW0603  of the process, as the engine of chDB is
    _serve = serve


def _served(target: ClickHouseAddress, serve: Callable[[Path], str]) -> ClickHouseAddress:
    assert target.path is not None  # noqa: S101  the caller has looked
    url = serve(target.path)
    return replace(ClickHouseAddress.of(url, target.database), settings=target.settings)


def _server_arguments(target: ClickHouseAddress) -> dict[str, Any]:
    return {
        "interface": "https" if target.secure else "http",
        "host": target.host,
        "port": target.port,
        "username": target.user,
        "password": target.password,
        "database": target.database,
        "settings": dict(target.settings),
    }


def _embedded_client(target: ClickHouseAddress) -> Client:
    require_extra(
        "embedded", f"The embedded ClickHouse (or name a server: {URL_VARIABLE}=http://host:8123)"
    )
    assert target.path is not None  # noqa: S101  the caller has looked
    try:
        target.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # ClickHouse's own message has its stack
        raise SinkError(
            f"the directory {target.path} of the embedded ClickHouse cannot be made: {error.strerror}; "
            f"run where you may write, or name a server: {URL_VARIABLE}=http://host:8123"
        ) from error
    if problem := directory_in_use(target.path):
        raise SinkError(problem)
    return clickhouse_connect.get_client(
        interface="chdb",
        path=str(target.path),
        database=target.database,
        settings=dict(target.settings),
    )


def directory_in_use(path: Path) -> str | None:
    """Return the message to show if another process has a ClickHouse data directory open, else None."""
    try:
        status = (path / "status").open("rb")
    except OSError:
        return None
    with status:
        try:
            fcntl.flock(status, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            found = re.search(rb"PID: (\d+)", status.read())
            owner = int(found[1]) if found else 0
            if owner != os.getpid():
                return (
                    f"{path} is in use by process {owner}: one process at a time can open a ClickHouse "
                    "directory. Let one serve it (kmr clickhouse serve --data DIR) and the others connect "
                    f"by URL: {URL_VARIABLE}=http://127.0.0.1:8123"
                )
    return None


def _without_password(url: str) -> str:
    return re.sub(r"://[^@/]*@", "://", url)
