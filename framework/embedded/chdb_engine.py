"""ClickHouse inside this process (chDB): one statement at a time per handle, many handles at once.

A handle costs a tenth of a millisecond, so every query without a session has its own; its database,
settings and temporary tables end with it. The engine reads the data of an INSERT from an anonymous file
in memory (`FROM INFILE`): chDB's own streaming insert sometimes reports rows as written that a constraint
of the table or a materialized view has refused.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from clickhouse_connect.driver.binding import format_str, quote_identifier

from .._extras import require_extra
from ..sinks.clickhouse.client import directory_in_use
from .query import ClickHouseError, ServerError, StatementResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .query import ExternalTable, Query

_MAX_RESULT_BYTES = 1 << 30
_LOST = "an error, whose message this version of Python loses because it is no UTF-8"
_SESSION_TIMEOUT = 60.0  # seconds without a query


@dataclass(slots=True)
class _Session:
    handle: Any
    lock: threading.Lock = field(default_factory=threading.Lock)
    used: float = field(default_factory=time.monotonic)


class ChdbEngine:
    """The engine and its sessions, for one data directory. All methods block; use threads."""

    def __init__(self, path: Path) -> None:
        """Open, or create, the database in the directory `path`.

        Raises:
            MissingExtra: chDB is not installed.
            ServerError: the directory is in use, or cannot be written.
        """
        require_extra("embedded", "The embedded ClickHouse")
        from chdb.state.sqlitelike import Connection

        self.path = path
        self._connect = Connection
        self._sessions: dict[str, _Session] = {}
        self._sessions_lock = threading.Lock()
        if problem := directory_in_use(path):
            raise ServerError(problem)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._keeper = self._open()  # keeps the engine running between queries
        except (OSError, RuntimeError) as error:
            raise ServerError(
                f"Cannot open the ClickHouse data directory {path}: {error}"
            ) from error
        self.version, self.timezone = self._rows("SELECT version(), timezone()")[0]
        self._known_settings = frozenset(
            name for (name,) in self._rows("SELECT name FROM system.settings")
        )

    def run(self, query: Query) -> StatementResult:
        """Run one statement. Raises ClickHouseError. Statements of a session run one after the other."""
        settings = {name: v for name, v in query.settings.items() if name in self._known_settings}
        settings.setdefault("max_result_bytes", str(_MAX_RESULT_BYTES))
        if query.tag:
            settings.setdefault("log_comment", query.tag)
        try:
            with self._handle_for(query) as handle, _settings(handle, settings, query.session):
                if query.database:
                    handle.query(f"USE {quote_identifier(query.database)}")
                for table in query.external:
                    _create_external(handle, table)
                result = handle.query(
                    query.sql(), query.default_format, params=dict(query.parameters)
                )
                return _answer(query, result)
        except RuntimeError as error:
            raise ClickHouseError.of_engine(str(error) or _LOST) from error
        except UnicodeDecodeError as error:  # an error message quotes bytes
            message = error.object.decode(errors="backslashreplace")
            raise ClickHouseError.of_engine(message) from error

    def kill(self, tag: str) -> None:
        """Stop a query if it still runs; return when it has stopped."""
        self._rows(f"KILL QUERY WHERE Settings['log_comment'] = {format_str(tag)} SYNC")

    def kill_all(self) -> None:
        """Stop all queries; return when they have stopped."""
        self._rows("KILL QUERY WHERE query NOT ILIKE 'KILL %' SYNC")

    def close(self) -> None:
        """Release the data directory; no query may be running."""
        with self._sessions_lock:
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.handle.close()
        self._keeper.close()

    def _open(self) -> Any:
        return self._connect(os.path.realpath(self.path))

    def _rows(self, sql: str) -> list[list[str]]:
        handle = self._open()
        try:
            body = handle.query(sql, "JSONCompactEachRow").bytes()
        except RuntimeError as error:
            raise ClickHouseError.of_engine(str(error)) from error
        finally:
            handle.close()
        return [msgspec.json.decode(line) for line in body.splitlines()]

    @contextmanager
    def _handle_for(self, query: Query) -> Iterator[Any]:
        if query.session is None:
            handle = self._open()
            try:
                yield handle
            finally:
                handle.close()
            return
        session = self._session(query.session)
        with session.lock:
            yield session.handle
            session.used = time.monotonic()

    def _session(self, name: str) -> _Session:
        """Return the session `name`; end those that were idle for too long."""
        now = time.monotonic()
        with self._sessions_lock:
            for other, session in list(self._sessions.items()):
                if now - session.used > _SESSION_TIMEOUT and not session.lock.locked():
                    del self._sessions[other]
                    session.handle.close()
            found = self._sessions.get(name)
            if found is None:
                found = self._sessions[name] = _Session(self._open())
            found.used = now
            return found


def _answer(query: Query, result: Any) -> StatementResult:
    statement, body = query.statement, result.bytes()
    summary = {
        "read_rows": result.storage_rows_read(),
        "read_bytes": result.storage_bytes_read(),
        "written_rows": result.rows_written(),
        "written_bytes": result.bytes_written(),
        "result_rows": result.rows_read() if statement.kind == "read" else result.rows_written(),
        "elapsed_ns": int(result.elapsed() * 1_000_000_000),
    }
    answers = statement.answers or (bool(body) and statement.kind != "insert")
    return StatementResult(
        body,
        (statement.format or query.default_format) if answers else None,
        {name: str(value) for name, value in summary.items()},
    )


@contextmanager
def _settings(handle: Any, settings: Mapping[str, str], session: str | None) -> Iterator[None]:
    """Set settings for one query, and restore those of a session afterwards.

    A leftover deduplication token would make the next INSERT of the session vanish.
    """
    before: list[tuple[str, str, bool]] = []
    if session is not None:
        names = ", ".join(map(format_str, settings))
        body = handle.query(
            f"SELECT name, value, changed = 1 FROM system.settings WHERE name IN ({names})",  # noqa: S608
            "JSONCompactEachRow",
        ).bytes()
        before = [tuple(msgspec.json.decode(line)) for line in body.splitlines()]
    assignments = (f"{name} = {format_str(value)}" for name, value in settings.items())
    try:
        handle.query(f"SET {', '.join(assignments)}")
        yield
    finally:
        for name, value, changed in before:
            handle.query(f"SET {name} = {format_str(value) if changed else 'DEFAULT'}")


def _create_external(handle: Any, table: ExternalTable) -> None:
    name = quote_identifier(table.name)
    handle.query(f"DROP TEMPORARY TABLE IF EXISTS {name}")
    handle.query(f"CREATE TEMPORARY TABLE {name} ({table.structure})")
    handle.query(f"INSERT INTO {name} FROM INFILE '{table.data.path}' FORMAT {table.format}")
