"""Rows for ClickHouse tables, a flush of them, and the content of a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kmr.record import Range, Rows
from kmr.reducers.sink import NEW, Write
from kmr.sinks.clickhouse.writer import ClickHouseWriter

from ...flushes import Flushed, outcome

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.reducers.reducer import Retry


OFFSETS = "`partition` UInt32, `offset` UInt64"
COUNTED = "`topic` String, `partition` UInt32, `offset` UInt64, `n` UInt8"
OpenWriter = Callable[..., Awaitable[ClickHouseWriter]]


def rows(first: int, count: int, *, partition: int = 0, **columns: Any) -> Rows:
    """Rows of consecutive offsets of one partition; `columns` besides `partition` and `offset`."""
    offsets = np.arange(first, first + count)
    table = pa.table({"partition": np.full(count, partition), "offset": offsets, **columns})
    return Rows(table, (Range("topic", partition, first, first + count - 1),), offsets)


def counted(first: int, count: int, *, partition: int = 0, **columns: Any) -> Rows:
    """Rows of consecutive offsets, without the columns that say so: those of the table are filled."""
    made = rows(first, count, partition=partition, n=np.zeros(count, np.uint8), **columns)
    return replace(made, table=made.table.drop_columns(["partition", "offset"]))


async def flush(writer: ClickHouseWriter, *added: Rows, write: Write = NEW) -> Flushed | Retry:
    """One round of calls, as the reduce stage makes it."""
    writer.reset()
    for part in added:
        writer.add(part)
    return await outcome(writer, write)


def written(client: Client, table: str, column: str = "offset") -> list[Any]:
    query = f"SELECT `{column}` FROM {table} ORDER BY `{column}`"
    return [row[0] for row in client.query(query).result_rows]


def poisoned_offsets(result: Flushed | Retry) -> list[int]:
    assert isinstance(result, Flushed)
    offsets: list[int] = []
    for poisoned in result.refusals:
        assert poisoned.rows.offsets is not None
        offsets += poisoned.rows.offsets.tolist()
    return sorted(offsets)


def reasons(result: Flushed | Retry) -> list[str]:
    assert isinstance(result, Flushed)
    of_each = (each.reason for each in result.refusals)
    return [text for of in of_each for text in ((of,) if isinstance(of, str) else of)]
