"""Descriptions say what the client may do, where it asks (KIP-430)."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker import Broker
from broker.security.acls import Operation, Rule, write_rules

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
Described = Callable[[Any], Awaitable[int]]

METADATA, DESCRIBE_GROUPS, DESCRIBE_CLUSTER, DESCRIBE_TOPICS = 3, 15, 60, 75
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = (1 << n for n in range(3, 10))
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (1 << n for n in range(10, 13))
NOT_ASKED_FOR = -(2**31)


async def of_topic(client: Any) -> int:
    answer = await client.call(
        METADATA, 12, topics=[{"name": "t"}], include_topic_authorized_operations=True
    )
    return int(answer.topics[0].topic_authorized_operations)


async def of_page(client: Any) -> int:
    answer = await client.call(DESCRIBE_TOPICS, 0, topics=[{"name": "t"}])
    return int(answer.topics[0].topic_authorized_operations)


async def of_group(client: Any) -> int:
    answer = await client.call(
        DESCRIBE_GROUPS, 5, groups=("g",), include_authorized_operations=True
    )
    return int(answer.groups[0].authorized_operations)


async def of_cluster(client: Any) -> int:
    answer = await client.call(DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True)
    return int(answer.cluster_authorized_operations)


async def of_cluster_once(client: Any) -> int:
    """As clients ask before DescribeCluster."""
    answer = await client.call(METADATA, 9, include_cluster_authorized_operations=True)
    return int(answer.cluster_authorized_operations)


ON_TOPIC = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
ON_GROUP = READ | DELETE | DESCRIBE
ON_CLUSTER = CREATE | ALTER | DESCRIBE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS


@pytest.mark.parametrize(
    ("described", "everything", "for_a_reader"),
    [
        (of_topic, ON_TOPIC, READ | DESCRIBE),
        (of_page, ON_TOPIC, READ | DESCRIBE),
        (of_group, ON_GROUP, READ | DESCRIBE),
        (of_cluster, ON_CLUSTER | IDEMPOTENT_WRITE, 0),
        (of_cluster_once, ON_CLUSTER | IDEMPOTENT_WRITE, 0),
    ],
)
async def test_what_a_client_may_do_is_told(
    start: Start,
    connect: Connect,
    tmp_path: Path,
    described: Described,
    everything: int,
    for_a_reader: int,
) -> None:
    free = await start()
    await free.topics.create("t")
    assert await described(await connect(free)) == everything

    acls = tmp_path / "acls.json"
    rule = Rule(
        principal="User:ANONYMOUS", operations=(Operation.READ,), topics=("t",), groups=("g",)
    )
    write_rules(acls, [rule])
    guarded = await start(acl_file=acls, data_dir=tmp_path / "guarded")
    await guarded.topics.create("t")
    assert await described(await connect(guarded)) == for_a_reader


async def test_who_does_not_ask_is_not_told(broker: Broker, connect: Connect) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    (topic,) = (await client.call(METADATA, 12, topics=None)).topics
    (group,) = (await client.call(DESCRIBE_GROUPS, 5, groups=("g",))).groups
    cluster = await client.call(DESCRIBE_CLUSTER, 1)
    assert topic.topic_authorized_operations == NOT_ASKED_FOR
    assert group.authorized_operations == NOT_ASKED_FOR
    for version in (8, 9, 10):
        metadata = await client.call(METADATA, version, topics=None)
        assert metadata.cluster_authorized_operations == NOT_ASKED_FOR
    assert cluster.cluster_authorized_operations == NOT_ASKED_FOR
