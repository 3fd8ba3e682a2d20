"""What only some clients' admin APIs can ask of the broker."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import admin
from kafka.admin import ConfigResource, ConfigResourceType
from kio.schema.errors import ErrorCode

from .clients.base import TIMEOUT, Journal
from .clients.via_aiokafka import Aiokafka

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kmr.broker import Broker

librdkafka: Any = admin
TIMES = [1_700_000_000_000 + n for n in (0, 5, 3)]


class InThreads:
    """Calls of a blocking client, out of the event loop, in which the broker runs."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(asyncio.to_thread, getattr(self._client, name))


async def result(future: Any) -> Any:
    return await asyncio.to_thread(future.result, TIMEOUT)


@pytest.fixture
async def filled(broker: Broker) -> Broker:
    """A broker with the topic "t", whose partition 0 has three records."""
    await broker.topics.create("t", 2)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    for time in TIMES:
        await producer.send_and_wait("t", b"value", partition=0, timestamp_ms=time)
    await producer.stop()
    return broker


@pytest.fixture
async def confluent(filled: Broker) -> Any:
    return librdkafka.AdminClient({"bootstrap.servers": filled.bootstrap_servers})


@pytest.fixture
async def kafka_python(filled: Broker) -> AsyncIterator[Any]:
    client = await asyncio.to_thread(
        kafka.KafkaAdminClient, bootstrap_servers=filled.bootstrap_servers
    )
    yield InThreads(client)
    await asyncio.to_thread(client.close)


async def test_librdkafka_lists_offsets_by_time_and_by_the_latest_time(confluent: Any) -> None:
    at = ck.TopicPartition("t", 0)
    specs = {
        librdkafka.OffsetSpec.earliest(): 0,
        librdkafka.OffsetSpec.latest(): 3,
        librdkafka.OffsetSpec.max_timestamp(): 1,
        librdkafka.OffsetSpec.for_timestamp(TIMES[0] + 1): 1,
    }
    for spec, offset in specs.items():
        (future,) = confluent.list_offsets({at: spec}).values()
        assert (await result(future)).offset == offset


async def test_librdkafka_describes_topics_and_the_cluster(filled: Broker, confluent: Any) -> None:
    (future,) = confluent.describe_topics(ck.TopicCollection(["t"])).values()
    described = await result(future)
    assert [(each.id, each.leader.id) for each in described.partitions] == [(0, 0), (1, 0)]
    assert not described.is_internal
    cluster = await result(confluent.describe_cluster())
    assert [node.id for node in cluster.nodes] == [cluster.controller.id] == [0]
    assert f"{cluster.controller.host}:{cluster.controller.port}" == filled.bootstrap_servers


async def test_librdkafka_alters_a_groups_offsets_and_lists_groups_by_state(
    filled: Broker, confluent: Any
) -> None:
    wanted = ck.ConsumerGroupTopicPartitions("g", [ck.TopicPartition("t", 0, 2)])
    await result(confluent.alter_consumer_group_offsets([wanted])["g"])
    journal, member = Journal(), Aiokafka()
    servers = filled.bootstrap_servers
    async with member.member(servers, "busy", "t", journal):
        await journal.until_assigned(2)
        for state, groups in (
            (ck.ConsumerGroupState.EMPTY, {"g"}),
            (ck.ConsumerGroupState.STABLE, {"busy"}),
        ):
            listed = await result(confluent.list_consumer_groups(states={state}))
            assert {group.group_id for group in listed.valid} == groups
    wanted = ck.ConsumerGroupTopicPartitions("g")
    found = await result(confluent.list_consumer_group_offsets([wanted])["g"])
    assert [each.offset for each in found.topic_partitions] == [2]


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
async def test_librdkafka_replaces_settings_and_only_validates(
    filled: Broker, confluent: Any
) -> None:
    def resource(**config: str) -> Any:
        names = {name.replace("_", "."): value for name, value in config.items()}
        return librdkafka.ConfigResource(librdkafka.ConfigResource.Type.TOPIC, "t", names)

    for changed in (resource(retention_ms="1", segment_ms="2"), resource(retention_ms="3")):
        await result(confluent.alter_configs([changed])[changed])
    checked = resource(retention_ms="4")
    await result(confluent.alter_configs([checked], validate_only=True)[checked])
    topic = filled.topics.get("t")
    assert topic is not None
    assert dict(topic.settings) == {"retention.ms": "3"}
    new = librdkafka.NewTopic("new", 1, 1)
    await result(confluent.create_topics([new], validate_only=True)["new"])
    assert filled.topics.get("new") is None


async def test_kafka_python_describes_the_log_directory(kafka_python: Any, filled: Broker) -> None:
    (node,) = await kafka_python.describe_log_dirs()
    text = str(node)
    assert str(filled.settings.data_dir) in text
    partition = filled.topics.partition("t", 0)
    assert partition is not None
    assert str(partition.log.size_bytes) in text


async def test_kafka_python_deletes_a_groups_offsets(kafka_python: Any) -> None:
    at = kafka.TopicPartition("t", 0)
    await kafka_python.alter_group_offsets("g", {at: kafka.OffsetAndMetadata(2, "", -1)})
    assert (await kafka_python.list_group_offsets({"g": None}))["g"][at].offset == 2
    (error,) = (await kafka_python.delete_group_offsets("g", [at])).values()
    assert error.errno == ErrorCode.none
    assert (await kafka_python.list_group_offsets({"g": None}))["g"] == {}


async def test_kafka_python_edits_settings_and_sees_their_origin(kafka_python: Any) -> None:
    resource = ConfigResource(
        ConfigResourceType.TOPIC, "t", {"cleanup.policy": ("APPEND", "compact")}
    )
    await kafka_python.alter_configs([resource])
    asked = ConfigResource(ConfigResourceType.TOPIC, "t")
    found = await kafka_python.describe_configs([asked], include_synonyms=True)
    config = found["topic"]["t"]["cleanup.policy"]
    assert config["value"] == "delete,compact"
    assert [each["value"] for each in config["synonyms"]] == ["delete,compact", "delete"]


async def test_kafka_python_describes_topics_page_by_page(kafka_python: Any) -> None:
    page = await kafka_python.describe_topic_partitions(["t"], response_partition_limit=1)
    assert [each["partition_index"] for each in page["topics"][0]["partitions"]] == [0]
    rest = await kafka_python.describe_topic_partitions(["t"], cursor=page["next_cursor"])
    assert [each["partition_index"] for each in rest["topics"][0]["partitions"]] == [1]
    assert rest["next_cursor"] is None


async def test_kafka_python_lists_what_has_settings(kafka_python: Any) -> None:
    assert await kafka_python.list_config_resources() == {"topic": ["t"], "broker": ["0"]}
