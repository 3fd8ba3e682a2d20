"""Staged rows that carry topic, partition and offset: published by ranges of offsets.

The token of an INSERT is made of the range alone. So a batch that comes again from another query, after a
checkpoint was lost, or with other bounds, writes only the records that the table does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clickhouse_connect.driver.binding import quote_identifier

from ...delivery.announcement import token_of
from ...errors import SinkError
from ...record import Range
from .ddl import quote_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .client import ClickHouseConnection

_ATTEMPTS: Final = 3
_RANGES_SQL: Final = """
SELECT topic, partition, min(offset) AS first, max(offset) AS last
FROM (
    SELECT topic, partition, offset,
        dense_rank() OVER (PARTITION BY topic, partition ORDER BY offset) - 1 AS place
    FROM ({rows}))
GROUP BY topic, partition, intDiv(place, {most})
ORDER BY topic, partition, first"""


async def publish_ranges(
    connection: ClickHouseConnection,
    target: str,
    staged: Sequence[str],
    columns: Sequence[str],
    most: int,
    settings: Mapping[str, Any],
) -> None:
    """Write the rows of records that a table does not have yet, by one INSERT for each range.

    Args:
        target, staged: names of tables, quoted.
        most: offsets of a range.
        settings: with which rows are written as one block.

    Raises:
        SinkError: the table does not have all of them then.
    """
    names = ", ".join(map(quote_identifier, columns))
    rows = " UNION ALL ".join(f"SELECT {names} FROM {table}" for table in staged)  # noqa: S608
    for found in await connection.rows(_RANGES_SQL.format(rows=rows, most=most), {}):
        wanted = Range(found["topic"], found["partition"], found["first"], found["last"])
        token = token_of("kmr-clickhouse", [wanted], {})
        within = (
            f"topic = {quote_text(wanted.topic)} AND partition = {wanted.partition} "
            f"AND offset BETWEEN {wanted.first} AND {wanted.last}"
        )
        lacking = (
            f"FROM ({rows}) WHERE {within} "  # noqa: S608
            f"AND offset NOT IN (SELECT offset FROM {target} WHERE {within})"
        )
        attempt = 0
        while (await connection.rows(f"SELECT count() AS n {lacking}", {}))[0]["n"]:
            if attempt == _ATTEMPTS:
                raise SinkError(f"{target} does not keep the rows of {wanted}")
            # The server may know the token of rows that it has lost, or that were deleted since.
            tried = f"{token}~{attempt}" if attempt else token
            await connection.execute(
                f"INSERT INTO {target} ({names}) SELECT {names} {lacking} ORDER BY offset",
                {**settings, "insert_deduplication_token": tried},
            )
            attempt += 1
