"""Whatever the history of a table, its replays and kills: the table in the sink is that of the source."""

from __future__ import annotations

import copy
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kmr.reducers.reducer import Context, Retry
from kmr.sinks import ClickHouseWriter, PostgresWriter
from tests.examples import examples
from tests.framework.flushes import outcome

from .histories import OPERATIONS, History, announced, rows_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.record import Rows
    from kmr.sinks import RangeWriter

SCHEMA = rows_of([], 0).table.schema
EXAMPLES = settings(
    max_examples=examples(24),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
HISTORIES = st.lists(
    OPERATIONS, min_size=25, max_size=50
)  # Hypothesis likes short ones, which show little
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


async def _write(writer: RangeWriter, rows: Rows, *, repeated: bool) -> None:
    writer.reset()
    if len(rows):
        writer.add(rows)
    result = await outcome(writer, announced(rows, repeated=repeated))
    assert not isinstance(result, Retry)
    assert not result.refusals


async def _deliver(
    open_writer: Any, history: History, cuts: list[int], kills: set[int], late: set[int]
) -> None:
    """Deliver a topic in ranges. After some the worker is killed, and a new one writes the range again.

    Args:
        kills: of ranges, by the number of those written: the next process repeats them.
        late: of ranges: a worker that was suspended writes the one before once more.
    """
    writer = await open_writer()
    positions = [0] * history.partitions
    written = 0
    last: Rows | None = None
    while any(at < len(topic) for at, topic in zip(positions, history.topic, strict=True)):
        for partition, topic in enumerate(history.topic):
            at, size = positions[partition], cuts[written % len(cuts)]
            values = topic[at : at + size]
            if not values:
                continue
            rows = rows_of(values, at, partition)
            await _write(writer, rows, repeated=False)
            written += 1
            if written in kills:
                writer = await open_writer()
                await _write(writer, rows, repeated=True)
            if written in late and last is not None and last.ranges[0].partition == partition:
                suspended = await open_writer()
                await _write(suspended, last, repeated=True)
            last = rows
            positions[partition] += len(values)


async def _follow(
    made: ClickHouseWriter | PostgresWriter,
    context: Context,
    history: History,
    cuts: list[int],
    kills: set[int],
    late: set[int],
) -> None:
    """Deliver a topic to the table of a writer."""
    async with AsyncExitStack() as stack:

        async def open_writer() -> RangeWriter:
            writer = copy.deepcopy(made)
            await writer.open(context)
            stack.push_async_callback(writer.close)
            return writer

        await _deliver(open_writer, history, cuts, kills, late)


def _examples(test: Any) -> Any:
    """Run a test with histories, and with ranges of which some are repeated."""
    return EXAMPLES(
        given(
            operations=HISTORIES,
            partitions=st.integers(1, 3),
            cuts=CUTS,
            kills=st.sets(st.integers(1, 12), min_size=2),
            late=st.sets(st.integers(1, 12), min_size=2),
        )(test)
    )


@_examples
async def test_a_clickhouse_table_equals_the_source(
    clickhouse_url: str,
    client: Client,
    context: Context,
    operations: list[Any],
    partitions: int,
    cuts: list[int],
    kills: set[int],
    late: set[int],
) -> None:
    history = History.of(operations, partitions)
    client.command("DROP TABLE IF EXISTS customers_end")
    writer = ClickHouseWriter(
        "customers_end", key=["id"], changes=True, create=SCHEMA, url=clickhouse_url
    )
    await _follow(writer, context, history, cuts, kills, late)
    select = "SELECT id, name FROM customers_end FINAL ORDER BY id"
    expected = sorted(history.table.items())
    assert [tuple(row) for row in client.query(select).result_rows] == expected
    client.command("OPTIMIZE TABLE customers_end FINAL")
    assert [tuple(row) for row in client.query(select).result_rows] == expected


@_examples
async def test_a_postgres_table_equals_the_source(
    postgres_url: str,
    context: Context,
    operations: list[Any],
    partitions: int,
    cuts: list[int],
    kills: set[int],
    late: set[int],
) -> None:
    history = History.of(operations, partitions)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS customers, kmr_ranges")
    writer = PostgresWriter("customers", key=["id"], changes=True, create=SCHEMA, url=postgres_url)
    await _follow(writer, context, history, cuts, kills, late)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT id, name FROM customers ORDER BY id").fetchall()
    assert found == sorted(history.table.items())
