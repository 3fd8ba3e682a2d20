"""Batches that are staged and published: once, wherever a driver or a task dies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.sinks.clickhouse.client import ClickHouseAddress, ClickHouseConnection, connect
from kmr.sinks.clickhouse.ddl import TableLayout
from kmr.sinks.clickhouse.staging import StagedRows, StagedTable

if TYPE_CHECKING:
    from collections.abc import Sequence

_names = (f"staged_{number}" for number in itertools.count())


class Dead(Exception):
    """The process died here."""


@dataclass(frozen=True, slots=True)
class DyingConnection(ClickHouseConnection):
    """Dies before, or after, its n-th statement."""

    steps: Any = None
    after: bool = False

    async def _count(self, call: Any) -> None:
        dies = next(self.steps) == 0
        if dies and not self.after:
            raise Dead
        await call()
        if dies:
            raise Dead

    async def execute(self, *arguments: Any, **options: Any) -> None:
        execute = ClickHouseConnection.execute
        await self._count(lambda: execute(self, *arguments, **options))

    async def insert(self, *arguments: Any, **options: Any) -> None:
        insert = ClickHouseConnection.insert
        await self._count(lambda: insert(self, *arguments, **options))


@pytest.fixture
def table(clickhouse_url: str) -> StagedTable:
    layout = TableLayout(order_by=("n",), partition_by="n % 2")
    return StagedTable(
        next(_names), clickhouse_url, None, layout=layout, create=True, extra="error"
    )


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "name": [f"n{n}" for n in numbers]})


def query(table: StagedTable, sql: str) -> list[Any]:
    with connect(ClickHouseAddress.of(table.url)) as client:
        return list(client.query(sql.replace("<t>", table.name)).result_rows)


def run(table: StagedTable, *sql: str) -> None:
    with connect(ClickHouseAddress.of(table.url)) as client:
        for each in sql:
            client.command(each.replace("<t>", table.name))


async def write(
    table: StagedTable,
    job: str,
    batch: int,
    tasks: Sequence[Sequence[pa.Table]],
    dies: int | None = None,
    *,
    after: bool = False,
) -> bool:
    """Stage and publish a batch; return whether it lived."""
    steps = iter(range(dies, -1_000_000, -1)) if dies is not None else itertools.repeat(1)

    async def work(connection: ClickHouseConnection) -> None:
        dying = DyingConnection(connection.client, connection.timeout, steps, after)
        staged = [await table.stage(dying, job, batch, blocks) for blocks in tasks]
        await table.publish(dying, job, batch, staged)

    try:
        await table.using(work)
    except SinkError as error:
        if not isinstance(error.__cause__, Dead):
            raise
        return False
    return True


async def prepare(table: StagedTable, like: pa.Table | None = None) -> None:
    schema = (rows(1) if like is None else like).schema
    await table.using(lambda connection: table.prepare(connection, schema))


async def test_a_batch_is_published_once_wherever_a_driver_dies_and_however_its_rows_are_divided(
    table: StagedTable,
) -> None:
    """A view sums what it sees: a block that was written twice would show there, too."""
    await prepare(table)
    run(
        table,
        "CREATE TABLE <t>_sums (k Int64, s Int64) ENGINE = SummingMergeTree ORDER BY k "
        "SETTINGS non_replicated_deduplication_window = 10000",
        "CREATE MATERIALIZED VIEW <t>_view TO <t>_sums AS SELECT 0 AS k, n AS s FROM <t>",
    )
    deaths = 0
    expected: list[int] = []
    for batch in itertools.count():
        numbers = [10 * batch + each for each in range(6)]
        dies, after = divmod(batch, 2)
        first = [[rows(*numbers[:2]), rows(*numbers[2:])]]
        lived = await write(table, "job", batch, first, dies, after=bool(after))
        deaths += not lived
        again = [[rows(*numbers[4:])], [], [rows(*numbers[:4])]]
        assert await write(table, "job", batch, again)
        expected += numbers
        if lived:
            break
    assert deaths > 10
    assert [n for (n,) in query(table, "SELECT n FROM <t> ORDER BY n")] == expected
    assert query(table, "SELECT sum(s) FROM <t>_sums") == [(sum(expected),)]
    left = "SELECT count() FROM system.tables WHERE name LIKE '<t>\\_kmr\\_staging%'"
    assert query(table, left) == [(0,)]


async def test_a_published_batch_is_found_and_another_job_or_batch_is_not(
    table: StagedTable,
) -> None:
    await prepare(table)
    for job, batch in (("a", 0), ("a", 0), ("b", 0), ("a", 1), ("a", 1)):
        assert await write(table, job, batch, [[rows(1)]])
    assert query(table, "SELECT count() FROM <t>") == [(3,)]
    assert await write(table, "empty", 0, [[], [rows()]])
    assert query(table, "SELECT count() FROM <t>") == [(3,)]


async def test_the_columns_are_checked_before_the_first_row(table: StagedTable) -> None:
    with pytest.raises(StrategyError, match=r"There is no table default\.staged_.*set create=true"):
        await prepare(replace(table, create=False))
    await prepare(table)
    more = rows(1).append_column("extra", pa.array([1]))
    with pytest.raises(
        StrategyError, match="has no column extra to write to; its columns are n, n"
    ):
        await prepare(table, more)
    await prepare(replace(table, extra="ignore"), more)
    run(table, "ALTER TABLE <t> ADD COLUMN needed Int64", "ALTER TABLE <t> DROP COLUMN name")
    with pytest.raises(StrategyError, match="they lack needed, which has no DEFAULT"):
        await prepare(table, rows(1).select(["n"]))
    lists = pa.table({"n": pa.array([[1]]), "needed": pa.array([1])})
    with pytest.raises(StrategyError, match=r"do not fit default\.staged_"):
        await prepare(table, lists)
    run(table, "CREATE TABLE <t>_log (n Int64) ENGINE = Log")
    with pytest.raises(StrategyError, match=r"the engine Log of .* does not deduplicate"):
        await prepare(replace(table, name=f"{table.name}_log"), rows(1).select(["n"]))
    run(table, "CREATE TABLE <t>_none (n Int64) ENGINE = MergeTree ORDER BY n")
    with pytest.raises(
        StrategyError, match="does not recognise a repeated INSERT; run ALTER TABLE"
    ):
        await prepare(replace(table, name=f"{table.name}_none"), rows(1).select(["n"]))


async def test_a_value_that_does_not_fit_publishes_nothing_and_a_null_gets_the_default(
    table: StagedTable,
) -> None:
    run(
        table,
        "CREATE TABLE <t> (n UInt8, name String DEFAULT 'unnamed', tags Array(String)) "
        "ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 100",
    )
    given = pa.table(
        {"n": [1, 2], "name": [None, "b"], "tags": pa.array([["x"], []], pa.list_(pa.string()))}
    )
    await prepare(table, given)
    assert await write(table, "job", 0, [[given]])
    assert query(table, "SELECT * FROM <t> ORDER BY n") == [(1, "unnamed", ["x"]), (2, "b", [])]
    large = given.set_column(0, "n", pa.array([3, 300]))
    with pytest.raises(SinkError, match=r"1 of 2 rows do not fit: .*cannot hold 300"):
        await write(table, "job", 1, [[given], [large]])
    assert query(table, "SELECT count() FROM <t>") == [(2,)]
    assert await write(table, "job", 1, [[given]])
    left = "SELECT count() FROM system.tables WHERE name LIKE '<t>\\_kmr\\_staging%'"
    assert query(table, left) == [(0,)]


async def test_a_plan_whose_staging_table_is_gone_says_so(table: StagedTable) -> None:
    await prepare(table)

    async def work(connection: ClickHouseConnection) -> None:
        staged = await table.stage(connection, "job", 0, [rows(1)])
        await table.drop(connection, [staged])
        await table.publish(connection, "job", 0, [StagedRows(*staged)])

    with pytest.raises(
        SinkError, match="of batch 0 of job job is gone, and the batch is not published"
    ):
        await table.using(work)
