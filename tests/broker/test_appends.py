"""When records are written, synced, shown and acknowledged; with real logs, syncs run on command."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.appends import Appends, Flush
from broker.log.config import LogConfig
from broker.log.errors import LogFailed
from broker.log.partition import PartitionLog
from broker.records import split_batches
from broker.topics.partition import Partition, Watch


class ManualExecutor(Executor):
    """Runs what was submitted when the test says so."""

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
def append(batch: Callable[..., bytes]) -> Callable[[Appends, Partition], Flush]:
    def append(appends: Appends, partition: Partition) -> Flush:
        data = bytearray(batch(b"value"))
        partition.log.append(data, split_batches(data), now_ms=0)
        return appends.add(partition, len(data))

    return append


Append = Callable[[Appends, Partition], Flush]


async def test_appends_of_one_turn_are_written_together_at_its_end(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    appends = Appends(sync=False, executor=executor)
    first, second = append(appends, partition), append(appends, partition)
    assert first is second
    assert appends.pending
    assert (first.done, partition.high_watermark) == (False, 0)
    await asyncio.sleep(0)
    assert (first.done, partition.high_watermark) == (True, 2)
    assert not appends.pending
    assert append(appends, partition) is not first


async def test_a_flush_calls_back_once_per_callback(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    calls: list[str] = []

    def callback() -> None:
        calls.append("called")

    appends = Appends(sync=False, executor=executor)
    flush = append(appends, partition)
    flush.then(callback)
    flush.then(callback)
    await asyncio.sleep(0)
    assert calls == ["called"]
    flush.then(callback)
    assert calls == ["called"] * 2


async def test_buffers_are_kept_until_their_records_are_written(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    released: list[int] = []
    appends = Appends(sync=False, executor=executor)
    append(appends, partition)
    appends.after_write(lambda: released.append(1))
    assert released == []
    appends.write()
    assert released == [1]
    appends.after_write(lambda: released.append(2))
    assert released == [1, 2]


async def test_with_sync_nothing_is_shown_or_acknowledged_before_it_is_on_disk(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    appends = Appends(sync=True, executor=executor)
    flush = append(appends, partition)
    with Watch([partition], 1) as watch:
        waiting = asyncio.create_task(watch.wait())
        await asyncio.sleep(0)
        assert (flush.done, partition.high_watermark, waiting.done()) == (False, 0, False)
        await executor.run_next()
        assert (flush.done, partition.high_watermark) == (True, 1)
        await waiting
    assert partition.log.durable_offset == 1


async def test_appends_during_a_sync_share_the_next_one(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    appends = Appends(sync=True, executor=executor)
    first = append(appends, partition)
    await asyncio.sleep(0)
    later = [append(appends, partition)]
    await asyncio.sleep(0)
    later.append(append(appends, partition))
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
    appends = Appends(sync=False, executor=executor)
    flush = append(appends, partition)
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

    appends = Appends(sync=False, executor=executor)
    with capture_logs() as logs:
        for _ in range(2):
            with monkeypatch.context() as full:
                full.setattr(partition.log, "flush_pending", fail)
                for _ in range(3):
                    assert append(appends, partition).failed == {}
                    await asyncio.sleep(0)
            for _ in range(3):
                append(appends, partition)
                await asyncio.sleep(0)
    events = [each["event"] for each in logs]
    assert (
        events
        == [
            "records could not be written, their producers are told so",
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
    appends = Appends(sync=True, executor=executor)
    flush = append(appends, partition)
    await asyncio.sleep(0)
    await executor.run_next()
    assert (flush.done, list(flush.failed), partition.high_watermark) == (True, [partition], 0)


async def test_records_of_a_topic_that_was_deleted_meanwhile_are_not_acknowledged(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    appends = Appends(sync=False, executor=executor)
    flush = append(appends, partition)
    partition.close()
    partition.log.delete()
    await asyncio.sleep(0)
    assert flush.done
    assert partition in flush.failed


async def test_draining_waits_for_the_last_sync(
    partition: Partition, executor: ManualExecutor, append: Append
) -> None:
    appends = Appends(sync=True, executor=executor)
    flush = append(appends, partition)
    draining = asyncio.create_task(appends.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    await executor.run_next()
    await draining
    assert flush.done
