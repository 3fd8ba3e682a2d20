"""Workers as processes that are killed: each window's rows are in ClickHouse once."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import clickhouse_connect
import pytest
from aiokafka import AIOKafkaProducer

if TYPE_CHECKING:
    from anyio.abc import Process

    from kmr.broker import Broker
    from kmr.testing import StartBroker
    from tests.framework.conftest import CreateTopic

STRATEGY = """
import os
from dataclasses import dataclass
from datetime import datetime
from kmr import Json, Strategy, Window
from kmr.sinks import ClickHouseWriter

@dataclass
class Hit:
    ts: datetime
    path: str
    n: int

strategy = Strategy(
    value=Json(Hit),
    reduce=[
        Window("10s", time="ts", by=["path"], columns={"hits": ("*", "count"), "total": ("n", "sum")},
               lateness="5s", late="drop", idle="8s"),
        ClickHouseWriter(os.environ["TABLE"], url=os.environ["URL"], create=True, order_by=["window_start"],
                         max_age=0.1),
    ],
)
"""
PARTITIONS, SECONDS, PER_SECOND = 2, 300, 20


def hits(partition: int) -> list[dict[str, object]]:
    chance = random.Random(partition)
    made = []
    for number in range(SECONDS * PER_SECOND):
        second = number / PER_SECOND + chance.uniform(0, 4)
        ts = f"2026-01-01T00:{int(second) // 60:02d}:{second % 60:09.6f}Z"
        made.append({"ts": ts, "path": f"/{chance.randrange(5)}", "n": number})
    return made


def expected() -> Counter[tuple[int, int, str, int, int]]:
    """All windows: an idle partition closes the last ones."""
    hits_of: Counter[tuple[int, int, str]] = Counter()
    totals: Counter[tuple[int, int, str]] = Counter()
    for partition in range(PARTITIONS):
        for hit in hits(partition):
            text = str(hit["ts"])
            second = int(text[14:16]) * 60 + int(text[17:19])
            key = (partition, second // 10 * 10, str(hit["path"]))
            hits_of[key] += 1
            totals[key] += int(str(hit["n"]))
    return Counter((*key, count, totals[key]) for key, count in hits_of.items())


async def fill(broker: Broker) -> None:
    """Produce all hits, a second of event time at once; both partitions side by side."""
    parts = [hits(partition) for partition in range(PARTITIONS)]
    async with AsyncExitStack() as stack:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.start()
        stack.push_async_callback(producer.stop)
        for at in range(0, SECONDS * PER_SECOND, PER_SECOND):
            for partition, part in enumerate(parts):
                batch = producer.create_batch()
                for hit in part[at : at + PER_SECOND]:
                    batch.append(value=json.dumps(hit).encode(), key=None, timestamp=None)
                await producer.send_batch(batch, "w", partition=partition)
            await anyio.sleep(0.06)
        await producer.flush()


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker(group_min_session_timeout=0.5)


@pytest.mark.slow
async def test_windows_are_exactly_once_through_kills_and_rebalances(
    broker: Broker, create_topic: CreateTopic, clickhouse_url: str, tmp_path: Path
) -> None:
    (tmp_path / "windows.py").write_text(STRATEGY)
    environment = os.environ | {"TABLE": "windows_killed", "URL": clickhouse_url}
    await create_topic("w", PARTITIONS)
    wanted, chance = expected(), random.Random(7)
    running: list[Process] = []

    async def start() -> None:
        flags = (
            "--session-timeout",
            "2",
            "--heartbeat-interval",
            "0.2",
            "--commit-interval",
            "0.2",
        )
        command = [str(Path(sys.executable).with_name("kmr")), "run", "windows:strategy"]
        command += ["--topic", "w", "--group", "windows"]
        command += ["--bootstrap-servers", broker.bootstrap_servers]
        running.append(
            await anyio.open_process(
                [*command, *flags],
                cwd=tmp_path,
                env=environment,
                stdin=None,
                stdout=None,
                stderr=None,
            )
        )

    def found() -> Counter[tuple[int, int, str, int, int]]:
        with clickhouse_connect.get_client(
            dsn=clickhouse_url, autogenerate_session_id=False
        ) as client:
            if not client.command("EXISTS TABLE windows_killed"):
                return Counter()
            rows = client.query(
                "SELECT partition, toUnixTimestamp(window_start) - 1767225600, "
                "path, hits, total FROM windows_killed"
            ).result_rows
            return Counter((p, s, path, n, total) for p, s, path, n, total in rows)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill, broker)
            for _ in range(2):
                await start()
            for _ in range(3):
                before = await anyio.to_thread.run_sync(found)
                with anyio.move_on_after(120):
                    while await anyio.to_thread.run_sync(found) == before:  # noqa: ASYNC110
                        await anyio.sleep(0.2)
                await anyio.sleep(chance.uniform(0, 2))
                victim = running.pop(chance.randrange(len(running)))
                victim.kill()
                await victim.aclose()
                await start()
        with anyio.move_on_after(180):
            while await anyio.to_thread.run_sync(found) != wanted:  # noqa: ASYNC110  of another process
                await anyio.sleep(0.5)
        assert found() == wanted
        await anyio.sleep(2)
        assert found() == wanted, "and no row comes twice, later"
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
            await process.aclose()
