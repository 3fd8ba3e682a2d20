from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker
from broker.log.errors import LogCorrupt
from broker.log.partition import PartitionLog

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
    partition.log.truncate_start(2)
    answer = await ask(EARLIEST_LOCAL, version=8)
    assert (answer.error_code, answer.offset, answer.leader_epoch) == (ErrorCode.none, 2, 0)


@pytest.mark.parametrize(
    ("timestamp", "version"), [(LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11), (2001, 11)]
)
async def test_what_is_nowhere_has_no_offset_and_no_epoch(
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
async def test_special_times_are_served_from_the_version_that_brought_them(
    ask: Ask, timestamp: int, version: int
) -> None:
    answer = await ask(timestamp, version=version)
    assert (answer.error_code, answer.offset) == (ErrorCode.unsupported_version, -1)


async def test_read_committed_ends_at_the_last_stable_offset(ask: Ask, broker: Broker) -> None:
    assert (await ask(LATEST, isolation_level=1)).offset == 3


async def test_what_is_not_shown_yet_is_not_found(ask: Ask, broker: Broker) -> None:
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    partition.high_watermark = 2
    assert (await ask(LATEST)).offset == 2
    assert (await ask(2000)).offset == -1


async def test_the_start_moves_with_the_log(ask: Ask, broker: Broker) -> None:
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    partition.log.truncate_start(2)
    assert (await ask(EARLIEST)).offset == 2


async def test_errors_name_what_is_wrong(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await ask(LATEST, partition=1)).error_code is ErrorCode.unknown_topic_or_partition
    stale = await ask(LATEST, current_leader_epoch=1)
    assert stale.error_code is ErrorCode.unknown_leader_epoch

    def fail(log: PartitionLog, _: int) -> None:
        raise LogCorrupt(log.directory, 0, "a bit flipped")

    monkeypatch.setattr(PartitionLog, "offset_for_timestamp", fail)
    assert (await ask(1000)).error_code is ErrorCode.kafka_storage_error
