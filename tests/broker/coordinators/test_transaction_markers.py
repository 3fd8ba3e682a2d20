"""Markers that end transactions: each partition gets one, after kills and failures too."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING, Any

from kmr.broker.coordinators.transaction_state import TransactionError, TransactionState
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.results import LogFailed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


Disk = Any  # of conftest.py, which cannot be imported
TIMEOUT_MS = 60_000


async def test_markers_that_were_written_before_the_kill_are_not_written_again(disk: Disk) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        for partition in (0, 1):
            await node.produce("x", producer, partition, 0, b"v")
        disk.kill_after(2)  # the decision, and one marker
        await node.coordinator.end("x", producer, commit=True)
    async with disk.running() as node:
        ends = [each.log.next_offset for each in node.topics.partitions]
        assert ends == [2, 2]


async def test_markers_are_written_once_when_storing_the_decision_is_slow(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = PartitionLog.fsync
    syncing, may_sync = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(log: PartitionLog) -> int:
        if log.directory.name == "transactions":
            loop.call_soon_threadsafe(syncing.set)
            assert may_sync.wait(60)
        return fsync(log)

    async with disk.running(fsync="always") as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"v")
        monkeypatch.setattr(PartitionLog, "fsync", slow)
        ending = asyncio.ensure_future(node.coordinator.end("x", producer, commit=True))
        await syncing.wait()
        checking = asyncio.ensure_future(node.coordinator.check())
        await asyncio.sleep(0)
        assert node.committed(0) == []
        may_sync.set()
        await checking
        assert await ending is None
        assert node.topics.partition("t", 0).log.next_offset == 2
        assert await node.produce("x", producer, 0, 1, b"next") is None
        assert node.committed(0) == [b"v"]
        assert node.store.get("x").state is TransactionState.ONGOING


async def test_markers_that_fail_are_written_later(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = PartitionLog.append
    broken = True

    def refusing(log: PartitionLog, data: Any, batches: Any, *, now_ms: int) -> Any:
        if broken and batches[0].is_control and log.directory.name == "1":
            raise LogFailed("no space left")
        return append(log, data, batches, now_ms=now_ms)

    monkeypatch.setattr(PartitionLog, "append", refusing)
    async with disk.running() as node:
        producer = await node.begin()
        for partition in (0, 1):
            await node.produce("x", producer, partition, 0, b"v")
        assert await node.coordinator.end("x", producer, commit=True) is None, "it is decided"
        assert (node.committed(0), node.committed(1)) == ([b"v"], [])
        waiting = TransactionError.CONCURRENT_TRANSACTIONS
        assert await node.coordinator.initialise("x", TIMEOUT_MS) is waiting
        assert await node.coordinator.end("x", producer, commit=True) is waiting
        invalid = TransactionError.INVALID_TXN_STATE
        assert await node.coordinator.end("x", producer, commit=False) is invalid
        broken = False
        await node.coordinator.check()
        assert (node.committed(0), node.committed(1)) == ([b"v"], [b"v"])
        assert node.topics.partition("t", 0).log.next_offset == 2, "no second marker"
        assert await node.begin() == (producer.producer_id, producer.epoch + 1)


async def test_transactions_that_the_coordinator_lost_are_aborted_at_the_start(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"lost")
        await node.commit_offset("x", producer, 7)
        disk.kill()
    for file in (disk.directory / "transactions").iterdir():
        file.unlink()
    async with disk.running() as node:
        assert not node.is_open(producer.producer_id)
        assert node.committed(0) == []
        assert await node.committed_offset() is None
    assert "ended open transactions" in capsys.readouterr().out


def take_back(disk: Disk, newer: Path, *names: str) -> None:
    """Let the next run have the files as they are now, but those in `names` as of the kill."""
    for each in newer.iterdir():
        if each.name not in names:
            shutil.rmtree(disk.directory / each.name)
            shutil.copytree(each, disk.directory / each.name)


async def test_a_decision_does_not_end_a_later_transaction_if_ends_raise_the_epoch(
    disk: Disk,
) -> None:
    async with disk.running() as node:
        producer, running = await node.begin(), disk.directory
        for partition in (0, 1):
            await node.produce("x", producer, partition, 0, b"v")
        await node.commit_offset("x", producer, 7)
        disk.kill_after(1)  # the decision
        later = await node.coordinator.end_and_raise_epoch("x", producer, commit=True)
        await node.produce("x", later, 0, 0, b"later")
        await node.commit_offset("x", later, 8)
        take_back(disk, running, "transactions")  # as a power loss may
    async with disk.running() as node:
        assert (node.committed(0), node.committed(1)) == ([b"v"], [b"v"])
        assert await node.committed_offset() == 7
        assert not node.is_open(producer.producer_id)
        lost = await node.coordinator.end_and_raise_epoch("x", later, commit=True)
        assert lost is TransactionError.INVALID_TXN_STATE, "its producer learns it"


async def test_a_marker_that_was_lost_is_written_as_it_was_decided(disk: Disk) -> None:
    for commit in (True, False):
        async with disk.running() as node:
            producer, running = await node.begin(), disk.directory
            for partition in (0, 1):
                await node.produce("x", producer, partition, 0, b"v")
            disk.kill_after(2)  # the decision, and one marker
            await node.coordinator.end_and_raise_epoch("x", producer, commit=commit)
            take_back(disk, running, "t-0", "t-1", "t")
        async with disk.running() as node:
            assert not node.is_open(producer.producer_id)
            assert (node.committed(0), node.committed(1)) == ([b"v"], [b"v"])
