"""Tables that follow a source through workers that are killed around their writes, one after the other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import clickhouse_connect
import psycopg
import pytest

from kmr import Debezium, Json, Strategy
from kmr.record import TopicPartition
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter, PostgresWriter
from kmr.worker import Worker
from tests.framework.sinks.histories import Customer, History
from tests.framework.workers import until_settled

if TYPE_CHECKING:
    from kmr.broker import Broker
    from kmr.sinks import RangeRows
    from tests.framework.conftest import CreateTopic, Produce

BEFORE, AFTER = "before", "after"


class Dying:
    """Stops for ever around a write; the test kills the worker then."""

    plan: ClassVar[list[tuple[int, str]]] = []  # the writes until the next death, and its moment
    here = anyio.Event()

    @classmethod
    async def around(cls, write: Any, rows: RangeRows) -> Any:
        moment = ""
        if cls.plan:
            left, moment = cls.plan[0]
            cls.plan[0] = (left - 1, moment)
            moment = moment if left == 0 else ""
        if moment == BEFORE:
            await cls.hang()
        result = await write(rows)
        if moment == AFTER:
            await cls.hang()
        return result

    @classmethod
    async def hang(cls) -> None:
        cls.here.set()
        await anyio.sleep_forever()


class DyingPostgresWriter(PostgresWriter):
    async def write(self, rows: RangeRows) -> Any:
        return await Dying.around(super().write, rows)


class DyingClickHouseWriter(ClickHouseWriter):
    async def write(self, rows: RangeRows) -> Any:
        return await Dying.around(super().write, rows)


def _history(partitions: int) -> History:
    chance, history = random.Random(7), History(partitions)
    for _ in range(600):
        key, kind = chance.randrange(12), chance.random()
        if kind < 0.6:
            history.apply(("put", key, f"name {chance.randrange(100)}"))
        elif kind < 0.8:
            history.apply(("delete", key, ""))
        elif kind < 0.99:
            history.apply(("move", key, chance.randrange(12)))
        else:
            history.apply(("truncate", 0, ""))
    return history


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("sink", ["clickhouse", "postgres"])
async def test_a_table_equals_the_source_after_workers_that_died(
    broker: Broker,
    create_topic: CreateTopic,
    produce: Produce,
    request: pytest.FixtureRequest,
    sink: str,
    partitions: int,
) -> None:
    url = request.getfixturevalue(f"{sink}_url")
    made: Any = DyingPostgresWriter if sink == "postgres" else DyingClickHouseWriter
    table = f"followed_{partitions}"
    history = _history(partitions)
    await create_topic("t", partitions)
    for partition, values in enumerate(history.topic):
        await produce("t", values, partition)
    writer = made(table, url=url, key=["id"], changes=True, create=True, max_rows=20, max_age=0.05)
    strategy = Strategy(value=Debezium(Json(Customer), truncates="apply"), reduce=writer)
    settings = Settings(
        topics=("t",),
        group="g",
        bootstrap_servers=broker.bootstrap_servers,
        heartbeat_interval=0.1,
        commit_interval=0.05,
        session_timeout=6.0,
    )
    Dying.plan = [(2, AFTER), (0, BEFORE), (3, AFTER), (1, AFTER)]
    with anyio.fail_after(90):
        while Dying.plan:
            Dying.here = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(Worker(strategy, settings).run)
                await Dying.here.wait()
                tasks.cancel_scope.cancel()
            Dying.plan.pop(0)
        heir = Worker(strategy, settings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heir.run)
            await heir.ready()
            for partition, values in enumerate(history.topic):
                await until_settled(heir, TopicPartition("t", partition), len(values))
            heir.shutdown("done")
    select = f"SELECT id, name FROM {table}{' FINAL' if sink == 'clickhouse' else ''} ORDER BY id"
    if sink == "postgres":
        with psycopg.connect(url) as connection:
            found = connection.execute(select.encode()).fetchall()
    else:
        with clickhouse_connect.get_client(dsn=url) as client:
            found = [tuple(row) for row in client.query(select).result_rows]
            client.command(f"DROP TABLE {table}")
    assert history.table
    assert found == sorted(history.table.items())
