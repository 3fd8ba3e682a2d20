"""Dead letters come back: replayed by processes that are killed, each into the table exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import pytest

from kmr.broker.client import BatchProducer
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.reading import read_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr.testing import StartBroker

STRATEGY = """
import os, time
from kmr import Strategy, map_record
from kmr.sinks import ClickHouseWriter, DeadLetterWriter

URL, FIXED = os.environ["URL"], os.environ.get("FIXED")

@map_record
def number(record):
    n = int(record.value)
    if not FIXED or n % 100 == 0:
        raise ValueError("no service" if n % 100 else "a round number")
    return {"partition": record.partition, "offset": record.offset, "n": n}

strategy = Strategy(
    number,
    [ClickHouseWriter("replayed", url=URL, max_rows=500)],
    DeadLetterWriter("dead", max_rows=1000),
)
"""
RECORDS = 10_000


class Commands:
    """Runs `kmr` with the strategy `flow` in a directory."""

    def __init__(self, directory: Path, bootstrap_servers: str, url: str) -> None:
        (directory / "flow.py").write_text(STRATEGY)
        self._directory = directory
        self.environment = {
            **os.environ,
            "URL": url,
            "KMR_BOOTSTRAP_SERVERS": bootstrap_servers,
            "KMR_HEARTBEAT_INTERVAL": "0.1",
            "KMR_SESSION_TIMEOUT": "1",
            "KMR_COMMIT_INTERVAL": "0.1",
        }

    async def run(self, *arguments: str) -> str:
        """Run to the end; return what it printed."""
        done = await anyio.run_process(
            [*self._kmr, *arguments], cwd=self._directory, env=self.environment, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    async def run_until(self, condition: Callable[[], bool], *arguments: str) -> None:
        """Run until the condition holds, and kill it then; it must not end before."""
        process = await anyio.open_process(
            [*self._kmr, *arguments],
            cwd=self._directory,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        async with process:
            while not await anyio.to_thread.run_sync(condition):
                assert process.returncode is None
            process.kill()

    @property
    def _kmr(self) -> list[str]:
        return [str(Path(sys.executable).with_name("kmr"))]


@pytest.mark.slow
async def test_letters_whose_replay_is_killed_are_in_the_table_once_and_failures_are_new_letters(
    start_broker: StartBroker, clickhouse_url: str, tmp_path: Path
) -> None:
    broker = await start_broker(group_min_session_timeout=0.5)
    await broker.topics.create("in", 2)
    await broker.topics.create("dead", 2)
    async with BatchProducer(broker.bootstrap_servers, "in") as producer:
        for first in range(0, RECORDS, 1000):
            values = [b"%d" % number for number in range(first, first + 1000)]
            await producer.send(values, partition=first // 1000 % 2)
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        client.command(
            "CREATE TABLE replayed (partition UInt32, offset UInt64, n Int64) "
            "ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 10000"
        )

        def counted() -> tuple[Any, ...]:
            query = "SELECT count(), uniqExact(n), uniqExact(partition, offset) FROM replayed"
            return tuple(client.query(query).result_rows[0])

        kmr = Commands(tmp_path, broker.bootstrap_servers, clickhouse_url)
        await kmr.run("run", "flow", "--topic", "in", "--group", "g", "--until-caught-up")
        assert counted()[0] == 0
        kmr.environment["FIXED"] = "1"
        replay = ("dlq", "replay", "dead", "--strategy", "flow")
        await kmr.run_until(lambda: counted()[0] >= RECORDS // 3, *replay)
        good = RECORDS - RECORDS // 100
        assert "; 100 open" in await kmr.run(*replay, "--resume")
        assert counted() == (good, good, good)
        await broker.topics.create("again")
        assert "; 0 open" in await kmr.run("dlq", "replay", "dead", "--to-topic", "again")
    config = ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)
    sent = [
        value async for b in read_topic(config, "again") for value in b.records["value"].to_pylist()
    ]
    assert sorted(int(value or b"") for value in sent) == list(range(0, RECORDS, 100))
