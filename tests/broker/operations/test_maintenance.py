"""Syncs, retention and compaction of a running broker."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from anyio import from_thread
from kio.schema.errors import ErrorCode

from kmr.broker import Broker, BrokerSettings
from kmr.broker.log.compaction import Compaction, Group, Rewritten
from kmr.broker.log.compaction_process import CompactionProcess
from kmr.broker.log.disk_work import do_now
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import NewRecord, build_batch, parse_header, read_records, split_batches
from kmr.broker.log.results import LogFailed
from kmr.broker.log.swap import swap_source
from kmr.broker.operations import maintenance
from kmr.broker.operations.maintenance import compact, retain
from kmr.broker.topics.topic import Partition

Start = Callable[..., Awaitable[Broker]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
Batch = Callable[..., bytes]

pytestmark = pytest.mark.loop_guard
LONG_AGO = 1_700_000_000_000
NOW = LONG_AGO + 1_000_000_000


def append(partition: Partition, data: bytes) -> None:
    batch = bytearray(data)
    partition.log.append(batch, split_batches(batch), now_ms=LONG_AGO)
    partition.log.flush_pending()


async def test_old_segments_are_deleted_in_all_topics(
    broker: Broker, batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = await broker.topics.create("short", 2, {"retention.ms": "1000"})
    long = await broker.topics.create("long", 1, {"retention.ms": "-1"})
    for partition in (*short.partitions, *long.partitions):
        append(partition, batch(b"old", timestamp=LONG_AGO))
    await retain(broker.topics, broker.health.supervisor, now_ms=NOW)
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

    monkeypatch.setattr(topic.partitions[0].log, "retention", fail)
    await retain(broker.topics, broker.health.supervisor, now_ms=NOW)
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


Connect = Callable[[Broker], Awaitable[Any]]
PRODUCE = 0
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1",
    "min.cleanable.dirty.ratio": "0",
}


async def produce(client: Any, *pairs: tuple[bytes | None, bytes | None]) -> ErrorCode:
    batch = bytes(build_batch([NewRecord(*pair) for pair in pairs]))
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    response = await client.call(PRODUCE, 9, acks=1, topic_data=data)
    code: ErrorCode = response.responses[0].partition_responses[0].error_code
    return code


def keys(partition: Partition) -> dict[int, bytes | None]:
    """Offset to key, of all records."""
    log, found = partition.log, {}
    offset = log.log_start_offset
    while offset < log.next_offset:
        result = log.read(offset, 1, min_one=True)
        for record in read_records(result.data, parse_header(result.data)):
            found[record.offset] = record.key
        offset = result.next_offset
    return found


async def filled(broker: Broker, client: Any) -> Partition:
    """Four records of two keys; the last one is in the active segment."""
    topic = await broker.topics.create("t", 1, COMPACT)
    for key in (b"a", b"b", b"a", b"b"):
        assert await produce(client, (key, b"v")) is ErrorCode.none
    return topic.partitions[0]


async def test_a_topic_is_compacted_while_it_is_in_use(
    start: Start, connect: Connect, until: Until
) -> None:
    broker = await start(compaction_check_interval=0.01)
    client = await connect(broker)
    partition = await filled(broker, client)
    await until(lambda: set(keys(partition)) == {1, 2, 3})
    assert await produce(client, (b"a", b"new")) is ErrorCode.none
    await until(lambda: set(keys(partition)) == {2, 3, 4})
    assert partition.high_watermark == 5


async def test_a_topic_becomes_compacted_when_its_settings_say_so(
    start: Start, connect: Connect, until: Until
) -> None:
    broker = await start(compaction_check_interval=0.01)
    client = await connect(broker)
    topic = await broker.topics.create("t", 1, {**COMPACT, "cleanup.policy": "delete"})
    partition = topic.partitions[0]
    for _ in range(3):
        await produce(client, (b"a", b"v"))
    await broker.topics.configure("t", lambda _: COMPACT)
    await until(lambda: set(keys(partition)) == {1, 2})


async def test_a_record_without_a_key_is_refused(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    await filled(broker, client)
    assert await produce(client, (b"a", b""), (None, b"")) is ErrorCode.invalid_record


async def test_records_appended_during_a_pass_are_not_lost(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    rewrite = Compaction.rewrite

    def slow(compaction: Compaction, group: Group) -> Rewritten | None:
        from_thread.run(produce, client, (b"a", b"meanwhile"))
        return rewrite(compaction, group)

    monkeypatch.setattr(Compaction, "rewrite", slow)
    assert await compact(partition, broker.topics, now_ms=NOW)
    # Three closed segments, three groups: a record is produced during each.
    assert set(keys(partition)) == {1, 2, 3, 4, 5, 6}
    monkeypatch.undo()
    assert await compact(partition, broker.topics, now_ms=NOW)
    assert set(keys(partition)) == {3, 5, 6}


async def test_a_topic_that_is_deleted_during_a_pass_leaves_nothing(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    read_keys = Compaction.read_keys

    def slow(compaction: Compaction) -> None:
        from_thread.run(broker.topics.delete, "t")
        read_keys(compaction)

    monkeypatch.setattr(Compaction, "read_keys", slow)
    assert not await compact(partition, broker.topics, now_ms=NOW)
    assert not partition.log.directory.parent.exists()


@pytest.mark.parametrize("step", ["read_keys", "rewrite"])
async def test_segments_that_are_deleted_during_a_pass_end_it_without_an_error(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    await broker.topics.configure("t", lambda _: {**COMPACT, "cleanup.policy": "compact,delete"})
    works = getattr(Compaction, step)

    def slow(compaction: Compaction, *group: Group) -> object:
        from_thread.run_sync(lambda: do_now(partition.log.truncation(2)))
        return works(compaction, *group)

    monkeypatch.setattr(Compaction, step, slow)
    assert not await compact(partition, broker.topics, now_ms=NOW)
    assert set(keys(partition)) == {2, 3}
    monkeypatch.undo()
    await compact(partition, broker.topics, now_ms=NOW)
    assert set(keys(partition)) == {2, 3}
    assert {path.suffix for path in partition.log.directory.iterdir()}.isdisjoint({".tmp", ".swap"})


async def test_a_disk_that_is_full_is_reported_once(
    start: Start, connect: Connect, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def fail(compaction: Compaction, group: Group) -> None:
        nonlocal tries
        tries += 1
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Compaction, "rewrite", fail)
    with structlog.testing.capture_logs() as logs:
        broker = await start(compaction_check_interval=0.001)
        client = await connect(broker)
        partition = await filled(broker, client)
        await until(lambda: tries > 2)
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry["error"] for entry in errors] == ["[Errno 28] No space left on device"]
    assert set(keys(partition)) == {0, 1, 2, 3}


async def test_a_log_that_cannot_be_compacted_leaves_the_others_and_the_broker_alone(
    start: Start, connect: Connect, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Compaction.rewrite

    def fail(compaction: Compaction, group: Group) -> Rewritten | None:
        if "bad" in str(compaction.plan.directory):
            raise OverflowError("it does not fit")
        return works(compaction, group)

    monkeypatch.setattr(Compaction, "rewrite", fail)
    with structlog.testing.capture_logs() as logs:
        broker = await start(compaction_check_interval=0.01, http_port=0)
        bad = (await broker.topics.create("bad", 1, COMPACT)).partitions[0]
        for key in (b"a", b"a"):
            append(bad, bytes(build_batch([NewRecord(key, b"v")])))
        bad.log.roll()
        await until(lambda: bool(broker.health.supervisor.failures))
        good = await filled(broker, await connect(broker))
        await until(lambda: set(keys(good)) == {1, 2, 3})
        async with aiohttp.ClientSession(broker.http_url) as session:
            async with session.get("/live") as live:
                assert live.status == 200
                said = "ok; compaction (topic bad, partition 0) fails: it does not fit\n"
                assert await live.text() == said
            async with session.get("/metrics") as answer:
                metrics = await answer.text()
        where = 'subject="topic bad, partition 0",work="compaction"'
        assert f"kmr_broker_work_failures{{{where}}}" in metrics
        monkeypatch.undo()
        await until(lambda: not broker.health.supervisor.failures)
    assert sum(entry["log_level"] == "error" for entry in logs) == 1
    assert broker.health.warnings() == ""


async def test_compaction_does_not_hold_up_the_end_of_the_broker(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    topics = broker.topics
    read_keys = Compaction.read_keys

    def stopping(compaction: Compaction) -> None:
        topics.stopping = True
        read_keys(compaction)

    monkeypatch.setattr(Compaction, "read_keys", stopping)
    assert not await compact(partition, topics, now_ms=NOW)
    assert set(keys(partition)) == {0, 1, 2, 3}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[CompactionProcess]:
    """The passes that ran in a process: every one, also over a small log."""
    monkeypatch.setattr(maintenance, "_PROCESS_BYTES", 0)
    found: list[CompactionProcess] = []
    read_keys = CompactionProcess.read_keys

    def noted(compaction: CompactionProcess) -> None:
        found.append(compaction)
        read_keys(compaction)

    monkeypatch.setattr(CompactionProcess, "read_keys", noted)
    return found


def exit_code(compaction: CompactionProcess) -> int | None:
    assert compaction._process is not None
    return compaction._process.returncode


async def test_a_large_log_is_compacted_in_a_process(
    broker: Broker, connect: Connect, processes: list[CompactionProcess]
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    assert await compact(partition, broker.topics, now_ms=NOW)
    assert set(keys(partition)) == {1, 2, 3}
    assert [exit_code(each) for each in processes] == [-signal.SIGKILL]
    assert not await compact(partition, broker.topics, now_ms=NOW), "there is nothing new"


async def test_a_process_that_is_killed_between_two_groups_loses_nothing(
    broker: Broker,
    connect: Connect,
    processes: list[CompactionProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    rewrite = CompactionProcess.rewrite

    def killed(compaction: CompactionProcess, group: Group) -> Rewritten | None:
        if len(processes) == 1 and group[0].base_offset == 1:
            assert compaction._process is not None
            compaction._process.kill()
        return rewrite(compaction, group)

    monkeypatch.setattr(CompactionProcess, "rewrite", killed)
    with pytest.raises(ChildProcessError, match=r"\(exit code -9\); the next pass starts another"):
        await compact(partition, broker.topics, now_ms=NOW)
    assert set(keys(partition)) == {1, 2, 3}, "the first group is swapped"
    assert await compact(partition, broker.topics, now_ms=NOW)
    assert set(keys(partition)) == {1, 2, 3}


async def test_the_end_of_the_broker_ends_a_process_that_compacts(
    tmp_path: Path, connect: Connect, until: Until, processes: list[CompactionProcess]
) -> None:
    settings = BrokerSettings(data_dir=tmp_path, port=0, compaction_check_interval=0.01)
    async with Broker(settings) as broker:
        client = await connect(broker)
        topic = await broker.topics.create("t", 1, COMPACT)
        directory = topic.partitions[0].log.directory
        os.mkfifo(swap_source(directory, 0))  # the process waits for a reader that never comes
        for _ in range(3):
            await produce(client, (b"a", b"v"))
        await until(lambda: bool(processes) and processes[0].clean_to > 0)
    assert [exit_code(each) for each in processes] == [-signal.SIGKILL]
    assert list(directory.glob("*.tmp")) == []
    assert len(list(directory.glob("*.log"))) == 3
