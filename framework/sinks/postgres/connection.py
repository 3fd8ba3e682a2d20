"""Connect to PostgreSQL, and classify its errors."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import psycopg
from psycopg.conninfo import conninfo_to_dict

from ...config.secrets import read_secret
from ...errors import SinkError, StrategyError
from ..parquet.files import without_secrets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["URL_VARIABLE", "Connection", "Pool", "classify", "one_line"]

URL_VARIABLE = "KMR_POSTGRES_URL"

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

Kind = Literal["later", "schema", "data", "stop", "unknown"]

_RECONNECT = 0.5  # seconds between attempts to reach a server that is not there yet
_LONGEST_REASON = 300
# The server is overloaded, starts, ends, or gave up on a statement: it will accept the same rows later.
_LATER = {
    "25P03": "idle_in_transaction_session_timeout", "25P04": "transaction_timeout",
    "25006": "read_only_sql_transaction", "40001": "serialization_failure", "40P01": "deadlock_detected",
    "55P03": "lock_not_available", "57014": "query_canceled",
}  # fmt: skip
_LATER_CLASSES = ("08", "53", "57", "58")  # connections, resources, operators, the system
_SCHEMA = ("42P01", "42703", "42804", "42846")  # no such table or column, and types that do not fit
_DATA_CLASSES = ("22", "23")  # values that cannot be stored, and constraints
_STOP_CLASSES = ("28", "3D", "3F", "42")  # login, database, schema, permission and syntax


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
            return await psycopg.AsyncConnection.connect(
                self.conninfo, autocommit=True, prepare_threshold=None
            )

    async def wait(self, seconds: float) -> None:
        """Connect; wait for a server that is not there yet.

        Raises:
            SinkError: it does not answer in time, or refuses the connection.
        """
        deadline = anyio.current_time() + seconds
        while True:
            try:
                self._idle.append(await self.connect())
            except (psycopg.Error, OSError) as error:  # TimeoutError is an OSError
                kind, reason = classify(error)
                if kind != "later":
                    raise SinkError(f"{self} refuses the connection: {reason}") from None
                if anyio.current_time() >= deadline:
                    raise SinkError(
                        f"{self} did not answer for {seconds:g} s: {reason}. Start it, or correct the URL"
                    ) from None
            else:
                return
            await anyio.sleep(_RECONNECT)

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


def classify(error: Exception) -> tuple[Kind, str]:
    """Return the meaning of an error for the rows, and the reason in one line.

    `later`: the same rows may be accepted later; `schema`: the table is not as expected; `data`: one or more
    rows can never be stored; `stop`: the user must act.
    """
    if isinstance(error, TimeoutError):
        return "later", "the server does not answer"
    if isinstance(error, OSError):
        return "later", one_line(str(error))
    if not isinstance(error, psycopg.Error):
        return "unknown", one_line(str(error))
    state = error.sqlstate
    reason = one_line(error.diag.message_primary or str(error))
    if state is None:
        lost = isinstance(error, psycopg.OperationalError)
        refused = lost and ("authentication failed" in reason or "does not exist" in reason)
        return ("stop" if refused else "later" if lost else "unknown"), reason
    if state in _LATER or state[:2] in _LATER_CLASSES:
        return "later", reason
    if state in _SCHEMA:
        return "schema", reason
    if state[:2] in _DATA_CLASSES:
        return "data", reason
    return ("stop" if state[:2] in _STOP_CLASSES else "unknown"), reason


def one_line(text: str) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(text.split())[:_LONGEST_REASON]
