"""After an insert was repeated: are its rows in the table?

A server without replication that dies between noting a token and writing the part remembers an insert that
it does not have. Where the table has the columns, that is seen by counting, and mended with another token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from framework.errors import SinkError
from framework.reducer import Retry
from framework.sinks.clickhouse.errors import classify

if TYPE_CHECKING:
    from framework.record import Range, Rows
    from framework.reducer import Poisoned
    from framework.sinks.clickhouse.delivery import Inserter
    from framework.sinks.clickhouse.inserts import Insert
    from framework.sinks.clickhouse.table import Table

__all__ = ["verify"]

_ATTEMPTS = 5

_log = structlog.get_logger(__name__)


async def verify(
    inserter: Inserter, insert: Insert, poisoned: list[Poisoned], *, alone: bool
) -> Retry | None:
    """Count the rows of an insert that may have been written before; write them if they are not there.

    Args:
        alone: nobody else writes rows of these offsets in other ranges, so that one row means all of them.
            Else a few may be somebody else's, and all are written again: at least once.

    Does nothing where rows or table lack the columns `partition` and `offset`, or the engine is replicated
    (there, token and part are written together).

    Returns:
        Retry if the server could not be asked.

    Raises:
        SinkError: the server claims to have the rows, and does not show them.
    """
    expected = len(insert) - sum(len(refused.rows) for refused in poisoned)
    if expected == 0 or not _countable(inserter.table, insert.parts):
        return None
    token = insert.token
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            found = await _count(inserter, insert)
        except Exception as error:
            trouble = classify(error)
            if trouble.kind != "later":
                raise
            return Retry(trouble.after, f"{inserter.table}: {trouble.reason}")
        if found >= expected or (found and alone):
            if found != expected and alone:
                _log.warning(
                    "a range that was written before has another number of rows than now: "
                    "does the map always give the same?",
                    table=str(inserter.table),
                    token=token,
                    found=found,
                    expected=expected,
                )
            return None
        _log.warning("written before, but not there: writing again", token=token)
        result = await inserter.write(replace(insert, token=f"{token}/again-{attempt}"))
        if isinstance(result, Retry):
            return result
    raise SinkError(
        f"{inserter.table} accepts the rows of {token}, but does not have them afterwards"
    )


def _countable(table: Table, parts: tuple[Rows, ...]) -> bool:
    columns = {column.name for column in table.columns}
    if not table.engine.endswith("MergeTree") or table.engine.startswith(("Replicated", "Shared")):
        return False
    if not {"partition", "offset"} <= columns:
        return False
    return all(_names_its_offsets(rows) for rows in parts)


def _names_its_offsets(rows: Rows) -> bool:
    """Whether `partition` and `offset` of the rows are those of their records, and not something else."""
    if rows.offsets is None or not {"partition", "offset"} <= set(rows.table.column_names):
        return False
    offsets = rows.table.column("offset").to_numpy()
    partitions = rows.table.column("partition").to_numpy()
    return np.array_equal(offsets, rows.offsets) and bool(
        np.all(partitions == rows.ranges[0].partition)
    )


async def _count(inserter: Inserter, insert: Insert) -> int:
    table = inserter.table
    ranges: list[Range] = [r for rows in insert.parts for r in rows.ranges]
    where = "`partition` = {partition:Int64} AND `offset` BETWEEN {first:Int64} AND {last:Int64}"
    if any(column.name == "topic" for column in table.columns) and all(
        "topic" in rows.table.column_names for rows in insert.parts
    ):
        where += " AND `topic` = {topic:String}"
    parameters = {
        "partition": ranges[0].partition,
        "topic": ranges[0].topic,
        "first": min(r.first for r in ranges),
        "last": max(r.last for r in ranges),
    }
    sql = f"SELECT count() AS found FROM {table.identifier} WHERE {where}"  # noqa: S608  quoted
    rows = await inserter.connection.rows(sql, parameters)
    return int(rows[0]["found"])
