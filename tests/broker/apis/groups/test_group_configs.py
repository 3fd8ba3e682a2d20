"""Settings of groups by DescribeConfigs and IncrementalAlterConfigs: effects, refusals, permissions."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from kmr.broker.authorization.rules import Operation, Rule, write_rules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kmr.broker import Broker

    Start = Callable[..., Awaitable[Broker]]
    Connect = Callable[[Broker], Awaitable[Any]]

DESCRIBE, ALTER, INCREMENTAL, HEARTBEAT_API, LIST = 32, 33, 44, 68, 74
GROUP = 32
SET, DELETE, APPEND = 0, 1, 2
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
OF_GROUP, DEFAULT = 8, 5
OK = ErrorCode.none


async def alter(
    client: Any, *changes: tuple[str, int, str | None], group: str = "g", validate: bool = False
) -> tuple[ErrorCode, str | None]:
    configs = [
        {"name": name, "config_operation": operation, "value": value}
        for name, operation, value in changes
    ]
    asked = {"resource_type": GROUP, "resource_name": group, "configs": configs}
    answer = await client.call(INCREMENTAL, 1, resources=[asked], validate_only=validate)
    (result,) = answer.responses
    return result.error_code, result.error_message


async def described(client: Any, group: str = "g") -> dict[str, tuple[str, list[Any]]]:
    """The value of each setting, and its synonyms: name, value and source."""
    asked = {"resource_type": GROUP, "resource_name": group, "configuration_keys": None}
    answer = await client.call(DESCRIBE, 4, resources=[asked], include_synonyms=True)
    (result,) = answer.results
    assert result.error_code is OK
    return {
        each.name: (each.value, [(s.name, s.value, s.source) for s in each.synonyms])
        for each in result.configs
    }


async def beat(client: Any, epoch: int = 0) -> Any:
    return await client.call(
        HEARTBEAT_API,
        1,
        group_id="g",
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout=timedelta(minutes=1),
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )


async def test_members_of_a_group_follow_its_own_settings(start: Start, connect: Connect) -> None:
    broker = await start()
    await broker.topics.create("t")
    client = await connect(broker)
    joined = await beat(client)
    assert joined.heartbeat_interval == timedelta(seconds=5)
    only_asked = await alter(client, (HEARTBEAT, SET, "7000"), validate=True)
    assert only_asked == (OK, None)
    assert (await beat(client, joined.member_epoch)).heartbeat_interval == timedelta(seconds=5)

    assert await alter(client, (HEARTBEAT, SET, "7000"), (SESSION, SET, "50000")) == (OK, None)
    assert (await beat(client, joined.member_epoch)).heartbeat_interval == timedelta(seconds=7)
    found = await described(client)
    assert found[SESSION] == (
        "50000",
        [(SESSION, "50000", OF_GROUP), (f"group.{SESSION}", "45000", DEFAULT)],
    )
    assert (await described(client, "other"))[HEARTBEAT][0] == "5000"
    await client.close()
    await broker.__aexit__(None, None, None)

    broker = await start()
    client = await connect(broker)
    again = await beat(client, joined.member_epoch)
    assert (again.error_code, again.heartbeat_interval) == (OK, timedelta(seconds=7))
    listed = (await client.call(LIST, 1, resource_types=(GROUP,))).config_resources
    assert [(each.resource_type, each.resource_name) for each in listed] == [(GROUP, "g")]
    assert await alter(client, (HEARTBEAT, DELETE, None), (SESSION, DELETE, None)) == (OK, None)
    assert (await described(client))[HEARTBEAT] == (
        "5000",
        [(f"group.{HEARTBEAT}", "5000", DEFAULT)],
    )
    assert (await client.call(LIST, 1, resource_types=(GROUP,))).config_resources == ()


async def test_all_settings_of_a_group_are_replaced(start: Start, connect: Connect) -> None:
    client = await connect(await start())
    await alter(client, (HEARTBEAT, SET, "7000"))
    configs = [{"name": SESSION, "value": "46000"}]
    asked = {"resource_type": GROUP, "resource_name": "g", "configs": configs}
    (result,) = (await client.call(ALTER, 2, resources=[asked], validate_only=False)).responses
    assert result.error_code is OK
    assert {name: value for name, (value, _) in (await described(client)).items()} == {
        SESSION: "46000",
        HEARTBEAT: "5000",
    }


async def test_settings_that_kafka_refuses_are_refused(start: Start, connect: Connect) -> None:
    client = await connect(await start())
    invalid, request = ErrorCode.invalid_config, ErrorCode.invalid_request
    low = f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"
    refused = await alter(client, (HEARTBEAT, SET, "8000"), (SESSION, SET, "1"))
    assert refused == (invalid, low), "none is changed"
    unknown = (invalid, "Unknown group config name: nope")
    assert await alter(client, ("nope", SET, "1")) == unknown
    no_list = f"Can't APPEND to key {HEARTBEAT} because its type is not LIST."
    assert await alter(client, (HEARTBEAT, APPEND, "1")) == (invalid, no_list)
    assert (await alter(client, (SESSION, SET, None)))[0] is request
    assert (await alter(client, (SESSION, SET, "50000"), group=""))[0] is request
    asked = {"resource_type": GROUP, "resource_name": "", "configuration_keys": None}
    (result,) = (await client.call(DESCRIBE, 4, resources=[asked])).results
    assert (result.error_code, result.error_message) == (request, "Group name must not be empty")
    assert (await described(client))[HEARTBEAT][0] == "5000"


async def test_settings_of_a_group_need_permissions_of_it(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    acls = tmp_path / "acls.json"
    may = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    write_rules(acls, [Rule(principal="User:ANONYMOUS", operations=may, groups=("g",))])
    client = await connect(await start(acl_file=acls))
    assert await alter(client, (SESSION, SET, "50000")) == (OK, None)
    assert (await described(client))[SESSION][0] == "50000"
    denied = ErrorCode.group_authorization_failed
    assert (await alter(client, (SESSION, SET, "50000"), group="h"))[0] is denied
    asked = {"resource_type": GROUP, "resource_name": "h", "configuration_keys": None}
    (result,) = (await client.call(DESCRIBE, 4, resources=[asked])).results
    assert (result.error_code, result.configs) == (denied, ())
