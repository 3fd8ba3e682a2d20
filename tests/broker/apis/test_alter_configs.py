from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker
from broker.records import CODECS, parse_header
from broker.topics.topics import Topic

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
PRODUCE, DESCRIBE_CONFIGS, ALTER, INCREMENTAL = 0, 32, 33, 44
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


def resource(name: str, *configs: tuple[Any, ...], kind: int = TOPIC) -> dict[str, Any]:
    """Of `(name, value)` for AlterConfigs, of `(name, operation, value)` for the other."""
    fields = ("name", "value") if configs and len(configs[0]) == 2 else ("name", "op", "value")
    names = {"op": "config_operation"}
    return {
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            {names.get(f, f): v for f, v in zip(fields, each, strict=True)} for each in configs
        ],
    }


def own(broker: Broker, name: str = "t") -> dict[str, str]:
    return dict(topic(broker, name).settings)


def topic(broker: Broker, name: str = "t") -> Topic:
    found = broker.topics.get(name)
    assert found is not None
    return found


@pytest.mark.parametrize("version", range(3))
async def test_a_topics_settings_are_replaced(
    broker: Broker, connect: Connect, version: int
) -> None:
    await broker.topics.create("t", 2, {"retention.ms": "1000", "segment.ms": "5"})
    client = await connect(broker)
    wanted = resource("t", ("retention.ms", "2000"), ("max.message.bytes", "100"))
    response = await client.call(ALTER, version, resources=[wanted])
    (result,) = response.responses
    assert (result.error_code, result.resource_name) == (ErrorCode.none, "t")
    assert own(broker) == {"retention.ms": "2000", "max.message.bytes": "100"}
    for partition in topic(broker).partitions:
        config = partition.log.config
        assert (config.retention_ms, config.max_message_bytes) == (2000, 100)
        assert config.segment_ms != 5


@pytest.mark.parametrize("version", range(2))
async def test_single_settings_are_set_deleted_and_edited(
    broker: Broker, connect: Connect, version: int
) -> None:
    await broker.topics.create("t", 1, {"retention.ms": "1000", "segment.ms": "5"})
    client = await connect(broker)
    changes = [
        ("retention.ms", SET, "7"),
        ("segment.ms", DELETE, None),
        ("max.message.bytes", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
        ("leader.replication.throttled.replicas", APPEND, "0:0,1:0"),
    ]
    response = await client.call(INCREMENTAL, version, resources=[resource("t", *changes)])
    assert response.responses[0].error_code is ErrorCode.none
    assert own(broker) == {
        "retention.ms": "7",
        "cleanup.policy": "delete,compact",
        "leader.replication.throttled.replicas": "0:0,1:0",
    }
    log = topic(broker).partitions[0].log
    assert (log.config.compacts, log.config.deletes, log.config.retention_ms) == (True, True, 7)
    changes = [("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, "whatever")]
    await client.call(INCREMENTAL, version, resources=[resource("t", *changes)])
    assert own(broker)["cleanup.policy"] == "compact"
    assert "retention.ms" not in own(broker)


async def test_a_topic_without_any_cleanup_policy_keeps_everything(
    broker: Broker, connect: Connect
) -> None:
    await broker.topics.create("t", 1, {"retention.ms": "0"})
    client = await connect(broker)
    changes = [resource("t", ("cleanup.policy", SUBTRACT, "delete"))]
    response = await client.call(INCREMENTAL, 1, resources=changes)
    assert response.responses[0].error_code is ErrorCode.none
    assert own(broker)["cleanup.policy"] == ""
    config = topic(broker).partitions[0].log.config
    assert (config.compacts, config.deletes) == (False, False)


async def test_a_setting_that_is_not_there_can_be_deleted(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    changes = [resource("t", ("retention.ms", DELETE, None), ("no.such", DELETE, None))]
    response = await client.call(INCREMENTAL, 1, resources=changes)
    assert response.responses[0].error_code is ErrorCode.none


async def test_a_setting_of_the_broker_can_be_deleted_as_none_was_changed(
    broker: Broker, connect: Connect
) -> None:
    """As `kafka-reassign-partitions --verify` does, which ends the throttling of replicas."""
    client = await connect(broker)
    changes = [resource("0", ("leader.replication.throttled.rate", DELETE, ""), kind=BROKER)]
    response = await client.call(INCREMENTAL, 1, resources=changes)
    assert response.responses[0].error_code is ErrorCode.none


async def test_what_was_altered_is_there_after_a_restart(start: Start, connect: Connect) -> None:
    broker = await start()
    await broker.topics.create("t")
    client = await connect(broker)
    await client.call(INCREMENTAL, 1, resources=[resource("t", ("retention.ms", SET, "4242"))])
    await client.close()
    await broker.__aexit__(None, None, None)
    again = await start()
    assert own(again) == {"retention.ms": "4242"}
    assert topic(again).partitions[0].log.config.retention_ms == 4242


async def test_a_smaller_limit_refuses_the_next_message(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    await broker.topics.create("t")
    client = await connect(broker)

    async def produce() -> ErrorCode:
        partition = {"index": 0, "records": batch(b"x" * 200)}
        data = [{"name": "t", "partition_data": [partition]}]
        response = await client.call(PRODUCE, 9, acks=1, topic_data=data)
        code: ErrorCode = response.responses[0].partition_responses[0].error_code
        return code

    assert await produce() is ErrorCode.none
    changes = [("max.message.bytes", SET, "100")]
    await client.call(INCREMENTAL, 1, resources=[resource("t", *changes)])
    assert await produce() is ErrorCode.message_too_large


async def test_a_segments_size_holds_from_the_next_batch_on(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    created = await broker.topics.create("t")
    client = await connect(broker)
    partition = {"index": 0, "records": batch(b"x")}
    data = [{"name": "t", "partition_data": [partition]}]
    directory = created.partitions[0].log.directory
    await client.call(PRODUCE, 9, acks=1, topic_data=data)
    await client.call(PRODUCE, 9, acks=1, topic_data=data)
    assert len(list(directory.glob("*.log"))) == 1
    await client.call(INCREMENTAL, 1, resources=[resource("t", ("segment.bytes", SET, "10"))])
    await client.call(PRODUCE, 9, acks=1, topic_data=data)
    assert len(list(directory.glob("*.log"))) == 2


async def test_validation_changes_nothing(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    good, bad = ("retention.ms", "1"), ("retention.ms", "x")
    for key, configs in (
        (ALTER, (good, bad)),
        (INCREMENTAL, (("retention.ms", SET, "1"), ("retention.ms", SET, "x"))),
    ):
        codes = []
        for config in configs:
            response = await client.call(
                key, 1, resources=[resource("t", config)], validate_only=True
            )
            codes.append(response.responses[0].error_code)
        assert codes == [ErrorCode.none, ErrorCode.invalid_config]
    assert own(broker) == {}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (resource("no", ("retention.ms", SET, "1")), ErrorCode.unknown_topic_or_partition),
        (resource("t", ("no.such", SET, "1")), ErrorCode.invalid_config),
        (resource("t", ("no.such", APPEND, "1")), ErrorCode.invalid_config),
        (resource("t", ("retention.ms", SET, "soon")), ErrorCode.invalid_config),
        (resource("t", ("retention.ms", SET, None)), ErrorCode.invalid_request),
        (resource("t", ("retention.ms", APPEND, "1")), ErrorCode.invalid_config),
        (resource("t", ("retention.ms", 4, "1")), ErrorCode.invalid_request),
        (
            resource("t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
            ErrorCode.invalid_request,
        ),
        (resource("0", ("log.retention.ms", SET, "1"), kind=BROKER), ErrorCode.invalid_request),
        (resource("7", kind=BROKER), ErrorCode.invalid_request),
        (resource("0", ("kafka", SET, "DEBUG"), kind=LOGGER), ErrorCode.invalid_request),
        (
            resource("__consumer_offsets", ("retention.ms", SET, "1")),
            ErrorCode.invalid_topic_exception,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_what_cannot_be_altered_is_refused_and_the_rest_is_done(
    broker: Broker, connect: Connect, wanted: Any, code: ErrorCode, validate_only: bool
) -> None:
    for name in ("t", "good"):
        await broker.topics.create(name)
    client = await connect(broker)
    resources = [wanted, resource("good", ("retention.ms", SET, "5"))]
    response = await client.call(INCREMENTAL, 1, resources=resources, validate_only=validate_only)
    refused, good = response.responses
    assert refused.error_code is code
    assert refused.error_message
    assert good.error_code is ErrorCode.none
    assert own(broker) == {}
    assert own(broker, "good") == ({} if validate_only else {"retention.ms": "5"})


async def test_a_resource_that_is_there_twice_is_refused(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    resources = [resource("t", ("retention.ms", "1")), resource("t", ("segment.ms", "1"))]
    response = await client.call(ALTER, 2, resources=resources)
    assert [each.error_code for each in response.responses] == [ErrorCode.invalid_request] * 2


async def test_a_disk_that_fails_leaves_the_settings_as_they_were(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    await broker.topics.create("t")
    client = await connect(broker)
    monkeypatch.setattr("broker.topics.store.write_checked", fail)
    response = await client.call(ALTER, 2, resources=[resource("t", ("retention.ms", "1"))])
    assert response.responses[0].error_code is ErrorCode.kafka_storage_error
    assert own(broker) == {}
    assert topic(broker).partitions[0].log.config.retention_ms != 1


async def test_codec_and_clock_of_a_topic_hold_from_the_next_batch_on(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    log = (await broker.topics.create("t")).partitions[0].log
    client = await connect(broker)
    data = [
        {"name": "t", "partition_data": [{"index": 0, "records": batch(b"x" * 100, timestamp=7)}]}
    ]
    before = await client.call(PRODUCE, 9, acks=1, topic_data=data)
    changes = [
        ("compression.type", SET, "zstd"),
        ("message.timestamp.type", SET, "LogAppendTime"),
    ]
    await client.call(INCREMENTAL, 1, resources=[resource("t", *changes)])
    after = await client.call(PRODUCE, 9, acks=1, topic_data=data)
    times = [each.responses[0].partition_responses[0].log_append_time for each in (before, after)]
    assert times[0] is None
    assert times[1] is not None
    first, second = (parse_header(log.read(at, 1, min_one=True).data) for at in (0, 1))
    assert (first.compression, first.timestamp_type, first.max_timestamp) == (0, 0, 7)
    assert (second.compression, second.timestamp_type) == (CODECS["zstd"], 1)
    assert second.max_timestamp > 7


async def test_timestamps_out_of_range_are_refused(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    await broker.topics.create("t", 1, {"message.timestamp.before.max.ms": "1000"})
    client = await connect(broker)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch(b"x", timestamp=7)}]}]
    response = await client.call(PRODUCE, 9, acks=1, topic_data=data)
    refused = response.responses[0].partition_responses[0]
    assert refused.error_code is ErrorCode.invalid_timestamp
    assert "record 0: its timestamp is 7" in refused.error_message
    assert [each.batch_index for each in refused.record_errors] == [0]
