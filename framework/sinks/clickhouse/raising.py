"""Find the rows for which a DEFAULT or MATERIALIZED expression of a table raises.

An exception ends a query and names no row. So the expressions are tried on rows that are not written: on
many while they succeed, on fewer where one raises. Each row that is refused was tried alone, and what is left
is one INSERT; divided, the good rows would make a part each.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np
from clickhouse_connect.driver.binding import quote_identifier

from ...service.threads import run_in_thread
from ..answers import of_clickhouse
from .violations import SOURCE_SETTINGS, rows_as_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ..answers import Answer
    from .client import ClickHouseConnection
    from .table import ClickHouseColumn, ClickHouseTable

_SAMPLE: Final = 64  # rows, evenly spaced: how many are bad
_MOST_BAD: Final = 3_000  # rows that are tried alone; more would take longer than a flush may
_AT_A_TIME: Final = 4_096  # rows
_AT_ONCE: Final = 4  # queries
_EXPRESSIONS: Final = """
SELECT name, default_expression AS expression FROM system.columns
WHERE database = {database:String} AND table = {table:String}
AND default_kind IN ('DEFAULT', 'MATERIALIZED') ORDER BY position"""


async def raising(
    connection: ClickHouseConnection,
    table: ClickHouseTable,
    columns: Sequence[ClickHouseColumn],
    rows: pa.Table,
) -> dict[int, Answer]:
    """Return the rows for which an expression raises, with the server's answer.

    None if the table has no expressions, or if they raise for all rows of a sample, or for so
    many that more than 3,000 would have to be tried.

    Args:
        columns: those of the table that are sent.
        rows: cast for them.

    Raises:
        Exception: the client's own, if the server does not answer now.
    """
    sent = [each for each in columns if each.name in rows.column_names]
    names = {each.name for each in sent}
    found = await connection.rows(_EXPRESSIONS, {"database": table.database, "table": table.name})
    expressions = [
        f"({each['expression']}) AS {quote_identifier(each['name'])}"
        for each in found
        if each["name"] not in names
    ]
    if not expressions or not rows.num_rows:
        return {}
    text = ", ".join(expressions)
    used = [each for each in sent if re.search(rf"(?<!\w){re.escape(each.name)}(?!\w)", text)]
    search = _Search(connection, used, rows.select([each.name for each in used]), text)
    sample = np.unique(np.linspace(0, rows.num_rows - 1, _SAMPLE).astype(np.int64)).tolist()
    await search.sample(sample)
    all_bad = len(search.bad) == len(sample)  # the set-up may be wrong
    if all_bad or len(search.bad) * rows.num_rows > _MOST_BAD * len(sample):
        return {}
    await search.run()
    return search.bad


class _Search:
    """Tries expressions on rows.

    Attributes:
        bad: the rows for which they raise.
    """

    def __init__(
        self,
        connection: ClickHouseConnection,
        columns: Sequence[ClickHouseColumn],
        rows: pa.Table,
        expressions: str,
    ) -> None:
        self._connection, self._columns, self._rows = connection, columns, rows
        self._expressions = expressions
        self.bad: dict[int, Answer] = {}

    async def sample(self, rows: Sequence[int]) -> None:
        """Try them on some rows."""
        for row in rows:
            await self._stretch(row, row + 1)

    async def run(self) -> None:
        """Try them on all rows, in several stretches at once."""
        ends = np.linspace(0, len(self._rows), _AT_ONCE + 1).astype(int).tolist()
        async with anyio.create_task_group() as tasks:
            for start, stop in pairwise(ends):
                tasks.start_soon(self._stretch, start, stop)

    async def _stretch(self, at: int, stop: int) -> None:
        size = _AT_A_TIME
        while at < stop:
            if at in self.bad:
                at += 1
                continue
            count = min(size, stop - at)
            answer = await self._try(at, count)
            if answer is None:
                at += count
                size = min(2 * size, _AT_A_TIME)
            elif count == 1:
                self.bad[at] = answer
                at += 1
            else:
                size = max(1, count // 4)

    async def _try(self, start: int, count: int) -> Answer | None:
        """Return the server's answer if an expression raises for one of these rows."""
        source = await run_in_thread(rows_as_source, self._columns, self._rows.slice(start, count))
        query = f"SELECT max(ignore({self._expressions})) FROM {source}"  # noqa: S608
        try:
            await self._connection.rows(query, {}, SOURCE_SETTINGS)
        except Exception as error:
            answer = of_clickhouse(error)
            if answer.kind not in ("rows", "schema"):
                raise
            return answer
        return None
