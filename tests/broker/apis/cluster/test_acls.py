"""The protocol shows and changes exactly the access rules in the file."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.authorization.rules import Operation, Rule, read_rules, write_rules

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

pytestmark = pytest.mark.loop_guard
METADATA, DESCRIBE, CREATE, DELETE = 3, 29, 30, 31
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
ALL, READ, WRITE = 2, 3, 4
TWO_PHASE_COMMIT = 15
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
DENY, ALLOW = 2, 3
ADMINISTRATORS = Rule(principal="User:ANONYMOUS", operations=(Operation.ALL,), cluster=True)
ALICE = Rule(
    principal="User:alice",
    operations=(Operation.READ, Operation.WRITE),
    topics=("orders*", "clicks"),
    groups=("*",),
)


@pytest.fixture
def acls(tmp_path: Path) -> Path:
    """The file of rules."""
    path = tmp_path / "acls.json"
    write_rules(path, [ADMINISTRATORS, ALICE])
    return path


@pytest.fixture
async def client(start: Start, connect: Connect, acls: Path) -> Any:
    """A client with every permission for the cluster and none for topics."""
    broker = await start(acl_file=acls, data_dir=acls.parent / "guarded")
    await broker.topics.create("new")
    return await connect(broker)


def creation(**values: object) -> dict[str, object]:
    defaults = {
        "resource_type": TOPIC,
        "resource_name": "new",
        "resource_pattern_type": LITERAL,
        "principal": "User:ANONYMOUS",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return defaults | values


def wanted(**values: object) -> dict[str, object]:
    defaults = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return defaults | values


async def described(client: Any, version: int = 3, **values: object) -> set[tuple[Any, ...]]:
    response = await client.call(DESCRIBE, version, **wanted(**values))
    assert (response.error_code, response.error_message) == (ErrorCode.none, None)
    return {
        (acl.principal, acl.operation, each.resource_type, each.resource_name, each.pattern_type)
        for each in response.resources
        for acl in each.acls
        if (acl.host, acl.permission_type) == ("*", ALLOW)
    }


ORDERS = {("User:alice", operation, TOPIC, "orders", PREFIXED) for operation in (READ, WRITE)}
CLICKS = {("User:alice", operation, TOPIC, "clicks", LITERAL) for operation in (READ, WRITE)}
GROUPS = {("User:alice", operation, GROUP, "*", LITERAL) for operation in (READ, WRITE)}
OURS = {("User:ANONYMOUS", ALL, CLUSTER, "kafka-cluster", LITERAL)}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ORDERS | CLICKS | GROUPS | OURS),
        ({"resource_type_filter": TOPIC}, ORDERS | CLICKS),
        ({"principal_filter": "User:ANONYMOUS"}, OURS),
        ({"principal_filter": "User:bob"}, set()),
        ({"operation": ALL}, OURS),
        ({"permission_type": DENY}, set()),
        ({"permission_type": ALLOW, "host_filter": "*"}, ORDERS | CLICKS | GROUPS | OURS),
        ({"host_filter": "10.0.0.1"}, set()),
        ({"resource_name_filter": "orders"}, ORDERS),
        ({"resource_name_filter": "orders", "pattern_type_filter": LITERAL}, set()),
        ({"resource_name_filter": "orders", "pattern_type_filter": PREFIXED}, ORDERS),
        (
            {
                "resource_type_filter": TOPIC,
                "resource_name_filter": "orders-1",
                "pattern_type_filter": MATCH,
            },
            ORDERS,
        ),
        (
            {
                "resource_type_filter": GROUP,
                "resource_name_filter": "any",
                "pattern_type_filter": MATCH,
            },
            GROUPS,
        ),
        ({"pattern_type_filter": MATCH}, ORDERS | CLICKS | GROUPS | OURS),
    ],
)
async def test_a_filter_finds_what_kafkas_would(
    client: Any, asked: dict[str, object], found: set[tuple[Any, ...]]
) -> None:
    for version in (1, 2, 3):
        assert await described(client, version, **asked) == found


@pytest.mark.parametrize(
    "code", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"]
)
@pytest.mark.parametrize("value", [0, 16, -1])
async def test_a_filter_with_an_unknown_code_is_refused(client: Any, code: str, value: int) -> None:
    response = await client.call(DESCRIBE, 3, **wanted(**{code: value}))
    assert response.error_code is ErrorCode.invalid_request
    deleted = await client.call(
        DELETE, 3, filters=[wanted(**{code: value}), wanted(principal_filter="x")]
    )
    assert [each.error_code for each in deleted.filter_results] == [
        ErrorCode.invalid_request,
        ErrorCode.none,
    ]


async def test_created_rules_apply_at_once_and_stay(client: Any, acls: Path) -> None:
    async def error() -> ErrorCode:
        (topic,) = (await client.call(METADATA, 12, topics=[{"name": "new"}])).topics
        return topic.error_code  # type: ignore[no-any-return]

    assert await error() is ErrorCode.topic_authorization_failed
    for version in (1, 2, 3):  # the same again changes nothing
        response = await client.call(CREATE, version, creations=[creation(), creation()])
        assert [each.error_code for each in response.results] == [ErrorCode.none] * 2
    assert await error() is ErrorCode.none
    added = Rule(principal="User:ANONYMOUS", operations=(Operation.READ,), topics=("new",))
    assert read_rules(acls) == (ADMINISTRATORS, ALICE, added)

    response = await client.call(DELETE, 3, filters=[wanted(resource_name_filter="new")])
    (result,) = response.filter_results
    assert result.error_code is ErrorCode.none
    assert [(each.resource_name, each.operation) for each in result.matching_acls] == [
        ("new", READ)
    ]
    assert await error() is ErrorCode.topic_authorization_failed
    assert read_rules(acls) == (ADMINISTRATORS, ALICE)


async def test_one_permission_of_a_rule_can_be_deleted(client: Any, acls: Path) -> None:
    filters = [wanted(resource_name_filter="orders", operation=WRITE)]
    for version in (1, 2, 3):
        response = await client.call(DELETE, version, filters=filters)
        (result,) = response.filter_results
        assert len(result.matching_acls) == (1 if version == 1 else 0)
    assert await described(client) == (
        (ORDERS | CLICKS | GROUPS | OURS) - {("User:alice", WRITE, TOPIC, "orders", PREFIXED)}
    )
    assert read_rules(acls)[0] == ADMINISTRATORS


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"permission_type": 1}, "must be allow or deny"),
        ({"host": ""}, "the host is empty"),
        ({"principal": "Group:staff"}, "must be a user, User:NAME"),
        ({"principal": "User:"}, "must be a user, User:NAME"),
        ({"principal": "alice"}, "must be a user, User:NAME"),
        ({"operation": TWO_PHASE_COMMIT}, "there is no operation 15 to allow or deny"),
        ({"operation": ANY}, "there is no operation 1 to allow or deny"),
        ({"resource_type": 6}, "no rules for resources of type 6"),
        ({"resource_type": ANY}, "no rules for resources of type 1"),
        ({"resource_pattern_type": MATCH}, "must be literal or prefixed"),
        ({"resource_name": ""}, "the name of the resource is empty"),
        ({"resource_type": GROUP, "resource_name": "all*"}, "whose name ends with a *"),
        ({"resource_type": CLUSTER, "resource_name": "mine"}, "name is kafka-cluster"),
    ],
)
async def test_rules_that_cannot_be_expressed_are_refused_and_the_others_created(
    client: Any, acls: Path, values: dict[str, object], reason: str
) -> None:
    response = await client.call(CREATE, 3, creations=[creation(**values), creation()])
    refused, done = response.results
    assert refused.error_code is ErrorCode.invalid_request
    assert reason in refused.error_message
    assert done.error_code is ErrorCode.none
    assert len(read_rules(acls)) == 3


async def test_every_kind_of_resource_can_be_allowed(client: Any) -> None:
    kinds = [
        creation(resource_name="logs", resource_pattern_type=PREFIXED),
        creation(resource_type=GROUP, resource_name="*"),
        creation(resource_type=TRANSACTIONAL_ID, resource_name="x", operation=WRITE),
        creation(resource_type=CLUSTER, resource_name="kafka-cluster", operation=WRITE),
    ]
    response = await client.call(CREATE, 3, creations=kinds)
    assert [each.error_code for each in response.results] == [ErrorCode.none] * 4
    assert await described(client, principal_filter="User:ANONYMOUS") == OURS | {
        ("User:ANONYMOUS", READ, TOPIC, "logs", PREFIXED),
        ("User:ANONYMOUS", READ, GROUP, "*", LITERAL),
        ("User:ANONYMOUS", WRITE, TRANSACTIONAL_ID, "x", LITERAL),
        ("User:ANONYMOUS", WRITE, CLUSTER, "kafka-cluster", LITERAL),
    }


async def test_denials_apply_at_once_and_are_found_and_deleted_as_such(
    client: Any, acls: Path
) -> None:
    async def error() -> ErrorCode:
        (topic,) = (await client.call(METADATA, 12, topics=[{"name": "new"}])).topics
        return topic.error_code  # type: ignore[no-any-return]

    denial = creation(operation=ALL, permission_type=DENY, host="127.0.0.1")
    elsewhere = creation(operation=ALL, permission_type=DENY, host="10.0.0.1")
    await client.call(CREATE, 3, creations=[creation(), elsewhere])
    assert await error() is ErrorCode.none
    response = await client.call(CREATE, 3, creations=[denial, denial])
    assert [each.error_code for each in response.results] == [ErrorCode.none] * 2
    assert await error() is ErrorCode.topic_authorization_failed

    for asked in ({"permission_type": DENY}, {"permission_type": DENY, "host_filter": "127.0.0.1"}):
        found = await client.call(DESCRIBE, 3, **wanted(**asked))
        (topic,) = found.resources
        hosts = {(acl.host, acl.operation, acl.permission_type) for acl in topic.acls}
        everywhere = {("127.0.0.1", ALL, DENY), ("10.0.0.1", ALL, DENY)}
        assert hosts == (everywhere if len(asked) == 1 else {("127.0.0.1", ALL, DENY)})
    assert [each.hosts for each in read_rules(acls)[-2:]] == [("10.0.0.1",), ("127.0.0.1",)]

    asked = {"permission_type": DENY, "host_filter": "127.0.0.1"}
    response = await client.call(DELETE, 3, filters=[wanted(**asked)])
    (matching,) = response.filter_results[0].matching_acls
    assert (matching.host, matching.permission_type) == ("127.0.0.1", DENY)
    assert await error() is ErrorCode.none


async def test_every_operation_of_kafka_can_be_allowed(client: Any) -> None:
    codes = set(range(ALL, 13))
    kinds = [creation(operation=code) for code in codes]
    response = await client.call(CREATE, 3, creations=kinds)
    assert {each.error_code for each in response.results} == {ErrorCode.none}
    found = await described(client, resource_type_filter=TOPIC, resource_name_filter="new")
    assert {operation for _, operation, *_ in found} == codes


@pytest.fixture
def break_file(acls: Path) -> Callable[[], Callable[[], bool]]:
    """Make the file of rules invalid; return a check that it was not changed."""

    def break_it() -> Callable[[], bool]:
        acls.write_text("{")
        return lambda: acls.read_text() == "{"

    return break_it


async def test_an_invalid_file_is_not_overwritten(
    client: Any, break_file: Callable[[], Callable[[], bool]]
) -> None:
    is_left = break_file()
    response = await client.call(CREATE, 3, creations=[creation()])
    assert [each.error_code for each in response.results] == [ErrorCode.kafka_storage_error]
    response = await client.call(DELETE, 3, filters=[wanted()])
    assert [each.error_code for each in response.filter_results] == [ErrorCode.kafka_storage_error]
    assert is_left()
    assert await described(client) == ORDERS | CLICKS | GROUPS | OURS  # the last valid content


async def test_a_broker_without_rules_says_so(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    described = await client.call(DESCRIBE, 3, **wanted())
    assert described.error_code is ErrorCode.security_disabled
    assert "--acls" in described.error_message
    created = await client.call(CREATE, 3, creations=[creation()])
    deleted = await client.call(DELETE, 3, filters=[wanted()])
    assert created.results[0].error_code is ErrorCode.security_disabled
    assert deleted.filter_results[0].error_code is ErrorCode.security_disabled
