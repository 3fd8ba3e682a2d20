"""Reading from a running broker."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.errors import ConsumerError, OffsetOutOfRange
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition

from .members import numbers, values

if TYPE_CHECKING:
    from kmr.record import Batch

    from .members import Consume, CreateTopic, Produce


T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


async def test_records_arrive_complete_and_in_order_with_every_codec(
    consume: Consume, produce: Produce
) -> None:
    for n, codec in enumerate((None, "gzip", "snappy", "lz4", "zstd")):
        await produce(
            "t",
            numbers(n * 100, n * 100 + 100),
            compression=codec,
            key=codec and codec.encode(),
            headers=[("n", b"%d" % n)],
            timestamp=1000 + n,
        )
    async with consume() as member:
        batches = await member.read(500)
    assert values(batches) == numbers(500)
    last = batches[-1].records.slice(len(batches[-1]) - 1).to_pylist()[0]
    assert last["key"] == b"zstd"
    assert last["headers"] == [{"key": "n", "value": b"4"}]
    assert last["timestamp"].timestamp() == 1.004
    assert (last["topic"], last["partition"], last["offset"]) == ("t", 0, 499)
    assert batches[-1].max_timestamp_ms == 1004


async def test_a_poll_that_is_cancelled_loses_nothing(consume: Consume, produce: Produce) -> None:
    async with consume(fetch_max_wait=0.01) as member:
        await member.until_assigned(bool)
        got: list[Batch] = []
        for n in range(50):
            await produce("t", [b"%d" % n])
            # Cancelled at whichever step it has reached by now.
            poll = asyncio.ensure_future(member.consumer.poll())
            for _ in range(n):
                await anyio.lowlevel.checkpoint()
            poll.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += await poll
        got += await member.read(50 - sum(map(len, got)))
    assert values(got) == numbers(50)


async def test_reading_goes_on_where_the_group_has_committed(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(10))
    async with consume() as member:
        await member.read(10)
        await member.consumer.commit({T0: CommitOffset(4, '{"last": 6}')})
        assert await member.consumer.committed([T0, T1]) == {
            T0: CommitOffset(4, '{"last": 6}'),
            T1: None,
        }
    async with consume() as member:
        batches = await member.read(6)
        assert batches[0].first == 4
        assert await member.consumer.committed([T0]) == {T0: CommitOffset(4, '{"last": 6}')}


async def test_a_paused_partition_is_left_out_and_does_not_hold_back_the_others(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(bool)
        member.consumer.pause([T0, TopicPartition("t", 99)])
        await produce("t", numbers(0, 3), 0)
        await produce("t", numbers(3, 6), 1)
        assert values(await member.read(3)) == numbers(3, 6)
        await produce("t", numbers(6, 9), 1)
        assert values(await member.read(3)) == numbers(6, 9)
        member.consumer.resume([T0, T1, TopicPartition("t", 99)])
        assert values(await member.read(3)) == numbers(0, 3)


async def test_resuming_wakes_a_poll_that_waits(consume: Consume, produce: Produce) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        await member.until_assigned(bool)
        member.consumer.pause([T0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.read, 3)
            await anyio.wait_all_tasks_blocked()
            member.consumer.resume([T0])


async def test_a_seek_drops_fetched_batches_and_reads_from_there(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(10))
    async with consume() as member:
        await member.read(10)
        member.consumer.seek(T0, 7)
        batches = await member.read(3)
        assert (batches[0].first, values(batches)) == (7, numbers(7, 10))
        member.consumer.seek(T0, 2)
        member.consumer.seek(T0, 0)
        assert (await member.read(10))[0].first == 0
        with pytest.raises(ConsumerError, match="cannot seek t-1: it is not assigned"):
            member.consumer.seek(T1, 0)


async def test_an_assigned_listener_decides_where_reading_begins(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(10))
    async with consume() as member:

        async def seek() -> None:
            member.consumer.seek(T0, 6)

        member.on_assigned = seek
        batches = await member.read(4)
        assert values(batches) == numbers(6, 10)
        assert batches[0].first == 6


async def test_the_ends_of_a_log_are_known_after_a_fetch(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(5))
    async with consume() as member:
        assert member.consumer.end_offset(T0) is None
        assert member.consumer.start_offset(T0) is None
        await member.read(5)
        assert member.consumer.end_offset(T0) == 5
        assert member.consumer.start_offset(T0) == 0
        assert member.consumer.end_offset(T1) is None


async def test_a_failed_partition_does_not_stop_the_others(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    await produce("t", numbers(5), 0)
    await produce("t", numbers(5, 8), 1)
    async with consume() as member:
        await member.until_assigned(bool)
        member.consumer.seek(T0, 100)

        async def poll_for_ever() -> None:
            while True:
                await member.consumer.poll()

        with pytest.raises(OffsetOutOfRange, match="t-0"):
            await poll_for_ever()
        member.consumer.seek(T0, 0)
        member.consumer.pause([T0])
        member.consumer.seek(T1, 0)
        assert values(await member.read(3)) == numbers(5, 8)
