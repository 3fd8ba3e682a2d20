"""Whether a range is in the table, where a token proves nothing: rows are counted, and written again.

- A server without replication that dies between storing a token and writing the part remembers an insert
  whose rows it does not have: `repeat` writes them again with another token.
- A table forgets tokens, by number, and a replicated one by time: `was_counted` counts before a range is
  written that may be there.
- A range that was announced with others is written under their token (`RangeRows.shared`). Another of them
  may have taken it alone: then the rows are missing, and `repeat` writes them under the range's own.
- A range is written in pieces where the server refuses rows of it. A table that was altered since then may
  take as a whole what it refused, or know the token: `repeat` sends the rows that are missing.
- The answer of a server does not tell whether it wrote the rows or dropped them as a repetition
  (`written_rows` counts both): `fingerprint` differs if rows were written in between.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from ...errors import KmrError, SinkError
from ...reducers.reducer import Retry
from ..answers import of_clickhouse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ..planning import RangeRows
    from .inserts import Inserter

_VERIFICATIONS = 5
_RANGES_AT_A_TIME = 200  # they are in the URL of the query
_AMONG_SQL = """
SELECT DISTINCT `partition` FROM {table} WHERE `topic` = {{topic:String}}
AND `partition` IN {{partitions:Array(Int64)}}
AND `offset` BETWEEN arrayMin({{firsts:Array(Int64)}}) AND arrayMax({{lasts:Array(Int64)}})
AND `offset` >= transform(toInt64(`partition`), {{partitions:Array(Int64)}}, {{firsts:Array(Int64)}}, 0)
AND `offset` <= transform(toInt64(`partition`), {{partitions:Array(Int64)}}, {{lasts:Array(Int64)}}, -1)"""
_PARTS_SQL = """
SELECT sum(newest) AS found FROM (
    SELECT max(max_block_number) AS newest FROM system.parts
    WHERE database = {database:String} AND table = {table:String} AND active GROUP BY partition_id)"""

_log = structlog.get_logger(__name__)


async def was_counted(inserter: Inserter, insert: RangeRows) -> bool:
    """Count the rows of an insert that may have been written: a table forgets tokens, by time or by number.

    No other writer may write these offsets in other ranges: the rows found are those of this insert. After
    a reset of the offsets the table may have rows of an earlier generation: then the token decides.
    """
    if not inserter.counts(insert.parts) or _is_reset(insert):
        return False
    found = await _count(inserter, insert)
    if not found or not inserter.table.counting.missing:
        return found > 0  # the others have expired, or are merged
    return found >= len(insert) - len(await inserter.refused(insert))


async def found_among(inserter: Inserter, ranges: Sequence[RangeRows]) -> list[RangeRows]:
    """Return those of the ranges, each of one partition, that have rows in the table. Raises as `_query`."""
    found: list[RangeRows] = []
    for topic in {rows.span.topic for rows in ranges if rows.span is not None}:
        spans = {
            rows.span.partition: rows for rows in ranges if rows.span and rows.span.topic == topic
        }
        parameters = {
            "topic": topic,
            "partitions": list(spans),
            "firsts": [rows.ranges[0].first for rows in spans.values()],
            "lasts": [rows.ranges[-1].last for rows in spans.values()],
        }
        sql = _AMONG_SQL.format(table=inserter.table.identifier)
        found += [spans[row["partition"]] for row in await _query(inserter, sql, parameters)]
    return found


def _is_reset(insert: RangeRows) -> bool:
    return insert.span is not None and insert.span.generation > 0


async def repeat(inserter: Inserter, insert: RangeRows, *, alone: bool) -> Mapping[int, str]:
    """Write an insert that may have been written before; count where the table has the columns to do so.

    Args:
        alone: no other writer writes these offsets in other ranges, so the rows found are those of this
            insert. Else they may be another writer's, and all are written again: at least once.

    Returns:
        As `Inserter.write`.

    Raises:
        SinkError: the rows cannot be counted, or the server accepts them again and again, but the table
            does not have them.
    """
    table = inserter.table
    counts = table.counting.missing and inserter.counts(insert.parts)
    is_ours = alone and insert.write.repeated and not insert.shared and not _is_reset(insert)
    if counts and is_ours and (there := await _there(inserter, insert)):
        return await inserter.write(insert, there)
    result = await inserter.write(insert)
    if insert.shared or (counts and not table.is_replicated):
        await _verify(inserter, insert, result, alone=alone)
    return result


async def _there(inserter: Inserter, insert: RangeRows) -> set[int]:
    """Return the numbers of the rows that the table has.

    None of them where it has a part of the rows of one record: which part is not known.
    """
    fits = np.ones(len(insert), np.bool_)
    fits[list(await inserter.refused(insert))] = False
    offsets = np.concatenate([rows.offsets for rows in insert.parts if rows.offsets is not None])
    of_record = Counter(offsets[fits].tolist())
    found = {
        offset: n for offset, n in (await _found(inserter, insert)).items() if offset in of_record
    }
    if any(n < of_record[offset] for offset, n in found.items()):
        return set()
    return set(np.flatnonzero(fits & np.isin(offsets, list(found))).tolist())


async def fingerprint(inserter: Inserter, insert: RangeRows) -> int | None:
    """Return a number that an insert changes, unless the server drops its rows as a repetition.

    The number of rows with its offsets, where a count proves it. Else the newest block of the table: there,
    another writer's insert can hide that ours was dropped. None where no insert shows (`Counting`).

    Raises:
        SinkError: the server refuses the query.
    """
    table = inserter.table
    if not table.counting.shows_inserts:
        return None
    if inserter.counts(insert.parts) and table.counting.missing:
        return await _count(inserter, insert)
    where = {"database": table.database, "table": table.name}
    (row,) = await _query(inserter, _PARTS_SQL, where)
    return int(row["found"])


async def _verify(
    inserter: Inserter, insert: RangeRows, refused: Mapping[int, str], *, alone: bool
) -> None:
    """Count the rows of a repeated insert, and write them again if they are missing."""
    expected = len(insert) - len(refused)
    if expected == 0:
        return
    token = insert.token
    for attempt in range(1, _VERIFICATIONS + 1):
        found = await _count(inserter, insert)
        if found >= expected or (found and alone):
            if found != expected and alone and not _is_reset(insert):
                _log.warning(
                    "a range that was written before has another number of rows than now: the map must "
                    "return the same rows for the same records, and a compacted topic has fewer of them",
                    table=str(inserter.table),
                    token=token,
                    found=found,
                    expected=expected,
                )
            return
        if not insert.shared:  # else another partition's rows have taken the token
            _log.warning("rows of a repeated insert are missing: writing them again", token=token)
        await inserter.write(replace(insert, token=f"{token}/again-{attempt}", shared=""))
    raise SinkError(
        f"{inserter.table} accepts the rows of {token}, but does not contain them afterwards"
    )


async def _count(inserter: Inserter, insert: RangeRows) -> int:
    """Count the rows of exactly the insert's offsets: others may lie between them."""
    return sum([row["found"] async for row in _select(inserter, insert, "count() AS found")])


async def _found(inserter: Inserter, insert: RangeRows) -> dict[int, int]:
    """Count the rows of each of the insert's offsets that has some."""
    selected = "toInt64(`offset`) AS at, count() AS found"
    return {
        row["at"]: row["found"]
        async for row in _select(inserter, insert, selected, " GROUP BY `offset`")
    }


async def _select(
    inserter: Inserter, insert: RangeRows, columns: str, grouped: str = ""
) -> AsyncIterator[dict[str, Any]]:
    """Select from the rows with the insert's offsets.

    On a replica that has everything that any replica has accepted.
    """
    table = inserter.table
    ranges = insert.ranges
    where = (
        "`partition` = {partition:Int64} AND `offset` BETWEEN {first:Int64} AND {last:Int64} "
        "AND arrayExists(r -> `offset` BETWEEN r.1 AND r.2, {ranges:Array(Tuple(Int64, Int64))}) "
        "AND `topic` = {topic:String}"
    )
    sql = f"SELECT {columns} FROM {table.identifier} WHERE {where}{grouped}"  # noqa: S608  quoted
    synchronize: tuple[str, ...] = ()
    if table.engine.startswith("Shared"):
        sql += " SETTINGS select_sequential_consistency = 1"
    elif table.is_replicated:
        synchronize = (f"SYSTEM SYNC REPLICA {table.identifier} LIGHTWEIGHT",)
    owners = dict.fromkeys(r.topic_partition for r in ranges)
    for owner in owners:
        own = [r for r in ranges if r.topic_partition == owner] if len(owners) > 1 else ranges
        for start in range(0, len(own), _RANGES_AT_A_TIME):
            some = own[start : start + _RANGES_AT_A_TIME]
            parameters = {
                "partition": owner.partition,
                "topic": owner.topic,
                "first": some[0].first,
                "last": some[-1].last,
                "ranges": [(r.first, r.last) for r in some],
            }
            for row in await _query(inserter, sql, parameters, *synchronize):
                yield row


async def _query(
    inserter: Inserter, sql: str, parameters: Mapping[str, object], *before: str
) -> list[dict[str, Any]]:
    """Return the rows of a query. Raises Retry if the server does not answer now.

    Args:
        before: statements to run first.
    """
    table, connection = inserter.table, inserter.connection
    try:
        for statement in before:
            await connection.execute(statement)
        statement = sql
        rows = await connection.rows(sql, parameters)
        if await inserter.follow():
            raise Retry(f"{table} was exchanged while it was counted", may_double=False)
    except (KmrError, Retry):
        raise
    except Exception as error:
        failure = of_clickhouse(error)
        if failure.kind == "later":
            reason = f"{table}: {failure.reason}"
            raise Retry(reason, after=failure.after, may_double=False) from error
        raise SinkError(
            f"{table}: cannot find out whether a range was written: {failure.reason}. The server refused: "
            f"{' '.join(statement.split())}"
        ) from error
    return rows
