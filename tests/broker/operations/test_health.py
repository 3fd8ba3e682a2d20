"""When a broker is live and when it is ready, over HTTP."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from kmr.broker import Broker, BrokerSettings
from kmr.broker.log.partition import PartitionLog
from kmr.broker.operations.health import BrokerState, Health
from kmr.broker.supervision import STALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
async def served(start: Any) -> Broker:
    """A broker with HTTP endpoints."""
    broker: Broker = await start(http_port=0)
    return broker


async def get(broker: Broker, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, text and content type."""
    async with (
        aiohttp.ClientSession(broker.http_url) as session,
        session.get(path, headers=headers) as answer,
    ):
        return answer.status, await answer.text(), answer.headers["Content-Type"]


async def test_a_broker_that_runs_lives_and_is_ready(served: Broker) -> None:
    assert (await get(served, "/live"))[:2] == (200, "ok\n")
    assert (await get(served, "/ready"))[:2] == (200, "ok\n")


async def test_a_broker_that_checks_its_logs_lives_and_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    may_go_on = threading.Event()
    open_log = PartitionLog.open

    def slow(*arguments: Any, **options: Any) -> PartitionLog:
        may_go_on.wait(60)
        return open_log(*arguments, **options)

    monkeypatch.setattr(PartitionLog, "open", slow)
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", port=0, http_port=0))
    started, asked = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with broker:
            started.set()
            await asked.wait()

    running = asyncio.create_task(run())
    try:
        await until(lambda: broker.http_url is not None)
        status, text, _ = await get(broker, "/ready")
        assert (status, "starting" in text) == (503, True)
        assert (await get(broker, "/live"))[0] == 200
        assert (await get(broker, "/metrics"))[0] == 200
        may_go_on.set()
        await started.wait()
        assert (await get(broker, "/ready"))[0] == 200
    finally:
        may_go_on.set()
        asked.set()
        await running


async def test_a_log_that_failed_makes_it_not_ready(
    served: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await served.topics.create("t", 2)

    def fail(_: int) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for partition in topic.partitions:
            with pytest.raises(Exception, match="the disk is gone"):
                partition.log.fsync()
    status, text, _ = await get(served, "/ready")
    assert status == 503
    assert "failed to sync: the disk is gone; restart" in text
    assert text.strip().endswith(", and 1 more logs")
    assert (await get(served, "/live"))[0] == 200, "a restart by itself would not help"
    assert "kmr_broker_logs_failed 2.0" in (await get(served, "/metrics"))[1]


class Disk:
    """What statvfs says."""

    def __init__(self, free: int) -> None:
        self.f_bavail = free
        self.f_frsize = 4096


async def test_a_full_disk_makes_it_not_ready(
    served: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: Disk(0))
    status, text, _ = await get(served, "/ready")
    assert (status, text) == (503, f"the disk of {served.settings.data_dir} is full\n")


async def test_a_directory_that_cannot_be_written_to_makes_it_not_ready(
    served: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    status, text, _ = await get(served, "/ready")
    assert (status, "cannot be written to" in text) == (503, True)


async def test_a_directory_that_is_gone_makes_it_not_ready(tmp_path: Path) -> None:
    health = Health(tmp_path / "gone")
    health.state = BrokerState.RUNNING
    assert "cannot be used: No such file" in await health.ready()


async def test_a_disk_that_does_not_answer_makes_it_not_ready(
    served: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()

    def hang(_: object) -> Disk:
        may_go_on.wait(60)
        return Disk(1)

    monkeypatch.setattr("kmr.broker.operations.health._DISK_PATIENCE", 0.01)
    monkeypatch.setattr(os, "statvfs", hang)
    status, text, _ = await get(served, "/ready")
    may_go_on.set()
    assert (status, "does not answer" in text) == (503, True)


async def test_maintenance_that_stands_still_makes_it_not_live(
    served: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.health.supervisor.expect("an expectation", -STALL_SECONDS - 1)
    status, text, _ = await get(served, "/live")
    assert (status, text) == (503, "an expectation has not moved for 31 seconds\n")
    assert (await get(served, "/ready"))[:2] == (status, text)


async def test_every_task_of_maintenance_moves(start: Any, until: Until) -> None:
    soon = 0.001
    broker: Broker = await start(
        fsync_interval=soon, retention_check_interval=soon, compaction_check_interval=soon
    )
    schedules = broker.health.supervisor._schedules
    await until(lambda: len(schedules) == 7)
    before = {work: each.due for work, each in schedules.items() if each.every < 600}
    assert len(before) == 6
    await until(lambda: all(schedules[work].due > before[work] for work in before))


async def test_what_fails_in_the_background_is_said_and_does_not_end_the_broker(
    served: Broker,
) -> None:
    supervisor = served.health.supervisor
    with supervisor.attempt("compaction", "a log could not be compacted", topic="t", partition=3):
        raise OverflowError("date value out of range")
    assert (await get(served, "/live"))[:2] == (
        200,
        "ok; compaction (topic t, partition 3) fails: date value out of range\n",
    )
    assert (await get(served, "/ready"))[0] == 200
    labels = 'subject="topic t, partition 3",work="compaction"'
    assert f"kmr_broker_work_failures{{{labels}}} 1.0" in (await get(served, "/metrics"))[1]


@asynccontextmanager
async def hanging_sync(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Nothing gets to the disk."""
    may_go_on = threading.Event()
    sync = os.fsync

    def hang(file: int) -> None:
        may_go_on.wait(60)
        sync(file)

    monkeypatch.setattr(os, "fsync", hang)
    try:
        yield
    finally:
        may_go_on.set()


async def test_a_sync_that_hangs_makes_it_not_live(
    start: Any,
    connect: Any,
    batch: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    until: Until,
) -> None:
    broker: Broker = await start(http_port=0, fsync="always")
    await broker.topics.create("t", 1)
    client = await connect(broker)
    data = [{"index": 0, "records": batch(b"a")}]
    produce = client.message(0, 9, acks=1, topic_data=[{"name": "t", "partition_data": data}])
    monkeypatch.setattr("kmr.broker.operations.health.STALL_SECONDS", 0.0)
    async with hanging_sync(monkeypatch):
        asked = await client.send(produce)
        metrics = broker.metrics.registry
        in_flight = {"api": "Produce"}
        await until(
            lambda: metrics.get_sample_value("kmr_broker_requests_in_flight", in_flight) == 1
        )
        status, text, _ = await get(broker, "/live")
        assert (status, text.startswith("the disk has been syncing for")) == (503, True)
    await client.receive(produce, asked)
    assert (await get(broker, "/live"))[0] == 200
