"""The demo's strategy on a worker and on Spark: their tables have the same rows."""

from __future__ import annotations

from pathlib import Path

import anyio
import clickhouse_connect
import pytest

from demo.flights import load_flights
from demo.outcome import STRATEGY, Standing
from demo.processes import Children
from demo.producing import produce
from demo.services import TOPIC, Services, create_tables

DIFFERENCES = Path(__file__).with_name("differences.sql")
FLIGHTS = 20_000
TO_THE_END = {
    "default": ("--until-caught-up",),
    "spark": (
        *("--engine", "spark", "--master", "local[2]", "--checkpoint", "checkpoint"),
        *("--trigger", "available-now"),
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_jvms")
async def test_both_engines_write_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    async with Children(tmp_path / "logs") as children:
        services = Services(tmp_path, children)
        await services.start()
        await produce(services.broker, load_flights().slice(0, FLIGHTS), Standing(), None)
        with clickhouse_connect.get_client(dsn=services.clickhouse_url) as client:
            create_tables(services.clickhouse_url, "spark")
            async with anyio.create_task_group() as tasks:
                for database in TO_THE_END:
                    tasks.start_soon(run_engine, services, children, database)
            for database in TO_THE_END:
                assert client.command(f"SELECT count() FROM {database}.flights") == FLIGHTS
            differing = client.query(DIFFERENCES.read_text()).result_rows
    assert differing == []


async def run_engine(services: Services, children: Children, database: str) -> None:
    child = await children.start(
        database,
        *("run", STRATEGY, *TO_THE_END[database]),
        *("--topic", TOPIC, "--group", database),
        *("--bootstrap-servers", services.broker),
        KMR_CLICKHOUSE_URL=f"{services.clickhouse_url}/{database}",
    )
    await child.wait()
    child.check()
