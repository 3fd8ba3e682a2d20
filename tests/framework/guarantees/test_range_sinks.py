"""Exactly once into Parquet files and PostgreSQL: a worker dies around a write, and another one goes on.

Also under the Spark engine: a task that is repeated, at its first attempt or as another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr import Strategy, map_record
from kmr.record import Range, Record, TopicPartition
from kmr.reducers.reducer import Context
from kmr.sinks import ParquetWriter, PostgresWriter
from kmr.spark.engine.strategy_source import TaskPlan
from kmr.spark.engine.task import run_task
from kmr.testing import Journal, MemoryWriter, batch_of
from kmr.worker import Worker
from tests.framework.spark.engine.made_tasks import SCHEMA
from tests.framework.workers import until_settled

from .dying import (
    Dying,
    DyingParquetWriter,
    DyingPostgresWriter,
    DyingTogetherPostgresWriter,
    run_until_all_died,
    run_until_settled,
)
from .working import quick_settings

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.sinks import RangeWriter
    from tests.framework.conftest import CreateTopic, Produce

    from .dying import Moment

COLUMNS = pa.schema({"offset": pa.int64()})


@map_record(schema=COLUMNS)
def locate(record: Record) -> dict[str, int]:
    if record.value == b"poison":
        raise ValueError("poisoned")
    return {"offset": record.offset}


class Place:
    """Where a sink writes to, and what is there."""

    def __init__(self, kind: str, directory: Path, url: str) -> None:
        self.kind, self.directory, self.url = kind, directory, url

    def writer(self, *, dying: bool = False) -> RangeWriter:
        limits: dict[str, Any] = {"max_rows": 10, "max_age": 0.05}
        if self.kind == "parquet":
            return (DyingParquetWriter if dying else ParquetWriter)(self.directory, **limits)
        made = DyingPostgresWriter if dying else PostgresWriter
        return made("hits", url=self.url, create=True, **limits)

    def offsets(self) -> list[Any]:
        if self.kind == "parquet":
            files = self.directory.glob("[!_]*.parquet")
            return sorted(o for f in files for o in pq.ParquetFile(f).read()["offset"].to_pylist())
        with psycopg.connect(self.url) as connection:
            return [row[0] for row in connection.execute('SELECT "offset" FROM hits ORDER BY 1')]


@pytest.fixture(params=["parquet", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if postgres else ""
    return Place(request.param, tmp_path / "hits", url)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_worker_that_dies_around_a_write_loses_and_doubles_nothing(
    broker: Broker, produce: Produce, place: Place, moment: Moment
) -> None:
    await produce("t", [b"poison" if n == 13 else b"row" for n in range(35)])
    errors = Journal()
    Dying.plan = [(1, moment)]
    doomed = Strategy(locate, [place.writer(dying=True)], MemoryWriter(errors))
    with anyio.fail_after(60):
        settings = quick_settings(broker)
        await run_until_all_died(doomed, settings)
        heir = Worker(Strategy(locate, [place.writer()], MemoryWriter(errors)), settings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heir.run)
            await heir.ready()
            await until_settled(heir, TopicPartition("t", 0), 35)
            heir.shutdown("done")
    assert place.offsets() == [n for n in range(35) if n != 13]
    assert {row["offset"] for row in errors.rows()} == {13}


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_worker_that_dies_around_a_transaction_of_many_partitions_loses_and_doubles_nothing(
    broker: Broker, produce: Produce, create_topic: CreateTopic, postgres_url: str, moment: Moment
) -> None:
    partitions, errors = 8, Journal()
    await create_topic("t", partitions)
    for partition in range(partitions):
        await produce("t", [b"poison" if n == 3 else b"row" for n in range(5)], partition)
    settings = quick_settings(broker)

    def strategy(made: type[PostgresWriter]) -> Strategy:
        limits: dict[str, Any] = {"max_age": 0.05, "inserts_per_second": 1}
        return Strategy(
            locate, [made("hits", url=postgres_url, create=True, **limits)], MemoryWriter(errors)
        )

    Dying.plan = [(0, moment)]
    with anyio.fail_after(60):
        await run_until_all_died(strategy(DyingTogetherPostgresWriter), settings)
        ends = {TopicPartition("t", partition): 5 for partition in range(partitions)}
        await run_until_settled(strategy(PostgresWriter), settings, ends)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(
            'SELECT "partition", "offset" FROM hits ORDER BY 1, 2'
        ).fetchall()
    assert found == [(partition, n) for partition in range(partitions) for n in (0, 1, 2, 4)]


def test_a_task_of_spark_that_is_repeated_doubles_nothing(place: Place) -> None:
    """Outside of Spark each attempt believes that it is the first: the write itself finds the range."""
    strategy = Strategy(locate, [place.writer()], MemoryWriter(Journal()))
    context = Context("g", "reduce-1").with_sinks(schema_of=lambda _: COLUMNS)
    for _ in range(2):
        for first in (10, 0):
            batch = batch_of("t", 0, first, [b"row"] * 10)
            plan = TaskPlan.of(strategy, context)
            wanted = Range("t", 0, first, batch.last)
            list(run_task(plan, wanted, iter([batch]), SCHEMA))
    assert place.offsets() == list(range(20))
