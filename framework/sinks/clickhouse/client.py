"""How to reach a ClickHouse: a server over HTTP, or the engine inside this process (chDB)."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
import clickhouse_connect
from anyio import to_thread

from framework.errors import SinkError, StrategyError
from framework.sinks.clickhouse.errors import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from clickhouse_connect.driver.asyncclient import AsyncClient
    from clickhouse_connect.driver.client import Client

__all__ = [
    "URL_VARIABLE",
    "Connection",
    "Target",
    "connect",
    "connect_async",
    "data_directory_owner",
]

URL_VARIABLE = "KMR_CLICKHOUSE_URL"
DEFAULT_DIRECTORY = ".kmr/clickhouse"

_INSERT_FORMAT = "ArrowStream"


@dataclass(frozen=True, slots=True)
class Target:
    """A ClickHouse: `path` is the directory of an embedded one, else it is a server."""

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
        """The target of a URL.

        Args:
            url: `http://user:password@host:8123/database`, `https://...` or `chdb:///directory`, with
                settings as `?name=value`. None: the environment's KMR_CLICKHOUSE_URL, else the embedded
                ClickHouse in the directory `.kmr/clickhouse`.
            database: wins over that of the URL.

        Raises:
            StrategyError: the URL is none of these.
        """
        if url is None:
            url = os.environ.get(URL_VARIABLE) or f"chdb:{Path(DEFAULT_DIRECTORY).resolve()}"
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
        """Whether nothing is gained by compressing what is sent."""
        return self.path is not None or self.host in ("localhost", "127.0.0.1", "::1")

    def __str__(self) -> str:
        """Without the password: fit for messages."""
        if self.path is not None:
            return f"the embedded ClickHouse in {self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ClickHouse at {'https' if self.secure else 'http'}://{host}:{self.port}"

    def check_directory(self) -> None:
        """Raise SinkError if another process has the directory open, which can only be one at a time."""
        owner = None if self.path is None else data_directory_owner(self.path)
        if owner is not None:
            raise SinkError(
                f"{self.path} is in use by process {owner}: one process at a time can open a ClickHouse "
                "directory. Let one serve it (kmr clickhouse serve --data DIR) and the others connect "
                f"by URL: {URL_VARIABLE}=http://127.0.0.1:8123"
            )


class Connection(Protocol):
    """What the sink needs of a client, over HTTP or in-process."""

    async def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The result of a query."""

    async def insert(
        self, table: str, columns: Sequence[str], block: pa.Buffer, settings: Mapping[str, Any]
    ) -> None:
        """Write one block, an Arrow stream; raises if not all of it is written."""

    async def execute(self, sql: str) -> None:
        """Run a statement that has no result."""

    async def close(self) -> None:
        """Disconnect."""


@dataclass(frozen=True, slots=True)
class _Server:
    client: AsyncClient
    timeout: float

    async def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        with anyio.fail_after(self.timeout):
            result = await self.client.query(sql, parameters=dict(parameters))
        return list(result.named_results())

    async def insert(
        self, table: str, columns: Sequence[str], block: pa.Buffer, settings: Mapping[str, Any]
    ) -> None:
        # A stream, not bytes: the client copies bytes, and sends them again after a lost connection.
        body = io.BytesIO(memoryview(block))
        with anyio.fail_after(self.timeout):
            await self.client.raw_insert(
                table, columns, body, settings=dict(settings), fmt=_INSERT_FORMAT
            )

    async def execute(self, sql: str) -> None:
        with anyio.fail_after(self.timeout):
            await self.client.command(sql)

    async def close(self) -> None:
        await self.client.close()


@dataclass(frozen=True, slots=True)
class _Embedded:
    client: Client
    timeout: float

    async def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        result = await self._run(partial(self.client.query, sql, parameters=dict(parameters)))
        return list(result.named_results())

    async def insert(
        self, table: str, columns: Sequence[str], block: pa.Buffer, settings: Mapping[str, Any]
    ) -> None:
        await self._run(
            partial(
                self.client.raw_insert,
                table,
                columns,
                io.BytesIO(memoryview(block)),
                settings={**settings, "max_execution_time": self.timeout},
                fmt=_INSERT_FORMAT,
            )
        )

    async def execute(self, sql: str) -> None:
        await self._run(partial(self.client.command, sql))

    async def close(self) -> None:
        await self._run(self.client.close)

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await to_thread.run_sync(call)


async def connect_async(
    target: Target,
    *,
    settings: Mapping[str, Any],
    connect_timeout: float,
    timeout: float,
    options: Mapping[str, Any],
) -> Connection:
    """A connection for the sink.

    Args:
        settings: ClickHouse settings for every request, besides those of the target.
        connect_timeout: seconds for TCP and TLS.
        timeout: seconds for any one request.
        options: more arguments for the client of clickhouse-connect: certificates, a proxy, a token.

    Raises:
        Exception: whatever the client raises; `classify` tells what it means.
    """
    target = replace(target, settings={**target.settings, **settings})
    if target.path is not None:
        client = await to_thread.run_sync(partial(_embedded_client, target))
        return _Embedded(client, timeout)
    with anyio.fail_after(connect_timeout + timeout):
        return _Server(
            await clickhouse_connect.get_async_client(
                **_server_arguments(target),
                connect_timeout=connect_timeout,
                send_receive_timeout=timeout,
                compress=False,  # blocks are compressed, or not, as Arrow streams
                **options,
            ),
            timeout,
        )


@contextmanager
def connect(target: Target, *, timeout: float = 30.0) -> Iterator[Client]:
    """A synchronous client, for commands.

    Raises:
        SinkError: nothing answers there, or what is asked of it fails; one line.
    """
    if target.path is not None and not target.path.exists():
        raise SinkError(f"There is no ClickHouse directory {target.path}; name a server by its URL")
    client: Client | None = None
    # The client logs a network error before it raises it; without a handler that goes to stderr.
    log, silent = logging.getLogger("clickhouse_connect"), logging.NullHandler()
    log.addHandler(silent)
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
        raise SinkError(f"{target} {problem}: {classify(error).reason}") from error
    finally:
        log.removeHandler(silent)
        if client is not None:
            client.close()


def _server_arguments(target: Target) -> dict[str, Any]:
    return {
        "interface": "https" if target.secure else "http",
        "host": target.host,
        "port": target.port,
        "username": target.user,
        "password": target.password,
        "database": target.database,
        "settings": dict(target.settings),
    }


def _embedded_client(target: Target) -> Client:
    target.check_directory()
    try:
        return clickhouse_connect.get_client(
            interface="chdb",
            path=str(target.path),
            database=target.database,
            settings=dict(target.settings),
        )
    except ImportError as error:
        raise SinkError(
            "The embedded ClickHouse needs the package chdb: pip install 'kafka-map-reduce[embedded]'. "
            f"Or name a server: {URL_VARIABLE}=http://host:8123"
        ) from error


def data_directory_owner(path: Path) -> int | None:
    """The id of another process that has this ClickHouse data directory open, if one has."""
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
            return None if owner == os.getpid() else owner
    return None


def _without_password(url: str) -> str:
    return re.sub(r"://[^@/]*@", "://", url)
