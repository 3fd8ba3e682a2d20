"""Rows for PostgreSQL, a flush of them, and the content of a table."""

from __future__ import annotations

import copy
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa

from kmr.delivery.announcement import Announcement
from kmr.errors import Escaped
from kmr.record import Range, Rows
from kmr.reducers.sink import Write
from kmr.sinks import PostgresWriter

from ...flushes import Flushed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from kmr.reducers.reducer import Context, Retry

WRITERS: list[PostgresWriter] = []
OFFSETS = pa.schema([pa.field("offset", pa.int64(), nullable=False)])


def rows(first: int, last: int, **columns: Any) -> Rows:
    offsets = np.arange(first, last + 1)
    table = pa.table({"offset": offsets, **columns})
    return Rows(table, (Range("t", 0, first, last),), offsets)


async def opened(url: str, context: Context, **options: Any) -> PostgresWriter:
    options = {"create": OFFSETS, **options}
    writer = copy.deepcopy(PostgresWriter("hits", url=url, **options))
    await writer.open(context)
    WRITERS.append(writer)
    return writer


async def flush(
    writer: PostgresWriter,
    *added: Rows,
    replayed: bool = False,
    generation: int = 0,
    announced: bool = True,
    progressed: Callable[[], None] = lambda: None,
) -> Flushed | Retry:
    """One round of calls for a range."""
    writer.reset()
    for each in added:
        writer.add(each)
    if announced:
        first, last = added[0].ranges[0].first, added[-1].ranges[-1].last
        at = f"@{generation}" if generation else ""
        token = f"g:t:0:{first}-{last}{at}"
        announcement = Announcement(first, last, token, "w", generation=generation)
        return await outcome(writer, Write(announcement, repeated=replayed, progressed=progressed))
    return await outcome(writer, Write(repeated=replayed))


class Killed(BaseException):
    """Ends a flush as kill -9 would: the connection is gone, and nothing else is said to the server."""


async def flush_killed(
    writer: PostgresWriter, rows: Rows, fatal: int, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Flush; die after so many exchanges with the server. Return whether there were as many."""
    exchange, clock = psycopg.AsyncConnection.wait, count()

    async def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        step = next(clock)
        if step == fatal:
            await exchange(self, *arguments, **options)
        if step >= fatal:
            self.pgconn.finish()
            raise Killed
        return await exchange(self, *arguments, **options)

    writer._forget()
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.AsyncConnection, "wait", wait)
        try:
            await flush(writer, rows)
        except Escaped:
            return True
    return False


def query(url: str, sql: str = 'SELECT "offset" FROM hits ORDER BY 1') -> list[Any]:
    with psycopg.connect(url) as connection:
        return [row[0] if len(row) == 1 else row for row in connection.execute(sql.encode())]


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def refused(result: Flushed | Retry) -> list[tuple[int, str]]:
    assert isinstance(result, Flushed)
    found: list[tuple[int, str]] = []
    for each in result.refusals:
        assert each.rows.offsets is not None
        offsets = each.rows.offsets.tolist()
        reasons = [each.reason] * len(offsets) if isinstance(each.reason, str) else each.reason
        found += zip(offsets, reasons, strict=True)
    return found
