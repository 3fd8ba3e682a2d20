import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.buffer_pool import BufferPool
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import split_batches
from kmr.broker.server.buffers import Intake, RequestBuffers
from kmr.broker.storage.group_commit import GroupCommit
from kmr.broker.topics.topic import Partition

KIB = 1024
MIB = 1024 * KIB


def test_a_buffer_has_at_least_the_requested_size() -> None:
    pool = BufferPool(64 * KIB)
    buffer = pool.take(5000)
    assert buffer is not None
    assert len(buffer) == pool.used == 8 * KIB


def test_a_buffer_is_reused() -> None:
    pool = BufferPool(64 * KIB)
    buffer = pool.take(5000)
    assert buffer is not None
    pool.put(buffer)
    assert pool.used == 0
    assert pool.take(6000) is buffer


def test_no_buffer_is_lent_beyond_the_limit() -> None:
    pool = BufferPool(16 * KIB)
    first = pool.take(8 * KIB)
    assert pool.take(8 * KIB) is not None
    assert pool.take(1) is None
    assert first is not None
    pool.put(first)
    assert pool.take(1) is not None


def test_a_buffer_larger_than_the_limit_is_lent_alone() -> None:
    pool = BufferPool(4 * KIB)
    large = pool.take(100 * KIB)
    assert large is not None
    assert pool.take(1) is None


def test_a_buffer_beyond_the_limit_counts_against_it() -> None:
    pool = BufferPool(8 * KIB)
    pool.take_beyond_limit(8 * KIB)
    pool.take_beyond_limit(8 * KIB)
    assert pool.used == 16 * KIB
    assert pool.take(1) is None


async def test_waiting_calls_are_served_in_order() -> None:
    pool = BufferPool(8 * KIB)
    held = pool.take_beyond_limit(8 * KIB)
    large, small = pool.when_available(8 * KIB), pool.when_available(4 * KIB)
    assert not large.done()
    assert pool.take(4 * KIB) is None  # the waiting call is first
    pool.put(held)
    assert large.done()
    assert not small.done()
    pool.put(large.result())
    assert small.done()


async def test_a_cancelled_wait_takes_no_buffer() -> None:
    pool = BufferPool(4 * KIB)
    held = pool.take_beyond_limit(1)
    waiting = asyncio.create_task(pool.wait(1))
    granted = asyncio.create_task(pool.wait(1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    pool.put(held)
    granted.cancel()  # it has been given a buffer, but has not seen it yet
    for task in (waiting, granted):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert pool.used == 0


async def test_callers_that_wait_for_each_other_are_served_one_after_the_other() -> None:
    pool = BufferPool(16 * KIB)
    held = [pool.take_beyond_limit(8 * KIB) for _ in range(3)]
    first, second = [pool.when_available(16 * KIB, held=8 * KIB) for _ in range(2)]
    assert not first.done()
    pool.put(held.pop())
    assert first.done()
    assert not second.done()
    pool.put(held.pop())  # the first has moved
    assert not second.done()
    pool.put(first.result())
    assert second.done()


async def test_a_caller_that_left_does_not_count_as_waiting() -> None:
    pool = BufferPool(16 * KIB)
    left, held = pool.take_beyond_limit(8 * KIB), pool.take_beyond_limit(8 * KIB)
    pool.when_available(16 * KIB, held=8 * KIB).cancel()
    waiting = pool.when_available(16 * KIB)
    pool.put(left)
    assert not waiting.done()
    pool.put(held)
    assert waiting.done()


def test_large_requests_leave_memory_for_usual_ones() -> None:
    buffers = RequestBuffers(64 * MIB)
    large = [buffers.take(16 * MIB) for _ in range(3)]
    assert [each is not None for each in large] == [True, True, False]
    usual = buffers.take(MIB)
    assert usual is not None
    buffers.put(usual)
    assert buffers.small.used == 0
    assert buffers.large.used == 32 * MIB


async def test_received_batches_stay_until_they_are_written_and_then_make_room(
    tmp_path: Path, batch: Callable[..., bytes]
) -> None:
    partition = Partition("t", 0, PartitionLog.open(tmp_path / "0", LogConfig(), clean=True))
    buffers, sent = RequestBuffers(8 * MIB), [batch(b"%d" % at * 30_000) for at in range(20)]
    with ThreadPoolExecutor(1) as threads:
        commits = GroupCommit(sync=False, executor=threads)
        intake = Intake(buffers, commits)
        first = intake.room()
        for data in sent:  # more than the memory of one intake
            intake.room()[: len(data)] = data
            chunk, start, end = intake.received(len(data))
            received = chunk[start:end]
            partition.log.append(received, split_batches(received), now_ms=0)
            commits.add(partition, len(data))
            intake.handled()
        commits.write()
        assert len(intake.room()) == len(first)
    buffer = memoryview(bytearray(MIB))
    size = partition.log.read_into(0, buffer).size
    partition.log.close()
    assert [buffer[h.position : h.end][61:] for h in split_batches(buffer[:size])] == [
        each[61:] for each in sent
    ]
    assert buffers.small.used == 0


def test_memory_that_is_taken_away_from_the_intake_counts_until_it_is_put_back() -> None:
    buffers = RequestBuffers(MIB)
    with ThreadPoolExecutor(1) as threads:
        intake = Intake(buffers, GroupCommit(sync=False, executor=threads))
        intake.room()[:3] = b"abc"
        intake.received(3)
        taken = intake.take_away()
        intake.room()[:3] = b"xyz"
    assert bytes(taken[:3]) == b"abc"
    assert buffers.small.used == len(taken)
    buffers.put(taken)
    assert buffers.small.used == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20 * KIB))))
def test_the_limit_holds_in_any_order_of_takes_and_puts(steps: list[tuple[bool, int]]) -> None:
    pool = BufferPool(32 * KIB)
    held: list[memoryview] = []
    for take, size in steps:
        if take:
            buffer = pool.take(size)
            if buffer is not None:
                assert not any(buffer is other for other in held)
                held.append(buffer)
        elif held:
            pool.put(held.pop(size % len(held)))
        assert pool.used == sum(map(len, held)) <= 32 * KIB
