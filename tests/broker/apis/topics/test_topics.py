"""CreateTopics, DeleteTopics, CreatePartitions."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.partition import PartitionLog

Connect = Callable[[Broker], Awaitable[Any]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
CREATE_TOPICS, DELETE_TOPICS, FETCH, OFFSET_COMMIT, OFFSET_FETCH = 19, 20, 1, 8, 9


def wanted(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, **more}


@pytest.mark.parametrize("version", range(2, 8))
async def test_topics_are_created_with_their_settings(
    broker: Broker, connect: Connect, version: int
) -> None:
    client = await connect(broker)
    setting = {"name": "retention.ms", "value": "1000"}
    topics = [wanted("a", num_partitions=3, configs=[setting]), wanted("b")]
    response = await client.call(CREATE_TOPICS, version, topics=topics)
    assert [each.error_code for each in response.topics] == [ErrorCode.none] * 2
    topic = broker.topics.get("a")
    assert topic is not None
    assert (len(topic.partitions), topic.config.retention_ms) == (3, 1000)
    if version >= 5:
        shown = {each.name: each for each in response.topics[0].configs}
        assert (response.topics[0].num_partitions, response.topics[0].replication_factor) == (3, 1)
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("1000", 1)
    if version >= 7:
        assert response.topics[0].topic_id == topic.topic_id


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (wanted("a/b"), ErrorCode.invalid_topic_exception),
        (wanted("__consumer_offsets"), ErrorCode.topic_already_exists),
        (wanted("there"), ErrorCode.topic_already_exists),
        (wanted("t", num_partitions=0), ErrorCode.invalid_partitions),
        (wanted("t", num_partitions=-2), ErrorCode.invalid_partitions),
        (wanted("t", num_partitions=2**31 - 1), ErrorCode.invalid_partitions),
        (wanted("t", replication_factor=3), ErrorCode.invalid_replication_factor),
        (wanted("t", replication_factor=0), ErrorCode.invalid_replication_factor),
        (wanted("t", configs=[{"name": "x", "value": "1"}]), ErrorCode.invalid_config),
        (
            wanted("t", assignments=[{"partition_index": 0, "broker_ids": (0,)}]),
            ErrorCode.invalid_request,
        ),
        (
            wanted(
                "t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[{"partition_index": 0, "broker_ids": (0, 1)}],
            ),
            ErrorCode.invalid_replica_assignment,
        ),
        (
            wanted(
                "t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[{"partition_index": 1, "broker_ids": (0,)}],
            ),
            ErrorCode.invalid_replica_assignment,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_invalid_topics_are_refused_with_a_reason(
    broker: Broker, connect: Connect, topic: Any, code: ErrorCode, validate_only: bool
) -> None:
    await broker.topics.create("there")
    client = await connect(broker)
    response = await client.call(
        CREATE_TOPICS, 7, topics=[topic, wanted("good")], validate_only=validate_only
    )
    refused, good = response.topics
    assert refused.error_code is code
    assert refused.error_message
    assert good.error_code is ErrorCode.none
    names = {each.name for each in broker.topics}
    assert names == ({"there"} if validate_only else {"there", "good"})


async def test_minus_one_means_the_default(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    topics = [wanted("t", num_partitions=-1, replication_factor=-1)]
    response = await client.call(CREATE_TOPICS, 7, topics=topics)
    assert response.topics[0].num_partitions == 1


async def test_replicas_may_be_assigned_to_this_node(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    assignments = [{"partition_index": index, "broker_ids": (0,)} for index in (1, 0)]
    topics = [wanted("t", num_partitions=-1, replication_factor=-1, assignments=assignments)]
    response = await client.call(CREATE_TOPICS, 7, topics=topics)
    assert response.topics[0].num_partitions == 2


async def test_a_name_listed_twice_is_refused(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    response = await client.call(CREATE_TOPICS, 7, topics=[wanted("t"), wanted("t")])
    assert [each.error_code for each in response.topics] == [ErrorCode.invalid_request] * 2
    assert broker.topics.get("t") is None


async def test_a_disk_that_fails_is_a_storage_error(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    client = await connect(broker)
    await broker.topics.create("there")
    monkeypatch.setattr(PartitionLog, "open", fail)
    created = await client.call(CREATE_TOPICS, 7, topics=[wanted("t")])
    assert created.topics[0].error_code is ErrorCode.kafka_storage_error
    monkeypatch.setattr(PartitionLog, "delete", fail)
    deleted = await client.call(DELETE_TOPICS, 6, topics=[{"name": "there"}])
    assert deleted.responses[0].error_code is ErrorCode.kafka_storage_error


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(broker: Broker, connect: Connect, version: int) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    response = await client.call(DELETE_TOPICS, version, topic_names=("t", "unknown"))
    assert [(each.name, each.error_code) for each in response.responses] == [
        ("t", ErrorCode.none),
        ("unknown", ErrorCode.unknown_topic_or_partition),
    ]
    assert broker.topics.get("t") is None


async def test_topics_are_deleted_by_id(broker: Broker, connect: Connect) -> None:
    topic = await broker.topics.create("t")
    client = await connect(broker)
    unknown = uuid4()
    topics = [{"name": None, "topic_id": each} for each in (topic.topic_id, unknown)]
    response = await client.call(DELETE_TOPICS, 6, topics=[*topics, {"name": "no"}])
    assert [(each.name, each.error_code) for each in response.responses] == [
        ("t", ErrorCode.none),
        (None, ErrorCode.unknown_topic_id),
        ("no", ErrorCode.unknown_topic_or_partition),
    ]
    assert broker.topics.get("t") is None


async def test_deleting_a_topic_by_name_returns_its_id(broker: Broker, connect: Connect) -> None:
    topic = await broker.topics.create("t")
    client = await connect(broker)
    response = await client.call(DELETE_TOPICS, 6, topics=[{"name": "t"}, {"name": "no"}])
    assert [each.topic_id for each in response.responses] == [topic.topic_id, None]


async def test_a_topic_to_delete_is_named_in_one_way(broker: Broker, connect: Connect) -> None:
    topic = await broker.topics.create("t")
    client = await connect(broker)
    both, neither = {"name": "t", "topic_id": topic.topic_id}, {"name": None}
    response = await client.call(DELETE_TOPICS, 6, topics=[both, neither])
    assert [each.error_code for each in response.responses] == [ErrorCode.invalid_request] * 2
    assert broker.topics.get("t") is topic


async def test_a_topic_listed_twice_is_not_deleted(broker: Broker, connect: Connect) -> None:
    topic = await broker.topics.create("t")
    client = await connect(broker)
    twice = [{"name": "t"}, {"name": None, "topic_id": topic.topic_id}]
    response = await client.call(DELETE_TOPICS, 6, topics=twice)
    assert [each.error_code for each in response.responses] == [ErrorCode.invalid_request] * 2
    response = await client.call(DELETE_TOPICS, 5, topic_names=("t", "t"))
    assert [each.error_code for each in response.responses] == [ErrorCode.invalid_request] * 2
    assert broker.topics.get("t") is topic


async def test_a_deleted_topic_takes_its_committed_offsets_along(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    for _ in "12":
        await broker.topics.create("t")
        partition = {"partition_index": 0, "partition_indexes": (0,)}
        asked = [{"name": "t", "partition_indexes": (0,)}]
        before = await client.call(OFFSET_FETCH, 7, group_id="g", topics=asked)
        assert before.topics[0].partitions[0].committed_offset == -1
        partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [partition]}]
        committed = await client.call(
            OFFSET_COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1, topics=topics
        )
        assert committed.topics[0].partitions[0].error_code is ErrorCode.none
        await client.call(DELETE_TOPICS, 6, topics=[{"name": "t"}])


async def test_deleting_a_topic_answers_its_long_polls(
    broker: Broker, connect: Connect, until: Until
) -> None:
    topic = await broker.topics.create("t")
    client, other = await connect(broker), await connect(broker)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    poll = client.message(
        FETCH,
        11,
        max_wait=timedelta(seconds=600),
        min_bytes=1,
        max_bytes=1000,
        topics=[{"topic": "t", "partitions": [partition]}],
    )
    correlation_id = await client.send(poll)
    await until(lambda: bool(topic.partitions[0].watches))
    await other.call(DELETE_TOPICS, 6, topics=[{"name": "t"}])
    response = await client.receive(poll, correlation_id)
    found = response.responses[0].partitions[0]
    assert found.error_code is ErrorCode.unknown_topic_or_partition


async def test_a_real_client_creates_and_deletes_topics(broker: Broker) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("t", 2, 1)])
        assert await admin.list_topics() == ["t"]
        await admin.delete_topics(["t"])
        assert await admin.list_topics() == []
    finally:
        await admin.close()


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ([("retention.ms", "1"), ("retention.ms", "1")], ErrorCode.invalid_request),
        ([("retention.ms", None)], ErrorCode.invalid_config),
    ],
)
async def test_ambiguous_settings_are_refused(
    broker: Broker, connect: Connect, configs: list[tuple[str, str | None]], code: ErrorCode
) -> None:
    client = await connect(broker)
    settings = [{"name": name, "value": value} for name, value in configs]
    response = await client.call(CREATE_TOPICS, 7, topics=[wanted("t", configs=settings)])
    assert response.topics[0].error_code is code


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
async def test_impossible_partitions_are_refused_and_the_others_added(
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


async def test_a_topic_listed_twice_gets_no_partitions(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    topics = [{"name": "t", "count": count, "assignments": None} for count in (2, 3)]
    response = await client.call(CREATE_PARTITIONS, 3, topics=topics)
    assert [each.error_code for each in response.results] == [ErrorCode.invalid_request] * 2


async def test_a_failing_disk_leaves_the_topic_unchanged(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    created = await broker.topics.create("t")
    client = await connect(broker)
    topics = [{"name": "t", "count": 3, "assignments": None}]
    with monkeypatch.context() as patch:
        patch.setattr("kmr.broker.topics.topics.write_checked", fail)
        response = await client.call(CREATE_PARTITIONS, 3, topics=topics)
    assert response.results[0].error_code is ErrorCode.kafka_storage_error
    assert broker.topics.get("t") is created
    response = await client.call(CREATE_PARTITIONS, 3, topics=topics)  # uses the empty logs
    assert response.results[0].error_code is ErrorCode.none
