import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker import Broker
from broker.log.errors import LogFailed
from broker.log.partition import PartitionLog
from broker.maintenance import retain
from broker.records import split_batches
from broker.topics.partition import Partition

Start = Callable[..., Awaitable[Broker]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
Batch = Callable[..., bytes]

LONG_AGO = 1_700_000_000_000
NOW = LONG_AGO + 1_000_000_000


def append(partition: Partition, data: bytes) -> None:
    batch = bytearray(data)
    partition.log.append(batch, split_batches(batch), now_ms=LONG_AGO)
    partition.log.flush_pending()


async def test_what_is_too_old_is_deleted_in_all_topics(
    broker: Broker, batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = await broker.topics.create("short", 2, {"retention.ms": "1000"})
    long = await broker.topics.create("long", 1, {"retention.ms": "-1"})
    for partition in (*short.partitions, *long.partitions):
        append(partition, batch(b"old", timestamp=LONG_AGO))
    await retain(broker.topics, now_ms=NOW)
    assert [each.log.log_start_offset for each in short.partitions] == [1, 1]
    assert long.partitions[0].log.log_start_offset == 0
    assert "old segments deleted" in capsys.readouterr().out


async def test_one_log_that_fails_does_not_keep_the_others_from_their_turn(
    broker: Broker,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = await broker.topics.create("t", 2, {"retention.ms": "1000"})
    for partition in topic.partitions:
        append(partition, batch(b"old", timestamp=LONG_AGO))

    def fail(_: int) -> None:
        raise LogFailed("the disk is gone")

    monkeypatch.setattr(topic.partitions[0].log, "apply_retention", fail)
    await retain(broker.topics, now_ms=NOW)
    assert topic.partitions[1].log.log_start_offset == 1
    assert "the disk is gone" in capsys.readouterr().out


async def test_records_are_synced_at_intervals(start: Start, batch: Batch, until: Until) -> None:
    broker = await start(fsync="interval", fsync_interval=0.01)
    partition = (await broker.topics.create("t")).partitions[0]
    append(partition, batch(b"value"))
    await until(lambda: not partition.log.dirty)


async def test_retention_is_applied_at_intervals(start: Start, batch: Batch, until: Until) -> None:
    broker = await start(retention_check_interval=0.01, retention_seconds=1)
    partition = (await broker.topics.create("t")).partitions[0]
    append(partition, batch(b"value", timestamp=LONG_AGO))
    await until(lambda: partition.log.log_start_offset == 1)


async def test_a_sync_that_fails_is_reported_and_tried_again(
    start: Start,
    batch: Batch,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    calls = 0
    works = PartitionLog.fsync

    def fail_once(log: PartitionLog) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise LogFailed("the disk is gone")
        return works(log)

    broker = await start(fsync="interval", fsync_interval=0.01)
    partition = (await broker.topics.create("t")).partitions[0]
    monkeypatch.setattr(PartitionLog, "fsync", fail_once)
    append(partition, batch(b"value"))
    await until(lambda: not partition.log.dirty)
    assert "could not be synced" in capsys.readouterr().out


async def test_a_log_whose_disk_failed_is_reported_once(
    start: Start,
    batch: Batch,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: int) -> None:
        raise OSError("the disk is gone")

    broker = await start(fsync="interval", fsync_interval=0.001)
    bad, good = (await broker.topics.create("t", 2)).partitions
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        append(bad, batch(b"value"))
        await until(lambda: bool(bad.log.failure))
    for _ in range(5):  # others are synced as before
        append(good, batch(b"value"))
        await until(lambda: not good.log.dirty)
    assert capsys.readouterr().out.count("could not be synced") == 1
