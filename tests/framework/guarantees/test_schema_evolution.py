"""A topic whose schema grows, into a table that grows with it: no row is lost, each has its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import clickhouse_connect
import pyarrow as pa
from anyio.to_thread import run_sync

from kmr import Avro, Strategy
from kmr.broker.client import BatchProducer
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter
from kmr.worker import Worker

if TYPE_CHECKING:
    from kmr.broker import Broker

TABLE = "evolved_by_schema"


async def test_a_field_of_a_new_version_of_the_schema_is_a_column_after_a_restart(
    broker: Broker, registry_url: str, clickhouse_url: str
) -> None:
    registry = registry_url
    settings = Settings(
        topics=("hits",),
        group="g",
        bootstrap_servers=broker.bootstrap_servers,
        until_caught_up=True,
    )

    async def work(rows: pa.Table) -> None:
        """Produce rows, whose schema is registered, and run a new worker to their end."""
        values = await run_sync(Avro(registry=registry).encode, rows, "hits")
        async with BatchProducer(broker.bootstrap_servers, "hits") as producer:
            await producer.send(values.to_pylist())
        writer = ClickHouseWriter(
            TABLE, url=clickhouse_url, create=True, evolve="add", order_by=["path"]
        )
        hits = Avro(registry=registry, subject="hits-value")
        # In a thread, because it asks the registry, which runs on this event loop.
        strategy = await run_sync(lambda: Strategy(value=hits, reduce=[writer]))
        await Worker(strategy, settings).run()

    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        try:
            await work(pa.table({"path": ["/a"]}))
            await work(pa.table({"path": ["/b"], "ms": [1.5], "tags": [["x"]]}))
            found = client.query(f"SELECT path, ms, tags FROM {TABLE} ORDER BY path").result_rows
        finally:
            client.command(f"DROP TABLE IF EXISTS {TABLE}")
    assert [tuple(row) for row in found] == [("/a", None, []), ("/b", 1.5, ["x"])]
