"""Each API checks the permissions it needs, refuses by the protocol, and changes nothing without them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.apis.access import EVERYONE
from kmr.broker.apis.api import Api
from kmr.broker.apis.catalogue import SERVED
from kmr.broker.authorization.rules import Operation, Rule, write_rules

if TYPE_CHECKING:
    from pathlib import Path

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Batch = Callable[..., bytes]

TOPIC = ErrorCode.topic_authorization_failed
GROUP = ErrorCode.group_authorization_failed
TRANSACTION = ErrorCode.transactional_id_authorization_failed
CLUSTER = ErrorCode.cluster_authorization_failed
NONE = ErrorCode.none
NOBODY = Rule(principal="User:nobody", operations=(Operation.ALL,), cluster=True)
OPEN = {api.key for api in SERVED if isinstance(api, Api) and api.access is EVERYONE}
MINUTE = timedelta(minutes=1)

PARTITIONS: dict[str, Any] = {"partitions": [{"partition_index": 0}]}
TOPICS: list[Any] = [{"name": "t", **PARTITIONS}]
INDEXES: list[Any] = [{"name": "t", "partition_indexes": [0]}]
ID = UUID(int=7)
BY_ID = [{"topic_id": ID, "partitions": [{"partition_index": 0}]}]
CONFIGURED: list[Any] = [
    {"resource_type": 2, "resource_name": "t"},
    {"resource_type": 4, "resource_name": "0"},
]
PRODUCER: dict[str, Any] = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
MEMBER: dict[str, Any] = {"group_id": "g", "member_id": "m"}
ACL_FILTER: dict[str, Any] = {
    "resource_name_filter": None, "principal_filter": None, "host_filter": None,
}  # fmt: skip

# API, version, request, and all codes of the response to a client without any permission.
CASES: list[tuple[int, int, dict[str, Any], set[ErrorCode]]] = [
    (0, 11, {"acks": -1, "timeout": MINUTE, "topic_data": [
        {"name": "t", "partition_data": [{"index": 0, "records": b""}]}]}, {TOPIC}),
    (1, 4, {"max_wait": MINUTE, "topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}, {TOPIC}),
    (1, 12, {"max_wait": MINUTE, "topics": [{"topic": "t", "partitions": [{"partition": 0}]}]},
     {NONE, TOPIC}),
    (2, 1, {"topics": TOPICS}, {TOPIC}),
    (2, 7, {"topics": TOPICS}, {TOPIC}),
    (3, 0, {"topics": [{"name": "t"}]}, {TOPIC}),
    (3, 4, {"topics": [{"name": "t"}, {"name": "new"}], "allow_auto_topic_creation": True}, {TOPIC}),
    (3, 12, {"topics": [{"name": "t"}, {"name": "new"}], "allow_auto_topic_creation": True}, {TOPIC}),
    (8, 2, {"group_id": "g", "topics": TOPICS}, {GROUP}),
    (8, 8, {"group_id": "g", "topics": TOPICS}, {GROUP}),
    (8, 10, {"group_id": "g", "topics": BY_ID}, {GROUP}),
    (9, 10, {"groups": [{"group_id": "g", "topics": [{"topic_id": ID, "partition_indexes": [0]}]}]}, {GROUP}),
    (9, 1, {"group_id": "g", "topics": INDEXES}, {GROUP}),
    (9, 7, {"group_id": "g", "topics": None}, {GROUP}),
    (9, 8, {"groups": [{"group_id": "g", "topics": INDEXES}]}, {GROUP}),
    (10, 0, {"key": "g"}, {GROUP}),
    (10, 3, {"key": "x", "key_type": 1}, {TRANSACTION}),
    (10, 4, {"key_type": 0, "coordinator_keys": ["g", "h"]}, {GROUP}),
    (10, 4, {"key_type": 1, "coordinator_keys": ["x"]}, {TRANSACTION}),
    (11, 0, MEMBER, {GROUP}),
    (11, 9, {**MEMBER, "protocols": [{"name": "range", "metadata": b""}]}, {GROUP}),
    (12, 4, MEMBER, {GROUP}),
    (13, 0, MEMBER, {GROUP}),
    (13, 5, {"group_id": "g", "members": [{"member_id": "m"}]}, {GROUP}),
    (14, 5, MEMBER, {GROUP}),
    (15, 0, {"groups": ["g"]}, {GROUP}),
    (15, 6, {"groups": ["g", "h"]}, {GROUP}),
    (16, 4, {}, {NONE}),
    (19, 2, {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]}, {TOPIC}),
    (19, 7, {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]}, {TOPIC}),
    (20, 1, {"topic_names": ["t"]}, {TOPIC}),
    (20, 6, {"topics": [{"name": "t"}]}, {TOPIC}),
    (21, 2, {"topics": TOPICS}, {TOPIC}),
    (22, 4, {"transactional_id": "x", "transaction_timeout": MINUTE}, {TRANSACTION}),
    (22, 0, {"transactional_id": None}, {CLUSTER}),
    (23, 4, {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}, {TOPIC}),
    (24, 3, {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 1,
             "v3_and_below_topics": [{"name": "t", "partitions": [0]}]}, {TRANSACTION}),
    (25, 3, {**PRODUCER, "group_id": "g"}, {TRANSACTION}),
    (26, 3, PRODUCER, {TRANSACTION}),
    (28, 3, {**PRODUCER, "group_id": "g", "topics": TOPICS}, {TRANSACTION}),
    (32, 4, {"resources": CONFIGURED}, {TOPIC, CLUSTER}),
    (33, 2, {"resources": CONFIGURED}, {TOPIC, CLUSTER}),
    (35, 4, {"topics": None}, {CLUSTER}),
    (37, 3, {"topics": [{"name": "t", "count": 3}]}, {TOPIC}),
    (42, 2, {"groups_names": ["g"]}, {GROUP}),
    (44, 1, {"resources": CONFIGURED}, {TOPIC, CLUSTER}),
    (47, 0, {"group_id": "g", "topics": TOPICS}, {GROUP}),
    (55, 2, {"topics": [{"topic_name": "t", "partitions": [{"partition_index": 0}]}]}, {CLUSTER}),
    (68, 0, {"group_id": "g", "member_id": "", "member_epoch": 0, "topic_partitions": None}, {GROUP}),
    (68, 1, {"group_id": "g", "member_id": "m", "member_epoch": 0, "topic_partitions": None}, {GROUP}),
    (69, 1, {"group_ids": ["g", "h"]}, {GROUP}),
    (74, 1, {}, {CLUSTER}),
    (75, 0, {"topics": [{"name": "t"}], "response_partition_limit": 9, "cursor": None}, {TOPIC}),
    (75, 0, {"topics": [], "response_partition_limit": 9, "cursor": None}, set()),
]  # fmt: skip


def codes(message: Any) -> set[ErrorCode]:
    """All error codes in a message."""
    if isinstance(message, ErrorCode):
        return {message}
    if isinstance(message, tuple):
        return set().union(*map(codes, message))
    if is_dataclass(message):
        return set().union(*(codes(getattr(message, field.name)) for field in fields(message)))
    return set()


Guarded = Callable[..., Awaitable[Any]]


@pytest.fixture
def client_with(start: Start, connect: Connect, tmp_path: Path) -> Guarded:
    """A client with these permissions, of a broker with the topics `t` and `u`."""

    async def client_with(*allowed: dict[str, Any]) -> Any:
        acls = tmp_path / "acls.json"
        rules = [Rule(principal="User:ANONYMOUS", **each) for each in allowed]
        write_rules(acls, [NOBODY, *rules])
        broker = await start(acl_file=acls)
        for topic in ("t", "u"):
            await broker.topics.create(topic)
        client = await connect(broker)
        client.broker = broker
        return client

    return client_with


def test_every_api_has_an_access_rule_or_is_open_on_purpose() -> None:
    checks_in_its_handler = {"Produce", "Fetch"}
    assert {api.name for api in SERVED if not isinstance(api, Api)} == checks_in_its_handler
    assert all(callable(api.access) for api in SERVED if isinstance(api, Api))
    names = {api.name for api in SERVED if api.key in OPEN}
    assert names == {"SaslHandshake", "ApiVersions", "SaslAuthenticate", "DescribeCluster"}


def test_every_api_with_an_access_rule_is_tried() -> None:
    assert {key for key, *_ in CASES} == {api.key for api in SERVED} - OPEN


@pytest.mark.parametrize(
    ("key", "version", "request_fields", "expected"),
    [pytest.param(*case, id=f"{case[0]}-v{case[1]}-{at}") for at, case in enumerate(CASES)],
)
async def test_every_api_refuses_a_client_without_permissions(
    client_with: Guarded,
    key: int,
    version: int,
    request_fields: dict[str, Any],
    expected: set[ErrorCode],
) -> None:
    client = await client_with()
    answer = await client.call(key, version, **request_fields)
    assert codes(answer) == expected
    assert [topic.name for topic in client.broker.topics] == ["t", "u"]


@pytest.mark.parametrize("key", sorted(OPEN))
async def test_open_apis_need_no_permission(client_with: Guarded, key: int) -> None:
    client = await client_with()
    extra = {"mechanism": "PLAIN"} if key == 17 else {}
    answer = await client.call(key, 0, **extra)
    assert codes(answer) <= {NONE, ErrorCode.illegal_sasl_state}


async def test_one_request_is_done_in_part_and_refused_in_part(client_with: Guarded) -> None:
    client = await client_with(
        {
            "operations": (Operation.DESCRIBE, Operation.DELETE, Operation.ALTER),
            "topics": ("t",),
            "groups": ("g",),
        },
        {"operations": (Operation.CREATE,), "topics": ("new-*",)},
    )

    def by_name(elements: Any, code: str = "error_code") -> dict[str, ErrorCode]:
        return {each.name: getattr(each, code) for each in elements}

    named = [{"name": each} for each in ("t", "u")]
    answer = await client.call(3, 12, topics=named)
    assert by_name(answer.topics) == {"t": NONE, "u": TOPIC}
    answer = await client.call(3, 12, topics=None)
    assert by_name(answer.topics) == {"t": NONE}
    answer = await client.call(3, 0, topics=[])
    assert by_name(answer.topics) == {"t": NONE}

    paged = {"response_partition_limit": 9, "cursor": None}
    answer = await client.call(75, 0, topics=named, **paged)
    assert by_name(answer.topics) == {"t": NONE, "u": TOPIC}
    answer = await client.call(75, 0, topics=[], **paged)
    assert by_name(answer.topics) == {"t": NONE}

    answer = await client.call(2, 7, topics=[{**each, **PARTITIONS} for each in named])
    found = {each.name: each.partitions[0] for each in answer.topics}
    assert (found["t"].error_code, found["u"].error_code) == (NONE, TOPIC)
    assert (found["u"].partition_index, found["u"].offset) == (0, -1)

    wanted = [
        {"name": each, "num_partitions": 1, "replication_factor": 1} for each in ("new-1", "x")
    ]
    answer = await client.call(19, 7, topics=wanted)
    assert by_name(answer.topics) == {"new-1": NONE, "x": TOPIC}
    assert {e.error_message for e in answer.topics} == {None, "not authorized for this topic"}

    more = [{**each, "count": 2} for each in named]
    answer = await client.call(37, 3, topics=more)
    assert by_name(answer.results) == {"t": NONE, "u": TOPIC}

    answer = await client.call(15, 5, groups=["g", "h"])
    assert {each.group_id: each.error_code for each in answer.groups} == {"g": NONE, "h": GROUP}

    wanted_groups = [
        {"group_id": group, "topics": [{**each, "partition_indexes": [0]} for each in named]}
        for group in ("g", "h")
    ]
    answer = await client.call(9, 8, groups=wanted_groups)
    groups = {each.group_id: each for each in answer.groups}
    assert groups["h"].error_code is GROUP
    shown = {each.name: each.partitions[0] for each in groups["g"].topics}
    assert (shown["t"].error_code, shown["u"].error_code) == (NONE, TOPIC)
    assert shown["u"].committed_offset == -1

    topic_id = client.broker.topics.get("u").topic_id
    disguised = [{"name": "t", "topic_id": topic_id}]  # the id takes precedence
    answer = await client.call(3, 12, topics=disguised)
    assert [each.error_code for each in answer.topics] == [TOPIC]

    answer = await client.call(20, 6, topics=[{"name": "t"}, {"name": None, "topic_id": topic_id}])
    assert sorted(each.error_code for each in answer.responses) == [NONE, TOPIC]
    assert sorted(each.name for each in client.broker.topics) == ["new-1", "u"]


async def test_creating_a_topic_on_demand_needs_a_permission(
    client_with: Guarded,
) -> None:
    client = await client_with(
        {"operations": (Operation.DESCRIBE,), "topics": ("*",)},
        {"operations": (Operation.CREATE,), "topics": ("mine",)},
    )
    named = [{"name": each} for each in ("mine", "other", "t")]
    answer = await client.call(3, 12, topics=named, allow_auto_topic_creation=True)
    found = {each.name: each.error_code for each in answer.topics}
    assert found == {"mine": NONE, "other": TOPIC, "t": NONE}


async def test_topics_of_a_transaction_are_added_together_or_not_at_all(
    client_with: Guarded,
) -> None:
    client = await client_with(
        {"operations": (Operation.WRITE,), "topics": ("t",), "transactional_ids": ("x",)}
    )
    made = await client.call(22, 4, transactional_id="x", transaction_timeout=MINUTE)
    assert made.error_code is NONE
    request = {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": made.producer_id,
        "v3_and_below_producer_epoch": made.producer_epoch,
    }
    both = [{"name": name, "partitions": [0]} for name in ("t", "u")]
    answer = await client.call(24, 3, **request, v3_and_below_topics=both)
    found = {
        each.name: each.results_by_partition[0].partition_error_code
        for each in answer.results_by_topic_v3_and_below
    }
    assert found == {"t": ErrorCode.operation_not_attempted, "u": TOPIC}
    answer = await client.call(24, 3, **request, v3_and_below_topics=both[:1])
    assert codes(answer) == {NONE}


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ({"operations": (Operation.WRITE,), "topics": ("t*",)}, NONE),
        ({"operations": (Operation.IDEMPOTENT_WRITE,), "cluster": True}, NONE),
        ({"operations": (Operation.WRITE,), "cluster": True}, CLUSTER),
    ],
)
async def test_an_idempotent_producer_needs_a_topic_to_write_to(
    client_with: Guarded, allowed: dict[str, Any], code: ErrorCode
) -> None:
    client = await client_with(allowed)
    answer = await client.call(22, 4, transactional_id=None, transaction_timeout=MINUTE)
    assert answer.error_code is code
    assert (answer.producer_id >= 0) is (code is NONE)


async def test_produce_and_fetch_do_the_allowed_part_of_one_request(
    client_with: Guarded, batch: Batch
) -> None:
    client = await client_with({"operations": (Operation.READ, Operation.WRITE), "topics": ("t",)})
    data = [{"name": n, "partition_data": [{"index": 0, "records": batch(b"v")}]} for n in "tu"]
    answer = await client.call(0, 11, acks=-1, timeout=MINUTE, topic_data=data)
    parts = {each.name: each.partition_responses[0] for each in answer.responses}
    assert (parts["t"].error_code, parts["u"].error_code) == (NONE, TOPIC)
    assert "may not write to 'u'" in parts["u"].error_message
    wanted = [
        {"topic": n, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]} for n in "tu"
    ]
    answer = await client.call(1, 12, max_wait=MINUTE, min_bytes=1, max_bytes=9999, topics=wanted)
    got = {each.topic: each.partitions[0] for each in answer.responses}
    assert (got["t"].error_code, got["u"].error_code) == (NONE, TOPIC)
    assert got["t"].records
    assert not got["u"].records


async def test_produce_and_fetch_by_topic_id_need_the_permissions_of_the_topic(
    client_with: Guarded, batch: Batch
) -> None:
    client = await client_with({"operations": (Operation.READ, Operation.WRITE), "topics": ("t",)})
    ids = {name: client.broker.topics.get(name).topic_id for name in "tu"}
    data = [
        {"topic_id": ids[n], "partition_data": [{"index": 0, "records": batch(b"v")}]} for n in "tu"
    ]
    answer = await client.call(0, 13, acks=-1, timeout=MINUTE, topic_data=data)
    parts = {each.topic_id: each.partition_responses[0] for each in answer.responses}
    assert [parts[ids[n]].error_code for n in "tu"] == [NONE, TOPIC]
    assert f"may not write to '{ids['u']}'" in parts[ids["u"]].error_message  # not by its name
    wanted = [
        {"topic_id": ids[n], "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}
        for n in "tu"
    ]
    answer = await client.call(1, 18, max_wait=MINUTE, min_bytes=1, max_bytes=9999, topics=wanted)
    got = {each.topic_id: each.partitions[0] for each in answer.responses}
    assert [got[ids[n]].error_code for n in "tu"] == [NONE, TOPIC]
    assert got[ids["t"]].records
    assert not got[ids["u"]].records


async def test_offsets_by_topic_id_need_the_permissions_of_the_topic(client_with: Guarded) -> None:
    client = await client_with(
        {"operations": (Operation.READ,), "topics": ("t",)},
        {"operations": (Operation.READ,), "groups": ("g",)},
    )
    ids = [client.broker.topics.get(name).topic_id for name in "tu"]
    parts = {"partitions": [{"partition_index": 0, "committed_offset": 3}]}
    topics = [{"topic_id": each, **parts} for each in ids]
    answer = await client.call(8, 10, group_id="g", topics=topics)
    got = {each.topic_id: each.partitions[0].error_code for each in answer.topics}
    assert [got[each] for each in ids] == [NONE, TOPIC]
    wanted = [{"topic_id": each, "partition_indexes": [0]} for each in ids]
    answer = await client.call(9, 10, groups=[{"group_id": "g", "topics": wanted}])
    found = {each.topic_id: each.partitions[0] for each in answer.groups[0].topics}
    assert [(found[each].error_code, found[each].committed_offset) for each in ids] == [
        (NONE, 3),
        (TOPIC, -1),
    ]


async def test_lists_show_only_what_the_client_may_describe(client_with: Guarded) -> None:
    client = await client_with(
        {
            "operations": (Operation.ALL,),
            "groups": ("mine",),
            "topics": ("t",),
        }
    )
    joined = await client.call(
        *(11, 0),
        group_id="mine",
        session_timeout=MINUTE,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert joined.error_code is NONE
    answer = await client.call(16, 4)
    assert [each.group_id for each in answer.groups] == ["mine"]


@pytest.mark.parametrize(
    ("operation", "described", "altered", "listed"),
    [
        (Operation.DESCRIBE, TOPIC, TOPIC, CLUSTER),
        (Operation.ALTER, TOPIC, TOPIC, CLUSTER),
        (Operation.DESCRIBE_CONFIGS, NONE, TOPIC, NONE),
        (Operation.ALTER_CONFIGS, NONE, NONE, NONE),
    ],
)
async def test_configurations_have_operations_of_their_own(
    client_with: Guarded,
    operation: Operation,
    described: ErrorCode,
    altered: ErrorCode,
    listed: ErrorCode,
) -> None:
    client = await client_with({"operations": (operation,), "topics": ("t",), "cluster": True})
    resources = [{"resource_type": 2, "resource_name": "t"}]
    assert codes((await client.call(32, 4, resources=resources)).results) == {described}
    for key, version in ((33, 2), (44, 1)):
        answer = await client.call(key, version, resources=resources)
        assert codes(answer.responses) == {altered}
    assert (await client.call(74, 1)).error_code is listed


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
    """By Metadata, for clients older than DescribeCluster."""
    answer = await client.call(METADATA, 9, include_cluster_authorized_operations=True)
    return int(answer.cluster_authorized_operations)


ON_TOPIC = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
ON_GROUP = READ | DELETE | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
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
async def test_descriptions_have_the_operations_that_the_client_may_do(
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


async def test_operations_are_returned_on_request_only(broker: Broker, connect: Connect) -> None:
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
