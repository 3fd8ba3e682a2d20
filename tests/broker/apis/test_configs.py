from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
DESCRIBE_CONFIGS, LIST_CONFIG_RESOURCES = 32, 74
TOPIC, BROKER, LOGGER = 2, 4, 8
OWN, OF_BROKER, DEFAULT = 1, 4, 5
INT, LONG = 3, 5


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topics_settings_say_where_they_come_from(
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


async def test_only_what_is_asked_for_is_shown(broker: Broker, connect: Connect) -> None:
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
    assert configs["delete.topic.enable"] == ("true", DEFAULT)
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
async def test_what_has_no_settings_is_refused(
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
    await broker.topics.create("t", 1, {"segment.bytes": "1000"})
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
            if config.name != "advertised.listeners":
                assert config.synonyms[-1].source == DEFAULT
            first = config.synonyms[0]
            assert (first.value, first.source) == (config.value, config.config_source)
    (segment,) = (each for each in response.results[0].configs if each.name == "segment.bytes")
    assert [(each.name, each.value, each.source) for each in segment.synonyms] == [
        ("segment.bytes", "1000", OWN),
        ("log.segment.bytes", str(2**21), OF_BROKER),
        ("log.segment.bytes", str(2**28), DEFAULT),
    ]
    described = [each.name for each in response.results[1].configs]
    assert described == sorted(set(described))
    assert all(each.read_only for each in response.results[1].configs)


async def test_what_has_settings_is_listed(broker: Broker, connect: Connect) -> None:
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
