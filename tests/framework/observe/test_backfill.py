"""The progress of a backfill beside a live worker, and its pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from kmr.delivery.announcement import BackfillRange, Generation
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.consumer import CommitOffset
from kmr.observe import backfill
from kmr.observe.backfill import BackfillWatch, log_progress
from kmr.observe.metrics import Metrics
from kmr.observe.status import BackfillPartition, BackfillStatus
from kmr.record import TopicPartition

if TYPE_CHECKING:
    import pytest

    from kmr.broker import Broker
    from tests.framework.conftest import CreateTopic, Produce


async def test_the_commits_of_the_other_group_are_the_progress(
    broker: Broker,
    create_topic: CreateTopic,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill, "_INTERVAL", 0.05)
    await create_topic("t", 2)
    for partition in range(2):
        await produce("t", [b"x"] * 10, partition)

    async def commit(*offsets: int) -> None:
        async with connect_admin({"bootstrap_servers": broker.bootstrap_servers}) as admin:
            entries = {
                TopicPartition("t", p): CommitOffset(
                    offset, Generation(7, history=BackfillRange(2, until)).metadata
                )
                for p, (offset, until) in enumerate(zip(offsets, (10, 8), strict=True))
            }
            await admin.reset_offsets("g.backfill", entries)

    metrics = Metrics()
    config = ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)
    watch = BackfillWatch(config, "g", metrics.observe_backfill)
    await watch.run()  # there is none: it returns
    assert status(watch) is None
    await commit(2, 5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        with anyio.fail_after(60):
            while (begun := status(watch)) is None:  # noqa: ASYNC110  set by the watch
                await anyio.sleep(0.01)
        assert (begun.offsets, begun.done) == (14, 3)
        assert begun.partitions == (
            BackfillPartition("t", 0, 8, 0),
            BackfillPartition("t", 1, 6, 3),
        )
        text = generate_latest(metrics.registry).decode()
        assert 'kmr_backfill_left_records{partition="0",topic="t"} 8.0' in text
        assert 'kmr_backfill_left_records{partition="1",topic="t"} 3.0' in text
        await commit(10, 9)  # the watch ends, and this block with it
    ended = status(watch)
    assert ended is not None
    assert (ended.done, ended.seconds_left) == (14, 0.0)


def status(watch: BackfillWatch) -> BackfillStatus | None:
    return watch.status


async def test_a_broker_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill, "_INTERVAL", 0.05)
    config = ConnectionConfig(bootstrap_servers="127.0.0.1:1", request_timeout=0.2)
    watch = BackfillWatch(config, "g", backfill.log_progress)
    with anyio.move_on_after(1) as scope:
        await watch.run()
    assert scope.cancelled_caught
    assert watch.status is None


def test_a_line_of_the_log_names_the_partitions_with_the_most_left_and_none_that_is_done() -> None:
    parts = tuple(
        BackfillPartition("t", at, 100, (100, 50)[at] if at < 2 else 0) for at in range(20)
    )
    with capture_logs() as logs:
        log_progress(BackfillStatus("g.backfill", 2000, 150, 12.4, None, parts))
    (line,) = logs
    assert (line["done"], line["of"], line["records_per_second"]) == (150, 2000, 12)
    assert next(iter(line["records_left"].items())) == ("t-2", 100)
    assert len(line["records_left"]) == 16
    with capture_logs() as logs:
        log_progress(BackfillStatus("g.backfill", 100, 100, 0.0, 0.0, parts[:1]))
    assert logs[0]["records_left"] == {}
