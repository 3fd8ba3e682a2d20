"""The coordinator with its log, real partitions and real groups: kills, fencing, timeouts, failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kmr.broker.coordinators.transaction_state import (
    LAST_EPOCH,
    TransactionError,
    TransactionState,
)
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import ProducerIdentity
from kmr.broker.log.results import LogFailed

if TYPE_CHECKING:
    from kmr.broker.coordinators.transaction_store import TransactionStore
    from kmr.broker.log.log_config import FsyncPolicy

Disk = Any  # of conftest.py, which cannot be imported
TIMEOUT_MS = 60_000


@pytest.mark.parametrize("fsync", ["os", "always"])
async def test_partitions_and_offsets_become_visible_together(
    disk: Disk, fsync: FsyncPolicy
) -> None:
    async with disk.running(fsync=fsync) as node:
        producer = await node.begin()
        for partition in (0, 1):
            assert await node.produce("x", producer, partition, 0, b"v") is None
        assert await node.commit_offset("x", producer, 7) is None
        assert (node.committed(0), node.committed(1)) == ([], [])
        assert await node.committed_offset() is None
        assert await node.coordinator.end("x", producer, commit=True) is None
        assert (node.committed(0), node.committed(1)) == ([b"v"], [b"v"])
        assert await node.committed_offset() == 7
        assert node.store.get("x").state is TransactionState.COMPLETE_COMMIT


async def test_a_kill_at_any_write_of_a_commit_leaves_all_of_it_or_none(make_disk: Any) -> None:
    outcomes = set()
    for writes in range(1, 8):
        disk = make_disk()
        async with disk.running() as node:
            producer = await node.begin()
            for partition in (0, 1):
                await node.produce("x", producer, partition, 0, b"v")
            await node.commit_offset("x", producer, 7)
            disk.kill_after(writes)
            await node.coordinator.end("x", producer, commit=True)
            disk.kill_after(0)
        async with disk.running() as node:
            seen = node.committed(0), node.committed(1), await node.committed_offset()
            assert seen in [([], [], None), ([b"v"], [b"v"], 7)]
            outcomes.add(node.store.get("x").state)
            assert node.is_open(producer.producer_id) == (seen[2] is None)
            assert await node.coordinator.end("x", producer, commit=True) is None
            assert (node.committed(0), node.committed(1)) == ([b"v"], [b"v"])
            assert await node.committed_offset() == 7
    assert outcomes == {TransactionState.COMPLETE_COMMIT}, "the first write is the decision"


@pytest.mark.parametrize("epoch", [0, LAST_EPOCH])
async def test_a_kill_at_any_write_of_an_end_that_raises_the_epoch_leaves_all_of_it_or_none(
    make_disk: Any, epoch: int
) -> None:
    for writes in range(1, 8):
        disk = make_disk()
        async with disk.running() as node:
            producer = (await node.begin())._replace(epoch=epoch)
            node.store.put(replace(node.store.get("x"), producer=producer))
            for partition in (0, 1):
                await node.produce("x", producer, partition, 0, b"v")
            await node.commit_offset("x", producer, 7)
            disk.kill_after(writes)
            first = await node.coordinator.end_and_raise_epoch("x", producer, commit=True)
            disk.kill_after(0)
        async with disk.running() as node:
            after = await node.coordinator.end_and_raise_epoch("x", producer, commit=True)
            if epoch == LAST_EPOCH:
                assert after == (producer.producer_id + 1, 0)
            else:
                assert after == (producer.producer_id, 1)
            assert after == first
            late = await node.produce("x", producer, 0, 1, b"late")
            assert (
                late
                is TransactionError[
                    "INVALID_PRODUCER_ID_MAPPING" if epoch == LAST_EPOCH else "PRODUCER_FENCED"
                ]
            )
            assert await node.produce("x", after, 0, 0, b"w") is None
            assert (node.committed(0), node.committed(1)) == ([b"v"], [b"v"])
            assert await node.committed_offset() == 7
            again = await node.coordinator.end_and_raise_epoch("x", after, commit=False)
            assert again == (after.producer_id, after.epoch + 1)
            assert node.committed(0) == [b"v"]


async def test_a_kill_before_the_decision_leaves_the_transaction_open(disk: Disk) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"v")
        disk.kill()
    async with disk.running() as node:
        assert node.store.get("x").state is TransactionState.ONGOING
        assert node.committed(0) == []
        assert await node.produce("x", producer, 0, 1, b"w") is None
        await node.coordinator.end("x", producer, commit=True)
        assert node.committed(0) == [b"v", b"w"]


async def test_a_decision_is_not_acknowledged_before_it_is_durable(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: PartitionLog) -> int:
        raise LogFailed("the disk failed to sync")

    unavailable = TransactionError.COORDINATOR_NOT_AVAILABLE
    async with disk.running(fsync="always") as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"v")
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "fsync", broken)
            for _ in "12":
                added = await node.coordinator.add_partitions("x", producer, [("t", 1)])
                assert added is unavailable
            assert await node.coordinator.end("x", producer, commit=True) is unavailable
            assert node.committed(0) == []
        await node.coordinator.check()
        assert node.committed(0) == [b"v"]


async def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced(
    disk: Disk,
) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"v")
        await node.commit_offset("x", producer, 7)
        disk.clock.seconds += TIMEOUT_MS / 1000
        await node.coordinator.check()
        assert node.is_open(producer.producer_id)
        disk.clock.seconds += 0.001
        await node.coordinator.check()
        assert not node.is_open(producer.producer_id)
        fenced = TransactionError.PRODUCER_FENCED
        assert await node.produce("x", producer, 0, 1, b"w") is fenced
        assert await node.coordinator.end("x", producer, commit=True) is fenced
        assert await node.coordinator.initialise("x", TIMEOUT_MS, producer) is fenced
        successor = await node.begin()
        assert successor == (producer.producer_id, producer.epoch + 2)
        await node.produce("x", successor, 0, 0, b"new")
        await node.coordinator.end("x", successor, commit=True)
        assert node.committed(0) == [b"new"]
        assert await node.committed_offset() is None


async def test_the_timeout_continues_over_a_restart(disk: Disk) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"v")
        disk.kill()
    disk.clock.seconds += TIMEOUT_MS / 1000 + 1
    async with disk.running() as node:
        await node.coordinator.check()
        assert not node.is_open(producer.producer_id)


async def test_an_unused_transactional_id_expires(disk: Disk) -> None:
    async with disk.running() as node:
        idle = await node.begin("idle")
        disk.clock.seconds += 60_000
        await node.coordinator.check()
        busy = await node.begin("busy")
        await node.produce("busy", busy, 0, 0, b"v")
        disk.clock.seconds += 40_000
        await node.coordinator.check()
        assert [each.transactional_id for each in node.store] == ["busy"]
        unknown = TransactionError.INVALID_PRODUCER_ID_MAPPING
        assert await node.produce("idle", idle, 0, 0, b"v") is unknown
        disk.kill()
    async with disk.running() as node:
        assert [each.transactional_id for each in node.store] == ["busy"]
        assert (await node.begin("idle")).producer_id != idle.producer_id


async def test_a_change_that_cannot_be_stored_is_not_acknowledged(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: TransactionStore, __: object) -> int:
        raise LogFailed("no space left")

    async with disk.running() as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"v")
        unavailable = TransactionError.COORDINATOR_NOT_AVAILABLE
        with monkeypatch.context() as patch:
            patch.setattr(type(node.store), "put", refuse)
            assert await node.coordinator.initialise("y", TIMEOUT_MS) is unavailable
            assert await node.coordinator.end("x", producer, commit=True) is unavailable
            added = await node.coordinator.add_partitions("x", producer, [("t", 1)])
            assert added is unavailable
        assert node.committed(0) == []
        assert await node.coordinator.end("x", producer, commit=True) is None
        assert node.committed(0) == [b"v"]


async def test_a_disconnect_does_not_stop_the_end_of_a_transaction(
    disk: Disk,
) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        await node.produce("x", producer, 0, 0, b"v")
        ending = asyncio.ensure_future(node.coordinator.end("x", producer, commit=True))
        await asyncio.sleep(0)
        ending.cancel()
    async with disk.running() as node:
        assert node.committed(0) == [b"v"]


async def test_an_exhausted_epoch_is_followed_by_a_new_producer_id(disk: Disk) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        stored = node.store.get("x")
        last = ProducerIdentity(producer.producer_id, 2**15 - 2)
        node.store.put(type(stored)("x", last, TIMEOUT_MS, stored.state, stored.updated_ms))
        await node.produce("x", last, 0, 0, b"v")
        successor = await node.begin()
        assert successor.producer_id != producer.producer_id
        assert successor.epoch == 0
        assert not node.is_open(producer.producer_id)


async def test_transactional_ids_have_a_budget_and_known_ones_go_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disk.running() as node:
        producer = await node.begin()
        monkeypatch.setattr(node.coordinator, "_max_bytes", 50_000)
        made = [await node.coordinator.initialise(f"{at}", TIMEOUT_MS) for at in range(100)]
        refused = made.count(TransactionError.POLICY_VIOLATION)
        assert 50 <= refused < 100
        large = [("t", index) for index in range(1000)]
        added = await node.coordinator.add_partitions("x", producer, large)
        assert added is TransactionError.POLICY_VIOLATION
        assert node.store.kept_bytes <= 50_000
        assert await node.coordinator.initialise("0", TIMEOUT_MS) is not (
            TransactionError.POLICY_VIOLATION
        )
        for transaction in node.store:
            node.store.remove(transaction.transactional_id)
        assert node.store.kept_bytes == 0
