"""Settings of topics and of the broker: described, listed, altered while topics are in use."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.records import CODECS, parse_header
from kmr.broker.topics.topic import Topic

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
DESCRIBE_CONFIGS, LIST_CONFIG_RESOURCES = 32, 74
TOPIC, BROKER, LOGGER = 2, 4, 8
OWN, OF_BROKER, DEFAULT = 1, 4, 5
INT, LONG = 3, 5


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topics_settings_have_their_source(
    broker: Broker, connect: Connect, version: int
) -> None:
    await broker.topics.create("t", 1, {"retention.ms": "1000"})
    client = await connect(broker)
    resources = [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}]
    response = await client.call(DESCRIBE_CONFIGS, version, resources=resources)
    configs = {each.name: each for each in response.results[0].configs}
    assert configs["retention.ms"].value == "1000"
    assert configs["retention.ms"].config_source == OWN
    assert configs["cleanup.policy"].value == "delete"
    assert configs["cleanup.policy"].config_source == DEFAULT
    assert configs["min.insync.replicas"].read_only
    assert not configs["compression.type"].read_only
    assert all(each.synonyms == () for each in configs.values())


async def test_only_requested_settings_are_shown(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    wanted = {"resource_type": TOPIC, "resource_name": "t"}
    resources = [{**wanted, "configuration_keys": ["segment.bytes", "no.such"]}]
    response = await client.call(
        DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=True, include_documentation=True
    )
    (config,) = response.results[0].configs
    assert config.name == "segment.bytes"
    assert config.documentation
    (synonym,) = config.synonyms
    assert (synonym.name, synonym.value) == ("log.segment.bytes", config.value)


async def test_the_brokers_settings_are_shown(start: Start, connect: Connect) -> None:
    broker = await start(auto_create_topics=False, retention_seconds=None)
    client = await connect(broker)
    resources = [{"resource_type": BROKER, "resource_name": "0", "configuration_keys": None}]
    response = await client.call(DESCRIBE_CONFIGS, 4, resources=resources)
    configs = {each.name: (each.value, each.config_source) for each in response.results[0].configs}
    assert configs["auto.create.topics.enable"] == ("false", OF_BROKER)
    assert configs["log.retention.ms"] == ("-1", OF_BROKER)
    assert configs["num.partitions"] == ("1", DEFAULT)
    address = f"PLAINTEXT://{broker.bootstrap_servers}"
    assert configs["listeners"] == configs["advertised.listeners"] == (address, OF_BROKER)
    assert configs["listener.security.protocol.map"] == ("PLAINTEXT:PLAINTEXT", OF_BROKER)
    assert configs["delete.topic.enable"] == ("true", DEFAULT)
    assert configs["group.consumer.session.timeout.ms"] == ("45000", DEFAULT)
    types = {each.name: each.config_type for each in response.results[0].configs}
    assert types["group.max.session.timeout.ms"] == types["transaction.max.timeout.ms"] == INT
    assert types["offsets.retention.ms"] == LONG


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "unknown", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "no good name", ErrorCode.invalid_topic_exception),
        (BROKER, "7", ErrorCode.invalid_request),
        (LOGGER, "0", ErrorCode.invalid_request),
    ],
)
async def test_resources_without_settings_are_refused(
    broker: Broker, connect: Connect, kind: int, name: str, code: ErrorCode
) -> None:
    client = await connect(broker)
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
    response = await client.call(DESCRIBE_CONFIGS, 4, resources=resources)
    (result,) = response.results
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message


async def test_every_setting_is_documented_and_falls_back_to_its_default(
    start: Start, connect: Connect
) -> None:
    broker = await start(segment_bytes=2**21)
    await broker.topics.create("t", 1, {"segment.bytes": "1048576"})
    client = await connect(broker)
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in ((TOPIC, "t"), (BROKER, "0"), (BROKER, ""))
    ]
    response = await client.call(
        DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=True, include_documentation=True
    )
    for result in response.results:
        assert result.error_code is ErrorCode.none
        for config in result.configs:
            assert config.documentation, config.name
            for first in config.synonyms[:1]:
                assert (first.value, first.source) == (config.value, config.config_source)
    assert {each.name for each in response.results[0].configs if not each.synonyms} == {
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.ms",
        "segment.jitter.ms",
        "segment.ms",
    }
    (segment,) = (each for each in response.results[0].configs if each.name == "segment.bytes")
    assert [(each.name, each.value, each.source) for each in segment.synonyms] == [
        ("segment.bytes", "1048576", OWN),
        ("log.segment.bytes", str(2**21), OF_BROKER),
        ("log.segment.bytes", str(2**28), DEFAULT),
    ]
    described = [each.name for each in response.results[1].configs]
    assert described == sorted(set(described))
    assert all(each.read_only for each in response.results[1].configs)


async def test_resources_with_settings_are_listed(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)

    async def listed(version: int, *types: int) -> Any:
        asked = {"resource_types": types} if version else {}
        return await client.call(LIST_CONFIG_RESOURCES, version, **asked)

    for types, expected in (
        ((), {(TOPIC, "t"), (BROKER, "0")}),
        ((TOPIC,), {(TOPIC, "t")}),
        ((BROKER, LOGGER, 16, 32), {(BROKER, "0")}),
    ):
        found = (await listed(1, *types)).config_resources
        assert {(each.resource_type, each.resource_name) for each in found} == expected
    unknown = await listed(1, TOPIC, 99)
    assert (unknown.error_code, unknown.config_resources) == (ErrorCode.unsupported_version, ())
    client_metrics = await listed(0)
    assert (client_metrics.error_code, client_metrics.config_resources) == (ErrorCode.none, ())


PRODUCE, DESCRIBE_CONFIGS, ALTER, INCREMENTAL = 0, 32, 33, 44
SET, DELETE, APPEND, SUBTRACT = range(4)


def resource(name: str, *configs: tuple[Any, ...], kind: int = TOPIC) -> dict[str, Any]:
    """A resource with configs `(name, value)` for AlterConfigs, `(name, operation, value)` for the other."""
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


async def test_deleting_a_setting_that_is_not_set_changes_nothing(
    broker: Broker, connect: Connect
) -> None:
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


async def test_altered_settings_survive_a_restart(start: Start, connect: Connect) -> None:
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


async def test_a_segment_size_applies_from_the_next_batch_on(
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
    await client.call(
        INCREMENTAL, 1, resources=[resource("t", ("internal.segment.bytes", SET, "10"))]
    )
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
        (resource("no good", ("retention.ms", SET, "1")), ErrorCode.invalid_topic_exception),
        (resource("", ("retention.ms", SET, "1")), ErrorCode.invalid_request),
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
async def test_invalid_alterations_are_refused_and_the_others_are_done(
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


async def test_a_resource_listed_twice_is_refused(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    resources = [resource("t", ("retention.ms", "1")), resource("t", ("segment.ms", "1"))]
    response = await client.call(ALTER, 2, resources=resources)
    assert [each.error_code for each in response.responses] == [ErrorCode.invalid_request] * 2


async def test_a_failing_disk_leaves_the_settings_unchanged(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    await broker.topics.create("t")
    client = await connect(broker)
    monkeypatch.setattr("kmr.broker.topics.topics.write_checked", fail)
    response = await client.call(ALTER, 2, resources=[resource("t", ("retention.ms", "1"))])
    assert response.responses[0].error_code is ErrorCode.kafka_storage_error
    assert own(broker) == {}
    assert topic(broker).partitions[0].log.config.retention_ms != 1


async def test_codec_and_clock_of_a_topic_apply_from_the_next_batch_on(
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
