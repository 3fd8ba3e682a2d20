"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where a log begins and ends."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.disk_work import do_now
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.results import LogCorrupt

Connect = Callable[[Broker], Awaitable[Any]]
Ask = Callable[..., Awaitable[Any]]
LIST_OFFSETS, PRODUCE = 2, 0
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6


@pytest.fixture
async def ask(broker: Broker, connect: Connect, batch: Callable[..., bytes]) -> Ask:
    """Asks for offsets in a log whose records 0, 1, 2 have the timestamps 1000, 1001, 2000."""
    await broker.topics.create("t")
    client = await connect(broker)
    for data in (batch(b"a", b"b", timestamp=1000), batch(b"c", timestamp=2000)):
        topics = [{"name": "t", "partition_data": [{"index": 0, "records": data}]}]
        await client.call(PRODUCE, 8, acks=-1, topic_data=topics)

    async def ask(
        timestamp: int,
        *,
        version: int = 7,
        partition: int = 0,
        isolation_level: int = 0,
        **more: int,
    ) -> Any:
        wanted = {"partition_index": partition, "timestamp": timestamp, **more}
        fields = {"isolation_level": isolation_level} if version >= 2 else {}
        topics = [{"name": "t", "partitions": [wanted]}]
        response = await client.call(LIST_OFFSETS, version, topics=topics, **fields)
        return response.topics[0].partitions[0]

    return ask


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize(
    ("timestamp", "offset", "found"),
    [
        (LATEST, 3, -1),
        (EARLIEST, 0, -1),
        (0, 0, 1000),
        (1001, 1, 1001),
        (1002, 2, 2000),
        (2000, 2, 2000),
        (2001, -1, -1),
    ],
)
async def test_offsets_are_found_by_time(
    ask: Ask, version: int, timestamp: int, offset: int, found: int
) -> None:
    answer = await ask(timestamp, version=version)
    assert (answer.error_code, answer.offset) == (ErrorCode.none, offset)
    assert answer.timestamp == found


async def test_the_record_with_the_latest_timestamp_is_found(ask: Ask) -> None:
    answer = await ask(MAX_TIMESTAMP)
    assert (answer.offset, answer.timestamp) == (2, 2000)


async def test_the_log_begins_on_this_disk(ask: Ask, broker: Broker) -> None:
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    do_now(partition.log.truncation(2))
    answer = await ask(EARLIEST_LOCAL, version=8)
    assert (answer.error_code, answer.offset, answer.leader_epoch) == (ErrorCode.none, 2, 0)


@pytest.mark.parametrize(
    ("timestamp", "version"), [(LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11), (2001, 11)]
)
async def test_times_that_are_not_found_have_no_offset_and_no_epoch(
    ask: Ask, timestamp: int, version: int
) -> None:
    answer = await ask(timestamp, version=version)
    assert (answer.error_code, answer.offset, answer.leader_epoch) == (ErrorCode.none, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (EARLIEST_PENDING_UPLOAD, 10),
        (-7, 11),
    ],
)
async def test_special_times_are_served_from_the_version_that_added_them(
    ask: Ask, timestamp: int, version: int
) -> None:
    answer = await ask(timestamp, version=version)
    assert (answer.error_code, answer.offset) == (ErrorCode.unsupported_version, -1)


async def test_read_committed_ends_at_the_last_stable_offset(ask: Ask, broker: Broker) -> None:
    assert (await ask(LATEST, isolation_level=1)).offset == 3


async def test_records_beyond_the_high_watermark_are_not_found(ask: Ask, broker: Broker) -> None:
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    partition.high_watermark = 2
    assert (await ask(LATEST)).offset == 2
    assert (await ask(2000)).offset == -1


async def test_the_start_moves_with_the_log(ask: Ask, broker: Broker) -> None:
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    do_now(partition.log.truncation(2))
    assert (await ask(EARLIEST)).offset == 2


async def test_errors_have_their_codes(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await ask(LATEST, partition=1)).error_code is ErrorCode.unknown_topic_or_partition
    stale = await ask(LATEST, current_leader_epoch=1)
    assert stale.error_code is ErrorCode.unknown_leader_epoch

    def fail(log: PartitionLog, _: int) -> None:
        raise LogCorrupt(log.directory, 0, "a bit flipped")

    monkeypatch.setattr(PartitionLog, "search", fail)
    assert (await ask(1000)).error_code is ErrorCode.kafka_storage_error


OFFSET_FOR_LEADER_EPOCH, PRODUCE = 23, 0


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_the_only_epoch_ends_at_the_end_of_the_log(
    broker: Broker, connect: Connect, batch: Callable[..., bytes], version: int
) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    records = {"index": 0, "records": batch(b"a", b"b")}
    topics = [{"name": "t", "partition_data": [records]}]
    await client.call(PRODUCE, 8, acks=-1, topic_data=topics)

    async def ask(partition: int, epoch: int, current: int = 0) -> tuple[ErrorCode, int, int]:
        wanted = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}
        response = await client.call(
            OFFSET_FOR_LEADER_EPOCH, version, topics=[{"topic": "t", "partitions": [wanted]}]
        )
        found = response.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert await ask(0, 0) == (ErrorCode.none, 0, 2)
    assert await ask(0, 1) == (ErrorCode.none, -1, -1)
    assert await ask(0, 0, current=3) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert await ask(1, 0) == (ErrorCode.unknown_topic_or_partition, -1, -1)


Start = Callable[..., Awaitable[Broker]]
PRODUCE, FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS, CREATE_PARTITIONS = 0, 1, 2, 3, 21, 37


async def produce(client: Any, data: bytes, partition: int = 0) -> int:
    records = {"index": partition, "records": data}
    topics = [{"name": "t", "partition_data": [records]}]
    response = await client.call(PRODUCE, 9, acks=1, topic_data=topics)
    (result,) = response.responses[0].partition_responses
    assert result.error_code is ErrorCode.none
    return int(result.base_offset)


# -- DeleteRecords


async def delete(client: Any, offset: int, version: int = 2, **more: Any) -> Any:
    partition = {"partition_index": 0, "offset": offset, **more}
    topics = [{"name": "t", "partitions": [partition]}]
    response = await client.call(DELETE_RECORDS, version, topics=topics)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
async def test_records_below_an_offset_are_deleted(
    broker: Broker, connect: Connect, batch: Callable[..., bytes], version: int
) -> None:
    topic = await broker.topics.create("t")
    client = await connect(broker)
    await produce(client, batch(b"a", b"b", b"c"))
    result = await delete(client, 2, version)
    assert (result.error_code, result.low_watermark) == (ErrorCode.none, 2)
    assert topic.partitions[0].log.log_start_offset == 2
    result = await delete(client, 1, version)  # they are gone already
    assert (result.error_code, result.low_watermark) == (ErrorCode.none, 2)
    earliest = [{"partition_index": 0, "timestamp": -2}]
    response = await client.call(LIST_OFFSETS, 7, topics=[{"name": "t", "partitions": earliest}])
    assert response.topics[0].partitions[0].offset == 2
    fetch = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
    response = await client.call(
        FETCH, 11, max_bytes=1000, topics=[{"topic": "t", "partitions": [fetch]}]
    )
    assert response.responses[0].partitions[0].error_code is ErrorCode.offset_out_of_range


async def test_minus_one_deletes_all_records(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    await produce(client, batch(b"a", b"b", b"c"))
    assert (await delete(client, -1)).low_watermark == 3
    assert await produce(client, batch(b"d")) == 3


async def test_deleted_records_stay_deleted_after_a_kill(
    start: Start, connect: Connect, batch: Callable[..., bytes]
) -> None:
    broker = await start()
    topic = await broker.topics.create("t")
    client = await connect(broker)
    await produce(client, batch(b"a", b"b", b"c"))
    await delete(client, 1)
    log = topic.partitions[0].log
    killed = PartitionLog.open(log.directory, log.config, clean=False)  # as it is on disk now
    assert (killed.log_start_offset, killed.next_offset) == (1, 3)
    killed.close()


@pytest.mark.parametrize("offset", [4, -2])
async def test_an_offset_that_is_not_in_the_log_is_refused(
    broker: Broker, connect: Connect, batch: Callable[..., bytes], offset: int
) -> None:
    topic = await broker.topics.create("t")
    client = await connect(broker)
    await produce(client, batch(b"a", b"b", b"c"))
    result = await delete(client, offset)
    assert (result.error_code, result.low_watermark) == (ErrorCode.offset_out_of_range, -1)
    assert topic.partitions[0].log.log_start_offset == 0


async def test_a_missing_partition_is_an_error(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    result = await delete(client, 0, partition_index=7)
    assert (result.partition_index, result.error_code) == (
        7,
        ErrorCode.unknown_topic_or_partition,
    )


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("compact", ErrorCode.policy_violation),
        ("compact,delete", ErrorCode.none),
        ("", ErrorCode.none),
    ],
)
async def test_records_of_a_topic_that_is_only_compacted_stay(
    broker: Broker, connect: Connect, policy: str, code: ErrorCode
) -> None:
    await broker.topics.create("t", 1, {"cleanup.policy": policy})
    client = await connect(broker)
    assert (await delete(client, -1)).error_code is code
