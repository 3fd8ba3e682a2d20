import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.buffer_pool import BufferPool

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
    await asyncio.sleep(0)
    assert small.done()


async def test_each_turn_of_the_loop_serves_one_of_those_who_wait() -> None:
    pool = BufferPool(64 * KIB)
    held = pool.take_beyond_limit(64 * KIB)
    waiting = [pool.when_available(4 * KIB) for _ in range(5)]
    pool.put(held)
    for served in range(1, 6):
        assert [each.done() for each in waiting].count(True) == served
        await asyncio.sleep(0)


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


async def test_a_call_behind_one_that_is_cancelled_is_served_at_once() -> None:
    pool = BufferPool(16 * KIB)
    pool.take_beyond_limit(8 * KIB)
    large, small = pool.when_available(16 * KIB), pool.when_available(8 * KIB)
    large.cancel()
    await asyncio.sleep(0)
    assert small.done()
    assert not pool.is_awaited


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
    await asyncio.sleep(0)
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
