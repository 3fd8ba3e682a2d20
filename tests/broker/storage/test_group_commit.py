"""When records are written, synced, visible and acknowledged; real logs, syncs run on command."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import split_batches
from kmr.broker.log.results import LogFailed
from kmr.broker.storage.group_commit import Flush, GroupCommit
from kmr.broker.topics.topic import Partition, Watch


class ManualExecutor(Executor):
    """Run submitted functions when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            future.set_result(fn(*args, **kwargs))

        self.waiting.append(run)
        return future

    async def run_next(self) -> None:
        self.waiting.pop(0)()
        for _ in range(3):  # the result reaches the event loop by callbacks
            await asyncio.sleep(0)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(
        "t", 0, PartitionLog.open(tmp_path / "0", LogConfig(fsync="always"), clean=True)
    )


@pytest.fixture
def executor() -> ManualExecutor:
    return ManualExecutor()


@pytest.fixture
def append(batch: Callable[..., bytes]) -> Callable[[GroupCommit, Partition], Flush]:
    def append(commits: GroupCommit, partition: Partition) -> Flush:
        data = bytearray(batch(b"value"))
        partition.log.append(data, split_batches(data), now_ms=0)
        return commits.add(partition, len(data))

    return append


Append = Callable[[GroupCommit, Partition], Flush]


async def test_appends_of_one_turn_are_written_together_at_its_end(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    commits = GroupCommit(sync=False, executor=executor)
    first, second = append(commits, partition), append(commits, partition)
    assert first is second
    assert (first.done, partition.high_watermark) == (False, 0)
    await asyncio.sleep(0)
    assert (first.done, partition.high_watermark) == (True, 2)
    assert append(commits, partition) is not first


async def test_a_flush_calls_back_once_per_callback(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    calls: list[str] = []

    def callback() -> None:
        calls.append("called")

    commits = GroupCommit(sync=False, executor=executor)
    flush = append(commits, partition)
    flush.then(callback)
    flush.then(callback)
    await asyncio.sleep(0)
    assert calls == ["called"]
    flush.then(callback)
    assert calls == ["called"] * 2


async def test_a_callback_that_fails_keeps_no_other_one_from_being_called(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    calls: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    flush = append(GroupCommit(sync=False, executor=executor), partition)
    flush.then(fail)
    flush.then(lambda: calls.append("called"))
    with Watch((partition,), 1, fail), capture_logs() as logs:
        await asyncio.sleep(0)
    assert (flush.done, calls, partition.high_watermark) == (True, ["called"], 1)
    assert [each["log_level"] for each in logs] == ["error"] * 2


@pytest.mark.parametrize("sync", [False, True])
async def test_a_log_that_fails_in_an_unknown_way_fails_alone(
    partition: Partition,
    executor: ManualExecutor,
    append: Append,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sync: bool,
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    log = PartitionLog.open(tmp_path / "1", LogConfig(fsync="always"), clean=True)
    sound = Partition("t", 1, log)
    monkeypatch.setattr(partition.log, "fsync" if sync else "flush_pending", fail)
    commits = GroupCommit(sync=sync, executor=executor)
    flush = append(commits, partition)
    append(commits, sound)
    await asyncio.sleep(0)
    while executor.waiting:
        await executor.run_next()
    assert (flush.done, list(flush.failed)) == (True, [partition])
    assert (partition.high_watermark, sound.high_watermark) == (0, 1)


async def test_buffers_are_kept_until_their_records_are_written(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    released: list[int] = []
    commits = GroupCommit(sync=False, executor=executor)
    append(commits, partition)
    commits.after_write(lambda: released.append(1))
    assert released == []
    commits.write()
    assert released == [1]
    commits.after_write(lambda: released.append(2))
    assert released == [1, 2]


async def test_with_sync_nothing_is_shown_or_acknowledged_before_it_is_on_disk(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    commits = GroupCommit(sync=True, executor=executor)
    flush = append(commits, partition)
    shown: list[int] = []
    with Watch([partition], 1, lambda: shown.append(partition.high_watermark)):
        await asyncio.sleep(0)
        assert (flush.done, partition.high_watermark, shown) == (False, 0, [])
        await executor.run_next()
        assert (flush.done, partition.high_watermark, shown) == (True, 1, [1])
    assert partition.log.durable_offset == 1


async def test_appends_during_a_sync_share_the_next_one(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    commits = GroupCommit(sync=True, executor=executor)
    first = append(commits, partition)
    await asyncio.sleep(0)
    later = [append(commits, partition)]
    await asyncio.sleep(0)
    later.append(append(commits, partition))
    await asyncio.sleep(0)
    assert len(executor.waiting) == 1
    await executor.run_next()
    assert [first.done, *(flush.done for flush in later)] == [True, False, False]
    assert partition.high_watermark == 1
    assert len(executor.waiting) == 1
    await executor.run_next()
    assert all(flush.done for flush in later)
    assert (partition.high_watermark, executor.waiting) == (3, [])


async def test_a_failed_write_is_reported_and_not_shown(
    partition: Partition,
    executor: ManualExecutor,
    append: Append,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise LogFailed("the disk is full")

    monkeypatch.setattr(partition.log, "flush_pending", fail)
    commits = GroupCommit(sync=False, executor=executor)
    flush = append(commits, partition)
    await asyncio.sleep(0)
    assert flush.done
    assert str(flush.failed[partition]) == "the disk is full"
    assert partition.high_watermark == 0


async def test_a_failure_is_logged_once_until_records_are_written_again(
    partition: Partition,
    executor: ManualExecutor,
    append: Append,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise LogFailed("the disk is full")

    commits = GroupCommit(sync=False, executor=executor)
    with capture_logs() as logs:
        for _ in range(2):
            with monkeypatch.context() as full:
                full.setattr(partition.log, "flush_pending", fail)
                for _ in range(3):
                    assert append(commits, partition).failed == {}
                    await asyncio.sleep(0)
            for _ in range(3):
                append(commits, partition)
                await asyncio.sleep(0)
    events = [each["event"] for each in logs]
    assert (
        events
        == [
            "records could not be written; their producers get an error",
            "records are written again",
        ]
        * 2
    )


async def test_a_failed_sync_is_reported_and_not_shown(
    partition: Partition,
    executor: ManualExecutor,
    append: Append,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> int:
        raise LogFailed("the disk is gone")

    monkeypatch.setattr(partition.log, "fsync", fail)
    commits = GroupCommit(sync=True, executor=executor)
    flush = append(commits, partition)
    await asyncio.sleep(0)
    await executor.run_next()
    assert (flush.done, list(flush.failed), partition.high_watermark) == (True, [partition], 0)


async def test_records_of_a_topic_that_was_deleted_meanwhile_are_not_acknowledged(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    commits = GroupCommit(sync=False, executor=executor)
    flush = append(commits, partition)
    partition.close()
    partition.log.delete()
    await asyncio.sleep(0)
    assert flush.done
    assert partition in flush.failed


async def test_draining_waits_for_the_last_sync(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    commits = GroupCommit(sync=True, executor=executor)
    flush = append(commits, partition)
    draining = asyncio.create_task(commits.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    await executor.run_next()
    await draining
    assert flush.done
