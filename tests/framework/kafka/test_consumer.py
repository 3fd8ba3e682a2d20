"""Reading from a running broker, by both of the consumer's ways to fetch."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.protocol.fetch import FetchRequest

from framework.consumer import CommitOffset
from framework.errors import ConsumerError, CorruptRecords, OffsetOutOfRange
from framework.kafka.fetch import BatchFetcher
from framework.record import Batch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from broker import Broker

    Produce = Callable[..., Awaitable[int]]
    CreateTopic = Callable[..., Awaitable[None]]
    Consume = Callable[..., AbstractAsyncContextManager[Any]]

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
ONLY_BATCHES = pytest.mark.parametrize("fetcher", ["batches"], indirect=True)


def segment_with(directory: Path, content: bytes) -> Path:
    (found,) = (path for path in directory.rglob("*.log") if content in path.read_bytes())
    return found


def values(batches: Iterable[Batch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.records["value"].to_pylist()]


def numbers(*bounds: int) -> list[bytes | None]:
    return [b"%d" % n for n in range(*bounds)]


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


@ONLY_BATCHES
async def test_fetches_wait_for_the_poll_but_not_for_paused_partitions(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    """So that one response brings all partitions, and none waits long behind an empty one."""
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(bool)
        requests: list[tuple[set[int], int]] = []
        sent = anyio.Event()
        client: Any = member.consumer._consumer._client
        send = client.send

        async def recorded(node: int, request: Any, **options: Any) -> Any:
            if isinstance(request, FetchRequest):
                asked = {number for _, numbers in request.topics for number, *_ in numbers}
                requests.append((asked, request._max_wait_ms))
                sent.set()
            return await send(node, request, **options)

        client.send = recorded
        await produce("t", numbers(3), 0)
        await anyio.sleep(0.2)  # the records arrive; then no request should go out
        held = member.consumer._consumer._fetcher._records
        assert T0 in held
        del requests[:]
        await anyio.sleep(0.2)
        assert requests == []
        sent = anyio.Event()
        member.consumer.pause([T0])
        await sent.wait()
        assert T0 in held
        assert requests[0] == ({1}, 50)
        member.consumer.resume([T0])
        assert values(await member.read(3)) == numbers(3)
        await produce("t", numbers(3), 0)
        await member.read(3)
        assert requests[-1] == ({0, 1}, 500)


async def test_resuming_wakes_a_poll_that_waits(consume: Consume, produce: Produce) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        await member.until_assigned(bool)
        member.consumer.pause([T0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.read, 3)
            await anyio.wait_all_tasks_blocked()
            member.consumer.resume([T0])


@ONLY_BATCHES
async def test_what_was_fetched_for_a_paused_partition_is_not_fetched_again(
    consume: Consume, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        fetched: list[int] = []
        arrived = anyio.Event()
        decoder = member.consumer._fetcher._decoder
        decode = decoder.batch

        def counted(topic: str, partition: int, data: bytes, first: int, aborted: Any) -> Any:
            if data:
                fetched.append(first)
                arrived.set()
            return decode(topic, partition, data, first, aborted)

        monkeypatch.setattr(decoder, "batch", counted)
        await arrived.wait()
        await anyio.lowlevel.checkpoint()
        member.consumer.pause([T0])
        member.consumer.resume([T0])
        member.consumer.pause([T0])
        with anyio.move_on_after(0.3):
            assert not await member.consumer.poll()
        member.consumer.resume([T0])
        assert values(await member.read(3)) == numbers(3)
        assert fetched == [0]


async def test_a_seek_drops_what_was_fetched_and_reads_from_there(
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
    consume: Consume, produce: Produce, fetcher: type
) -> None:
    await produce("t", numbers(5))
    async with consume() as member:
        assert member.consumer.end_offset(T0) is None
        assert member.consumer.start_offset(T0) is None
        await member.read(5)
        assert member.consumer.end_offset(T0) == 5
        assert member.consumer.start_offset(T0) == (0 if fetcher is BatchFetcher else None)
        assert member.consumer.end_offset(T1) is None


async def test_a_new_group_may_want_only_new_records(consume: Consume, produce: Produce) -> None:
    await produce("t", numbers(5))
    async with consume(auto_offset_reset="latest", fetch_max_wait=0.05) as member:
        await member.until_assigned(bool)
        while member.consumer.end_offset(T0) is None:  # the position is settled by the first fetch
            with anyio.move_on_after(0.05):
                assert not await member.consumer.poll()
        await produce("t", numbers(5, 8))
        assert values(await member.read(3)) == numbers(5, 8)


async def test_a_topic_that_comes_to_match_a_pattern_is_read_from_its_beginning(
    consume: Consume, produce: Produce
) -> None:
    await produce("t0", numbers(3))
    async with consume(
        topics=(), topic_pattern="t.", auto_offset_reset="latest", metadata_max_age=0.2
    ) as member:
        await member.until_assigned(bool)
        await produce("t1", numbers(3, 8))
        batches = await member.read(5)
    assert {batch.topic for batch in batches} == {"t1"}
    assert values(batches) == numbers(3, 8)


async def test_without_a_policy_a_missing_offset_is_an_error_that_names_it(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(5))
    async with consume(auto_offset_reset="error") as member:
        with pytest.raises(
            OffsetOutOfRange,
            match=r"t-0: group g has committed no offset; the log has offsets 0 to 5 .*auto_offset_reset",
        ):
            await member.consumer.poll()
        member.consumer.seek(T0, 100)
        with pytest.raises(
            OffsetOutOfRange,
            match=r"t-0: offset 100 is not on the broker .*; the log has offsets 0 to 5 .*kmr offsets reset",
        ):
            await member.consumer.poll()
        member.consumer.seek(T0, 3)
        assert values(await member.read(2)) == numbers(3, 5)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", (5, 8)), ("latest", (8, 11))])
async def test_with_a_policy_an_offset_below_the_log_is_mended_and_told(
    broker: Broker, consume: Consume, produce: Produce, policy: str, expected: tuple[int, int]
) -> None:
    await produce("t", numbers(8))
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.delete_records({T0: RecordsToDelete(5)})
    await admin.close()
    async with consume(on_out_of_range=policy) as member:
        await member.read(3)
        member.consumer.seek(T0, 2)
        with structlog.testing.capture_logs() as logs:
            async with anyio.create_task_group() as tasks:

                async def feed() -> None:
                    while not logs:
                        await anyio.lowlevel.checkpoint()
                    await anyio.sleep(0.2)  # the new position is settled
                    await produce("t", numbers(8, 11))

                if policy == "latest":
                    tasks.start_soon(feed)
                assert values(await member.consumer.poll()) == numbers(*expected)
        (entry,) = logs
        assert entry["log_level"] == "error"
        assert entry["problem"] == "offset 2 is not on the broker (any more)"


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


@ONLY_BATCHES
async def test_damaged_records_are_an_error_that_says_where(
    consume: Consume, produce: Produce, tmp_path: Path
) -> None:
    await produce("t", numbers(5))
    await produce("t", [b"precious" * 20])
    segment = segment_with(tmp_path, b"precious")
    raw = segment.read_bytes()
    batch_at = raw.rindex((5).to_bytes(8, "big"), 0, raw.index(b"precious"))
    segment.write_bytes(raw.replace(b"preciousprecious", b"preciousPrecious", 1))
    async with consume() as member:
        assert values(await member.read(5)) == numbers(5)  # those before it are not lost
        for _ in range(2):
            with pytest.raises(CorruptRecords, match=r"t-0: .* offset 5 is damaged: its checksum"):
                await member.consumer.poll()
        segment.write_bytes(raw[: batch_at + 57] + b"\xff" * 4 + raw[batch_at + 61 :])
        member.consumer.seek(T0, 0)
        assert values(await member.read(5)) == numbers(5)
        for _ in range(2):
            with pytest.raises(CorruptRecords, match=r"offset 5 .* its record count is impossible"):
                await member.consumer.poll()
        segment.write_bytes(raw)
        assert values(await member.read(1)) == [b"precious" * 20]


async def test_topics_may_be_chosen_by_a_pattern(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    for topic in ("eu.orders", "us.orders", "us.orders.old"):
        await create_topic(topic)
        await produce(topic, [topic.encode()])
    async with consume(topics=(), topic_pattern=r"[a-z]+\.orders") as member:
        assert set(values(await member.read(2))) == {b"eu.orders", b"us.orders"}
