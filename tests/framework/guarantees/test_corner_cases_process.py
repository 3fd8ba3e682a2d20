"""A worker that stands still for longer than its session: others take over, and it joins again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import clickhouse_connect
import pytest

from kmr.broker.client import BatchProducer
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import ConnectionConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import Process
    from clickhouse_connect.driver.client import Client

    from kmr.broker import Broker
    from kmr.testing import StartBroker

PARTITIONS, CHUNK, STOPS = 4, 500, 2
AFTER_ALL = 240  # seconds; for a machine that does much else

STRATEGY = """
from kmr import Strategy, map_batch
from kmr.sinks import ClickHouseWriter

@map_batch
def locate(batch):
    return batch.select(["partition", "offset", "kmr_offset"])

strategy = Strategy(locate, [ClickHouseWriter("stopped", max_rows=100, max_age=0.05)])
"""


class Crew:
    """Workers of one group that write to one table, and the records produced for them."""

    def __init__(
        self, broker: Broker, client: Client, directory: Path, clickhouse_url: str
    ) -> None:
        self._servers = broker.bootstrap_servers
        self._client = client
        self._directory = directory
        self._environment = {**os.environ, "KMR_CLICKHOUSE_URL": clickhouse_url}
        self.produced = 0
        self.workers: list[Process] = []

    async def start(self) -> Process:
        process = await anyio.open_process(
            [
                *(str(Path(sys.executable).with_name("kmr")), "run", "strategies:strategy"),
                *("--topic", "in", "--group", "g", "--session-timeout", "1"),
                *("--bootstrap-servers", self._servers),
                *("--heartbeat-interval", "0.1", "--commit-interval", "0.1"),
            ],
            cwd=self._directory,
            env=self._environment,
            stdin=None,
            stdout=None,
            stderr=None,
        )
        self.workers.append(process)
        return process

    async def feed(self) -> None:
        async with BatchProducer(self._servers, "in", linger=0.001) as producer:
            for partition in range(PARTITIONS):
                await producer.send([b"x"] * CHUNK, partition=partition)
                self.produced += CHUNK

    def written(self, what: str) -> int:
        return int(str(self._client.command(f"SELECT {what} FROM stopped")))

    async def until_written(self, records: int) -> None:
        while self.written("uniqExact(`partition`, `offset`)") < records:  # noqa: ASYNC110
            await anyio.sleep(0.02)

    async def until_members(self, count: int) -> None:
        config = ConnectionConfig(bootstrap_servers=self._servers)
        async with connect_admin(config) as admin:
            while True:  # there is no event to wait for
                group = await admin.group("g")
                if len(group.members) == count and group.state == "Stable":
                    return
                await anyio.sleep(0.1)

    async def drain(self) -> None:
        for process in self.workers:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0

    async def kill(self) -> None:
        for process in self.workers:
            if process.returncode is None:
                process.kill()
            await process.aclose()


@pytest.fixture
async def crew(
    start_broker: StartBroker, clickhouse_url: str, tmp_path: Path
) -> AsyncIterator[Crew]:
    broker = await start_broker(group_min_session_timeout=0.5)
    await broker.topics.create("in", partitions=PARTITIONS)
    (tmp_path / "strategies.py").write_text(STRATEGY)
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        client.command(
            "CREATE TABLE stopped (`partition` UInt32, `offset` UInt64) ENGINE = MergeTree "
            "ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 10000"
        )
        crew = Crew(broker, client, tmp_path, clickhouse_url)
        yield crew
        await crew.kill()
        client.command("DROP TABLE stopped")


@pytest.mark.slow
async def test_a_worker_stopped_past_its_session_joins_again_and_nothing_is_lost_or_doubled(
    crew: Crew,
) -> None:
    with anyio.fail_after(AFTER_ALL):
        stopped = await crew.start()
        await crew.start()
        await crew.until_members(2)
        for _ in range(STOPS):
            await crew.feed()
            await crew.until_written(crew.produced - 3 * CHUNK)
            stopped.send_signal(signal.SIGSTOP)  # most likely in the middle of something
            await crew.feed()
            await crew.until_members(1)
            await crew.until_written(crew.produced)
            stopped.send_signal(signal.SIGCONT)
            await crew.until_members(2)
        await crew.feed()
        await crew.until_written(crew.produced)
        await crew.drain()
    assert crew.written("count()") == crew.produced
