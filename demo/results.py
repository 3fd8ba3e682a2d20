"""What SQL says of the table: rows of both parts, the checks, and delays per carrier."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError

from demo.processes import ChildFailed
from demo.services import TABLE
from kmr.history.deliveries import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from demo.outcome import Cut
    from kmr.history.deliveries import CheckResult

__all__ = ["RESULTS", "Checked", "checked", "row_counter"]

RESULTS = Path(__file__).with_name("results.sql")
_PARTS = (
    "SELECT partition, countIf(offset < {cut}) AS history, count() - history AS present "
    "FROM {table} GROUP BY partition"
)


@dataclass(frozen=True)
class Checked:
    """What the table says.

    Attributes:
        cut: of each partition.
        deliveries: what the statement in `sql/` has found.
        parts: rows below the cut and from it on, by partition.
        carriers: the rows of `results.sql`: code, flights, cancelled, mean delay, that of the worst tenth.
    """

    cut: Cut
    deliveries: CheckResult
    parts: Mapping[int, tuple[int, int]]
    carriers: list[tuple[Any, ...]]

    @property
    def history(self) -> int:
        """Rows below the cut."""
        return sum(history for history, _ in self.parts.values())

    @property
    def present(self) -> int:
        """Rows from the cut on."""
        return sum(present for _, present in self.parts.values())


def checked(url: str, cut: Cut, expected: int) -> Checked:
    """Look at the table; `expected` is how many records were produced.

    Raises:
        SinkError: ClickHouse does not answer.
    """
    deliveries = check(url=url, table=TABLE, expected=expected)
    with clickhouse_connect.get_client(dsn=url) as client:
        carriers = [tuple(row) for row in client.query(RESULTS.read_text()).result_rows]
        rows = client.query(_parts(cut)).result_rows
    return Checked(
        cut, deliveries, {partition: (old, new) for partition, old, new in rows}, carriers
    )


@asynccontextmanager
async def row_counter(url: str, cut: Cut) -> AsyncIterator[Callable[[], Awaitable[list[int]]]]:
    """Counts the rows below the cut and from it on, as often as it is called; over one connection.

    Raises:
        ChildFailed: from a call: ClickHouse does not answer.
    """
    client = await clickhouse_connect.get_async_client(dsn=url)
    sql = f"SELECT sum(history), sum(present) FROM ({_parts(cut)})"  # noqa: S608  of numbers

    async def count() -> list[int]:
        try:
            result = await client.query(sql)
        except ClickHouseError as error:
            raise ChildFailed(f"ClickHouse does not answer: {error}") from error
        return [int(each) for each in result.result_rows[0]]

    try:
        yield count
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


def _parts(cut: Cut) -> str:
    at = f"transform(partition, {list(cut)}, {list(cut.values())}, 0)"
    return _PARTS.format(cut=at, table=TABLE)
