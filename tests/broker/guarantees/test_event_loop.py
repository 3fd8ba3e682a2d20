"""No request blocks the event loop: syncs run in other threads, and steps are short."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from struct import pack_into
from typing import Any
from uuid import UUID

import cramjam
import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.records import (
    CODECS,
    CRC_START,
    BatchHeader,
    NewRecord,
    build_batch,
    encode_batch,
    split_batches,
)
from tests.broker.loop_guard import LoopGuard

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Batch = Callable[..., bytes]

pytestmark = pytest.mark.loop_guard
PRODUCE, LIST_OFFSETS, DELETE_RECORDS, INIT_PRODUCER_ID = 0, 2, 21, 22


def test_the_guard_sees_a_sync_and_a_long_step_of_a_broker_only(tmp_path: Path) -> None:
    guard = LoopGuard(0.01)

    def sync() -> None:
        with (tmp_path / "file").open("wb") as file:
            os.fsync(file.fileno())
        (tmp_path / "file").unlink(missing_ok=True)

    def work() -> None:
        sum(range(2_000_000))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for each in (sync, work):
            loop.call_soon(each)
            await asyncio.to_thread(each)
        assert guard.violations == []
        with guard.starting():
            for each in (sync, work):
                loop.call_soon(loop.call_soon, each)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        guard.install(patch)
        asyncio.run(run())
    assert len(guard.violations) == 3
    assert "os.fsync on the thread of the loop" in guard.violations[0]
    assert "os.unlink on the thread of the loop" in guard.violations[1]
    assert "ms in one step" in guard.violations[2]


@pytest.mark.parametrize("transactional_id", [None, "t"])
async def test_producer_ids_are_reserved_elsewhere(
    broker: Broker, connect: Connect, transactional_id: str | None
) -> None:
    client = await connect(broker)
    answer = await client.call(
        INIT_PRODUCER_ID,
        4,
        transactional_id=transactional_id,
        transaction_timeout=timedelta(minutes=1),
    )
    assert answer.producer_id == 0


async def test_a_log_that_shrinks_is_synced_elsewhere(
    broker: Broker, connect: Connect, batch: Batch
) -> None:
    topic = await broker.topics.create("t", 1)
    log = topic.partitions[0].log
    client = await connect(broker)
    produced = {"index": 0, "records": batch(b"x")}
    for _ in range(2):
        await client.call(
            PRODUCE, 8, acks=-1, topic_data=[{"name": "t", "partition_data": [produced]}]
        )
        log.roll()
    deleted = {"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}
    answer = await client.call(DELETE_RECORDS, 2, topics=[deleted])
    assert answer.topics[0].partitions[0].low_watermark == log.log_start_offset == 1
    assert log.segment_count == 2


@pytest.mark.loop_guard(milliseconds=50)
@pytest.mark.parametrize("timestamp", [1_700_000_099_999, -3])
async def test_a_search_by_time_decompresses_elsewhere(
    broker: Broker, connect: Connect, batch: Batch, timestamp: int, loop_guard: LoopGuard
) -> None:
    topic = await broker.topics.create("t", 1)
    log = topic.partitions[0].log
    data = bytearray(batch(*[b"x"] * 100_000, codec="gzip"))
    log.append(data, split_batches(data), now_ms=1_700_000_000_000)
    log.flush_pending()
    topic.partitions[0].advance(log.next_offset, len(data))
    client = await connect(broker)
    await client.call(LIST_OFFSETS, 7, **list_offsets(1))  # imports its messages
    loop_guard.violations.clear()
    asked = {"partition_index": 0, "timestamp": timestamp}
    answer = await client.call(LIST_OFFSETS, 7, topics=[{"name": "t", "partitions": [asked]}])
    assert answer.topics[0].partitions[0].offset == 99_999


def bomb(megabytes: int) -> bytes:
    """A batch of one record of so many megabytes, which takes a few kilobytes."""
    compressor = cramjam.zstd.Compressor()
    for _ in range(megabytes):
        compressor.compress(bytes(1_000_000))
    header = BatchHeader(record_count=1, max_timestamp=1_700_000_000_000)
    batch = encode_batch(header, bytes(compressor.finish()))
    pack_into(">h", batch, 21, CODECS["zstd"])
    pack_into(">I", batch, 17, crc32c(batch[CRC_START:]))
    return bytes(batch)


@pytest.mark.loop_guard(milliseconds=50)
@pytest.mark.parametrize(
    ("settings", "make", "expected"),
    [
        ({"compression.type": "gzip"}, lambda: bomb(250), ErrorCode.message_too_large),
        ({"cleanup.policy": "compact"}, lambda: bomb(250), ErrorCode.message_too_large),
        ({"message.timestamp.before.max.ms": "1"}, lambda: bomb(10), ErrorCode.corrupt_message),
        ({"compression.type": "gzip"}, lambda: bomb(10), ErrorCode.none),
        (
            {"cleanup.policy": "compact"},
            lambda: build_batch([NewRecord(b"k", b"")] * 400_000, codec="zstd"),
            ErrorCode.none,
        ),
        (
            {"cleanup.policy": "compact"},
            lambda: build_batch([NewRecord(None, b"")] * 400_000, codec="zstd"),
            ErrorCode.invalid_record,
        ),
        (
            {},
            lambda: build_batch([NewRecord(b"k", b"", (), 2**62)] * 400_000, codec="zstd"),
            ErrorCode.invalid_timestamp,
        ),
    ],
)
async def test_batches_are_validated_elsewhere_and_within_a_limit(
    broker: Broker,
    connect: Connect,
    batch: Batch,
    loop_guard: LoopGuard,
    settings: dict[str, str],
    make: Callable[[], bytes],
    expected: ErrorCode,
) -> None:
    await broker.topics.create("t", 1, settings)
    await broker.topics.create("other", 1)
    client, other = await connect(broker), await connect(broker)
    hostile = bytes(make())
    assert len(hostile) < 1_000_000
    for each in (client, other):
        await each.call(PRODUCE, 8, acks=-1, topic_data=[produced("other", batch(b"x"))])
    loop_guard.violations.clear()
    requests = [
        client.message(PRODUCE, 8, acks=-1, topic_data=[produced("other", batch(b"x"))]),
        client.message(PRODUCE, 8, acks=-1, topic_data=[produced("t", hostile)]),
        client.message(PRODUCE, 8, acks=-1, topic_data=[produced("other", batch(b"x"))]),
    ]
    ids = [await client.send(each) for each in requests]
    await other.call(PRODUCE, 8, acks=-1, topic_data=[produced("other", batch(b"x"))])
    answers = [await client.receive(*each) for each in zip(requests, ids, strict=True)]
    results = [each.responses[0].partition_responses[0] for each in answers]
    assert [each.error_code for each in results] == [ErrorCode.none, expected, ErrorCode.none]
    assert len(results[1].record_errors) <= 1000


@pytest.mark.loop_guard(milliseconds=50)
@pytest.mark.parametrize("timestamp", [1, -3])
async def test_a_search_by_time_in_a_bomb_finds_its_batch(
    broker: Broker, connect: Connect, timestamp: int, loop_guard: LoopGuard
) -> None:
    await broker.topics.create("t", 1)
    client = await connect(broker)
    answer = await client.call(PRODUCE, 8, acks=-1, topic_data=[produced("t", bomb(250))])
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    await client.call(LIST_OFFSETS, 7, **list_offsets(1))  # imports its messages
    loop_guard.violations.clear()
    asked = {"partition_index": 0, "timestamp": timestamp}
    answer = await client.call(LIST_OFFSETS, 7, topics=[{"name": "t", "partitions": [asked]}])
    assert answer.topics[0].partitions[0].offset == 0


def produced(topic: str, records: bytes) -> dict[str, Any]:
    return {"name": topic, "partition_data": [{"index": 0, "records": records}]}


MANY = 9_000


def list_offsets(count: int) -> dict[str, Any]:
    partitions = [{"partition_index": each, "timestamp": -1} for each in range(count)]
    return {"topics": [{"name": "t", "partitions": partitions}]}


def offset_fetch(count: int) -> dict[str, Any]:
    topics = [{"name": "t", "partition_indexes": list(range(count))}]
    return {"groups": [{"group_id": "g", "topics": topics}]}


def offset_commit(count: int) -> dict[str, Any]:
    partitions = [{"partition_index": each, "committed_offset": 1} for each in range(count)]
    topics = [{"name": "t", "partitions": partitions}]
    return {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics}


def metadata(count: int) -> dict[str, Any]:
    topics = [{"name": f"topic-{each}"} for each in range(count)]
    return {"topics": topics, "allow_auto_topic_creation": False}


def describe_configs(count: int) -> dict[str, Any]:
    return {"resources": [{"resource_type": 2, "resource_name": "t"}] * (count // 20)}


def fetch(count: int) -> dict[str, Any]:
    partitions = [{"partition": each, "partition_max_bytes": 1} for each in range(count)]
    return {
        "topics": [{"topic": "t", "partitions": partitions}],
        "session_epoch": -1,
        "max_bytes": 1,
    }


def by_unknown_id(fetch: bool) -> Callable[[int], dict[str, Any]]:
    """Offsets of a topic that is not there: each partition is refused."""

    def fields(count: int) -> dict[str, Any]:
        if fetch:
            topic = {"topic_id": UUID(int=5), "partition_indexes": list(range(count))}
            return {"groups": [{"group_id": "g", "topics": [topic]}]}
        partitions = [{"partition_index": each} for each in range(count)]
        return offset_commit(0) | {"topics": [{"topic_id": UUID(int=5), "partitions": partitions}]}

    return fields


LARGE = {
    "Fetch": (1, 12, fetch),
    "ListOffsets": (2, 7, list_offsets),
    "OffsetFetch": (9, 8, offset_fetch),
    "OffsetCommit": (8, 8, offset_commit),
    "OffsetFetch by id": (9, 10, by_unknown_id(fetch=True)),
    "OffsetCommit by id": (8, 10, by_unknown_id(fetch=False)),
    "Metadata": (3, 12, metadata),
    "DescribeConfigs": (32, 4, describe_configs),
}


@pytest.mark.loop_guard(milliseconds=50)
@pytest.mark.parametrize("name", LARGE)
async def test_a_request_with_many_elements_lets_others_have_the_loop(
    broker: Broker, connect: Connect, name: str, loop_guard: LoopGuard
) -> None:
    await broker.topics.create("t", 3)
    key, version, fields = LARGE[name]
    client = await connect(broker)
    await client.call(key, version, **fields(20))  # imports its messages
    loop_guard.violations.clear()
    first = client.message(key, version, **fields(MANY))
    second = client.message(key, version, **fields(20))
    ids = [await client.send(each) for each in (first, second)]
    for request, correlation_id in zip((first, second), ids, strict=True):
        await client.receive(request, correlation_id)


@pytest.mark.loop_guard(milliseconds=50)
async def test_a_produce_request_of_many_partitions_lets_others_have_the_loop(
    broker: Broker, connect: Connect, batch: Batch, loop_guard: LoopGuard
) -> None:
    await broker.topics.create("t", 1)
    client = await connect(broker)
    partitions = [{"index": 0, "records": batch(b"x%d" % each)} for each in range(MANY)]
    topics = [{"name": "t", "partition_data": partitions}]
    loop_guard.violations.clear()
    answer = await client.call(PRODUCE, 8, acks=-1, topic_data=topics)
    results = answer.responses[0].partition_responses
    assert [each.base_offset for each in results] == list(range(MANY))
    log = broker.topics.get("t").partitions[0].log  # type: ignore[union-attr]
    assert log.next_offset == MANY
    assert b"x%d" % (MANY - 1) in bytes(log.read(MANY - 1, 1000, min_one=True).data)


async def test_a_request_has_fewer_elements_than_would_keep_others_waiting(
    broker: Broker, connect: Connect
) -> None:
    partitions = [{"index": 0, "records": None}] * 25_000
    client = await connect(broker)
    request = client.message(
        PRODUCE, 8, acks=-1, topic_data=[{"name": "t", "partition_data": partitions}]
    )
    await client.send(request)
    assert await client.is_closed_by_broker()


async def test_a_broker_of_more_partitions_takes_requests_with_more_elements(
    start: Start, connect: Connect
) -> None:
    client = await connect(await start(max_partitions=7_000))
    answer = await client.call(LIST_OFFSETS, 7, **list_offsets(20_500))
    assert len(answer.topics[0].partitions) == 20_500
