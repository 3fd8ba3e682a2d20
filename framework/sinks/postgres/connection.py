"""Connect to PostgreSQL, and classify its errors."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import psycopg
from psycopg.conninfo import conninfo_to_dict

from ...config.secrets import read_secret
from ...errors import StrategyError
from ...service.storage import without_secrets
from ..answers import connected, of_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

URL_VARIABLE = "KMR_POSTGRES_URL"

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Pool:
    """The address of a database, and connections to it that are idle.

    Attributes:
        timeout: seconds for each transaction.
    """

    conninfo: str
    timeout: float
    _idle: list[Connection] = field(default_factory=list)

    @classmethod
    def of(cls, url: str | None, timeout: float) -> Pool:
        """Parse a URL, or `name=value` pairs, as libpq does.

        Args:
            url: None: that of the environment's KMR_POSTGRES_URL (or KMR_POSTGRES_URL_FILE), else the
                variables of libpq (PGHOST, ...).

        Raises:
            StrategyError: there is no address, or it is not valid.
        """
        conninfo = url or read_secret(os.environ, URL_VARIABLE) or ""
        if not conninfo and not {"PGHOST", "PGSERVICE"} & set(os.environ):
            raise StrategyError(
                f"PostgresWriter: no server is named; set url= or {URL_VARIABLE}=postgresql://user@host/database"
            )
        try:
            conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError:  # its text may have the password
            raise StrategyError(
                f"The PostgreSQL URL {without_secrets(conninfo) if '://' in conninfo else ''} is not valid: "
                "it is postgresql://user:password@host:5432/database"
            ) from None
        return cls(conninfo, timeout)

    def __str__(self) -> str:
        """Name it for messages, without user and password."""
        known = conninfo_to_dict(self.conninfo)
        host = known.get("host") or os.environ.get("PGHOST", "localhost")
        port = known.get("port") or os.environ.get("PGPORT", "5432")
        return f"PostgreSQL at {host}:{port}/{known.get('dbname') or ''}"

    async def connect(self) -> Connection:
        """Open a connection, in autocommit mode. Raises psycopg.Error."""
        with anyio.fail_after(self.timeout):
            # Prepared statements do not survive a connection pooler such as PgBouncer.
            # We send UTF-8. The role or the URL may set another client_encoding.
            return await psycopg.AsyncConnection.connect(
                self.conninfo, autocommit=True, prepare_threshold=None, client_encoding="utf8"
            )

    async def wait(self, seconds: float) -> None:
        """Connect; wait for a server that is not there yet.

        Raises:
            SinkError: it does not answer in time, or refuses the connection.
        """
        self._idle.append(await connected(self, seconds, self.connect, of_postgres))

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend an idle connection, or a new one; it is closed after an error."""
        connection = self._idle.pop() if self._idle else await self.connect()
        try:
            yield connection
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(Exception):
                await connection.close()
            raise
        self._idle.append(connection)

    async def close(self) -> None:
        """Close all connections that are idle."""
        while self._idle:
            await self._idle.pop().close()
