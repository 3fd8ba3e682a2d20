from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker
from broker.log.partition import PartitionLog

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
PRODUCE, FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS, CREATE_PARTITIONS = 0, 1, 2, 3, 21, 37


async def produce(client: Any, data: bytes, partition: int = 0) -> int:
    records = {"index": partition, "records": data}
    topics = [{"name": "t", "partition_data": [records]}]
    response = await client.call(PRODUCE, 9, acks=1, topic_data=topics)
    (result,) = response.responses[0].partition_responses
    assert result.error_code is ErrorCode.none
    return int(result.base_offset)


# -- CreatePartitions


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_gets_more_partitions(
    broker: Broker, connect: Connect, batch: Callable[..., bytes], version: int
) -> None:
    created = await broker.topics.create("t", 1, {"retention.ms": "1000"})
    client = await connect(broker)
    await produce(client, batch(b"old"))
    wanted = {"name": "t", "count": 3, "assignments": None}
    response = await client.call(CREATE_PARTITIONS, version, topics=[wanted])
    (result,) = response.results
    assert (result.name, result.error_code) == ("t", ErrorCode.none)
    grown = broker.topics.get("t")
    assert grown is not None
    assert grown.topic_id == created.topic_id
    assert grown.partitions[0] is created.partitions[0]
    assert [each.log.config.retention_ms for each in grown.partitions] == [1000] * 3
    assert broker.topics.by_id(created.topic_id) is grown
    metadata = await client.call(METADATA, 9, topics=[{"name": "t"}])
    assert len(metadata.topics[0].partitions) == 3
    assert await produce(client, batch(b"new"), 2) == 0


async def test_added_partitions_are_there_after_a_restart(
    start: Start, connect: Connect, batch: Callable[..., bytes]
) -> None:
    broker = await start()
    await broker.topics.create("t")
    client = await connect(broker)
    topics = [{"name": "t", "count": 2, "assignments": [{"broker_ids": (0,)}]}]
    response = await client.call(CREATE_PARTITIONS, 3, topics=topics)
    assert response.results[0].error_code is ErrorCode.none
    await produce(client, batch(b"a", b"b"), 1)
    await client.close()
    await broker.__aexit__(None, None, None)
    again = await start()
    partition = again.topics.partition("t", 1)
    assert partition is not None
    assert partition.high_watermark == 2


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("no", 3, None, ErrorCode.unknown_topic_or_partition),
        ("t", 2, None, ErrorCode.invalid_partitions),
        ("t", 1, None, ErrorCode.invalid_partitions),
        ("t", -1, None, ErrorCode.invalid_partitions),
        ("t", 2**31 - 1, None, ErrorCode.invalid_partitions),
        ("t", 3, [], ErrorCode.invalid_replica_assignment),
        ("t", 3, [{"broker_ids": (1,)}], ErrorCode.invalid_replica_assignment),
        ("t", 3, [{"broker_ids": (0, 1)}], ErrorCode.invalid_replica_assignment),
        ("t", 3, [{"broker_ids": ()}], ErrorCode.invalid_replica_assignment),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_partitions_that_cannot_be_are_refused_and_the_others_added(
    broker: Broker,
    connect: Connect,
    name: str,
    count: int,
    assignments: Any,
    code: ErrorCode,
    validate_only: bool,
) -> None:
    for topic in ("t", "good"):
        await broker.topics.create(topic, 2)
    client = await connect(broker)
    topics = [
        {"name": name, "count": count, "assignments": assignments},
        {"name": "good", "count": 3, "assignments": None},
    ]
    response = await client.call(CREATE_PARTITIONS, 3, topics=topics, validate_only=validate_only)
    refused, good = response.results
    assert refused.error_code is code
    assert refused.error_message
    assert good.error_code is ErrorCode.none
    counts = {each.name: len(each.partitions) for each in broker.topics}
    assert counts == {"t": 2, "good": 2 if validate_only else 3}


async def test_a_topic_that_is_there_twice_is_refused(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    topics = [{"name": "t", "count": count, "assignments": None} for count in (2, 3)]
    response = await client.call(CREATE_PARTITIONS, 3, topics=topics)
    assert [each.error_code for each in response.results] == [ErrorCode.invalid_request] * 2


async def test_a_disk_that_fails_leaves_the_topic_as_it_was(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    created = await broker.topics.create("t")
    client = await connect(broker)
    topics = [{"name": "t", "count": 3, "assignments": None}]
    with monkeypatch.context() as patch:
        patch.setattr("broker.topics.store.write_checked", fail)
        response = await client.call(CREATE_PARTITIONS, 3, topics=topics)
    assert response.results[0].error_code is ErrorCode.kafka_storage_error
    assert broker.topics.get("t") is created
    directory = created.partitions[0].log.directory.parent
    assert sorted(each.name for each in directory.iterdir()) == ["0", "topic.json"]
    response = await client.call(CREATE_PARTITIONS, 3, topics=topics)
    assert response.results[0].error_code is ErrorCode.none


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


async def test_what_was_deleted_stays_deleted_after_a_kill(
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


async def test_a_partition_that_is_not_there_is_named(broker: Broker, connect: Connect) -> None:
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
