"""Staged rows with topic, partition and offset: each record once, whichever query or job brings it again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.sinks.clickhouse.ddl import TableLayout
from kmr.sinks.clickhouse.staging import StagedTable

from .test_staging import prepare, query, run, write

_names = (f"ranges_{number}" for number in itertools.count())


@pytest.fixture
def table(clickhouse_url: str) -> StagedTable:
    layout = TableLayout(order_by=("topic", "partition", "offset"))
    return StagedTable(
        next(_names),
        clickhouse_url,
        None,
        layout=layout,
        create=True,
        extra="error",
        range_offsets=4,
    )


def rows(*offsets: int, partition: int = 0, each: int = 1) -> pa.Table:
    """Rows of records; some in the order in which a task may get them."""
    repeated = [offset for offset in offsets for _ in range(each)]
    return pa.table(
        {
            "topic": pa.array(["t"] * len(repeated)),
            "partition": pa.array([partition] * len(repeated), pa.int32()),
            "offset": pa.array(repeated, pa.int64()),
        }
    )


def found(table: StagedTable) -> list[tuple[int, int, int]]:
    sql = "SELECT partition, offset, count() FROM <t> GROUP BY ALL ORDER BY ALL"
    return [(int(a), int(b), int(c)) for a, b, c in query(table, sql)]


async def test_a_record_is_written_once_whichever_job_brings_it_and_in_whichever_tasks(
    table: StagedTable,
) -> None:
    """A view counts what it sees: a row that was written twice would show there, too."""
    await prepare(table, rows(0))
    run(
        table,
        "CREATE TABLE <t>_counts (k Int64, n Int64) ENGINE = SummingMergeTree ORDER BY k "
        "SETTINGS non_replicated_deduplication_window = 10000",
        "CREATE MATERIALIZED VIEW <t>_view TO <t>_counts AS SELECT 0 AS k, 1 AS n FROM <t>",
    )
    second = rows(0, 1, partition=1)
    assert await write(table, "a", 0, [[rows(5, 0, 3, 1)], [rows(4, 2), second]])
    assert await write(table, "b", 0, [[rows(*range(6))], [], [second]])
    assert await write(table, "a", 1, [[rows(9, 4, 8)], [rows(7, 6, 5)]])
    expected = [(0, offset, 1) for offset in range(10)] + [(1, 0, 1), (1, 1, 1)]
    assert found(table) == expected
    assert query(table, "SELECT sum(n) FROM <t>_counts") == [(12,)]
    left = "SELECT count() FROM system.tables WHERE name LIKE '<t>\\_kmr\\_staging%'"
    assert query(table, left) == [(0,)]


async def test_all_rows_of_a_record_are_in_one_range(table: StagedTable) -> None:
    await prepare(table, rows(0))
    assert await write(table, "a", 0, [[rows(*range(9), each=3)]])
    assert found(table) == [(0, offset, 3) for offset in range(9)]


async def test_a_range_whose_rows_are_gone_is_written_again_though_the_server_knows_its_token(
    table: StagedTable,
) -> None:
    await prepare(table, rows(0))
    for job in ("a", "b", "c"):
        run(table, "TRUNCATE TABLE <t>")
        assert await write(table, job, 0, [[rows(*range(6))]])
        assert found(table) == [(0, offset, 1) for offset in range(6)]


async def test_a_driver_that_dies_anywhere_loses_and_doubles_nothing(table: StagedTable) -> None:
    await prepare(table, rows(0))
    expected = []
    for batch in itertools.count():
        offsets = range(10 * batch, 10 * batch + 10)
        dies, after = divmod(batch, 2)
        lived = await write(table, "a", batch, [[rows(*offsets)]], dies, after=bool(after))
        again = [[rows(*reversed(offsets[5:]))], [rows(*offsets[:5])]]
        assert await write(table, "another", batch, again)
        assert await write(table, "a", batch, again)
        expected += [(0, offset, 1) for offset in offsets]
        if lived:
            break
    assert found(table) == expected


async def test_rows_without_coordinates_are_refused(table: StagedTable) -> None:
    bare = rows(0).select(["topic", "offset"])
    with pytest.raises(
        StrategyError, match="by_offsets=true needs topic, partition, offset: the rows"
    ):
        await prepare(table, bare)
    plain = replace(table, range_offsets=None, layout=TableLayout(order_by=("topic",)))
    await prepare(plain, bare)
    with pytest.raises(StrategyError, match=r"needs .*: default\.ranges_\d+ lack partition"):
        await prepare(table, rows(0))
    run(table, "DROP TABLE <t>")
    await prepare(table, rows(0))
    unknown = rows(0).set_column(2, "offset", pa.array([None], pa.int64()))
    with pytest.raises(SinkError, match="a row has no topic, partition, offset"):
        await write(table, "a", 0, [[unknown]])
