"""The group APIs over a socket, in every version."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from broker.apis.groups import APIS
from broker.apis.membership import error_code
from broker.membership import GroupError
from broker.wire.messages import default_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker import Broker

    Start = Callable[..., Awaitable[Broker]]

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = range(8, 15)
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47
TEN_SECONDS = i32Timedelta.parse(timedelta(seconds=10))


class Wire:
    """Sends requests of any version."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(self, key: int, version: int, /, **values: object) -> Any:
        """Fields that this version does not have are left out, those not given are empty."""
        return await self._client.ask(default_message(load_request_schema(key, version), **values))


def part(key: int, version: int, entity: str, /, **values: object) -> Any:
    """A nested entity of a request."""
    module = import_module(load_request_schema(key, version).__module__)
    return default_message(getattr(module, entity), **values)


@pytest.fixture
async def broker(start: Start) -> Broker:
    """A broker with a topic "t" of four partitions."""
    broker = await start(default_partitions=4, group_min_session_timeout=0.1)
    await broker.topics.create("t")
    return broker


@pytest.fixture
async def wire(broker: Broker, connect: Callable[[Broker], Awaitable[Any]]) -> Wire:
    return Wire(await connect(broker))


def versions(*keys: int) -> list[Any]:
    """All (api key, version) that are served for these keys."""
    return [
        pytest.param(key, version, id=f"{load_request_schema(key, version).__name__}-v{version}")
        for key in keys
        for api in APIS
        if api.key == key
        for version in range(api.min_version, api.max_version + 1)
    ]


async def join(wire: Wire, version: int = 9, member_id: str = "", group: str = "g") -> Any:
    protocol = part(JOIN, version, "JoinGroupRequestProtocol", name="range", metadata=b"m")
    return await wire.call(
        JOIN,
        version,
        group_id=group,
        session_timeout=TEN_SECONDS,
        rebalance_timeout=TEN_SECONDS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(protocol,),
    )


async def member(wire: Wire, version: int = 9, group: str = "g") -> Any:
    """Join, with a second request where the version asks for it."""
    joined = await join(wire, version, group=group)
    if joined.error_code is ErrorCode.member_id_required:
        joined = await join(wire, version, joined.member_id, group=group)
    assert joined.error_code is ErrorCode.none
    return joined


async def synced_member(wire: Wire, group: str = "g") -> Any:
    joined = await member(wire, group=group)
    assert (await sync(wire, 5, joined, group)).assignment == b"plan"
    return joined


async def sync(wire: Wire, version: int, joined: Any, group: str = "g") -> Any:
    assignment = part(
        SYNC,
        version,
        "SyncGroupRequestAssignment",
        member_id=joined.member_id,
        assignment=b"plan",
    )
    return await wire.call(
        SYNC,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=(assignment,),
    )


def test_every_refusal_has_an_error_code() -> None:
    assert error_code(None) is ErrorCode.none
    for error in GroupError:
        assert error_code(error).name == error.name.lower()


def test_the_versions_are_those_of_the_design() -> None:
    served: dict[int, tuple[int, int]] = {}
    for api in APIS:
        low, high = served.get(api.key, (api.min_version, api.max_version))
        served[api.key] = (min(low, api.min_version), max(high, api.max_version))
    assert served == {
        OFFSET_COMMIT: (2, 8),
        OFFSET_FETCH: (1, 8),
        FIND_COORDINATOR: (0, 6),
        JOIN: (0, 9),
        HEARTBEAT: (0, 4),
        LEAVE: (0, 5),
        SYNC: (0, 5),
        DESCRIBE: (0, 6),
        LIST: (0, 5),
        DELETE: (0, 2),
        OFFSET_DELETE: (0, 0),
    }


@pytest.mark.parametrize(("key", "version"), versions(JOIN))
async def test_join_group(wire: Wire, key: int, version: int) -> None:
    first = await join(wire, version)
    if version >= 4:
        assert first.error_code is ErrorCode.member_id_required
        first = await join(wire, version, first.member_id)
    assert first.error_code is ErrorCode.none
    assert first.generation_id == 1
    assert first.protocol_name == "range"
    assert first.leader == first.member_id
    assert [each.metadata for each in first.members] == [b"m"]

    refused = await wire.call(
        key, version, group_id="g", session_timeout=TEN_SECONDS, member_id="nobody"
    )
    assert refused.error_code is ErrorCode.inconsistent_group_protocol
    assert refused.generation_id == -1


@pytest.mark.parametrize(("key", "version"), versions(SYNC))
async def test_sync_group(wire: Wire, key: int, version: int) -> None:
    joined = await member(wire)
    synced = await sync(wire, version, joined)
    assert synced.error_code is ErrorCode.none
    assert synced.assignment == b"plan"
    stale = await wire.call(key, version, group_id="g", generation_id=0, member_id=joined.member_id)
    assert stale.error_code is ErrorCode.illegal_generation
    assert stale.assignment == b""


@pytest.mark.parametrize(("key", "version"), versions(HEARTBEAT))
async def test_heartbeat(wire: Wire, key: int, version: int) -> None:
    joined = await synced_member(wire)
    for member_id, generation, expected in (
        (joined.member_id, 1, ErrorCode.none),
        (joined.member_id, 2, ErrorCode.illegal_generation),
        ("nobody", 1, ErrorCode.unknown_member_id),
    ):
        response = await wire.call(
            key, version, group_id="g", generation_id=generation, member_id=member_id
        )
        assert response.error_code is expected


@pytest.mark.parametrize(("key", "version"), versions(LEAVE))
async def test_leave_group(wire: Wire, key: int, version: int) -> None:
    joined = await synced_member(wire)
    for member_id, expected in (
        ("nobody", ErrorCode.unknown_member_id),
        (joined.member_id, ErrorCode.none),
        (joined.member_id, ErrorCode.unknown_member_id),
    ):
        if version < 3:
            response = await wire.call(key, version, group_id="g", member_id=member_id)
            assert response.error_code is expected
        else:
            leaving = part(key, version, "MemberIdentity", member_id=member_id)
            response = await wire.call(key, version, group_id="g", members=(leaving,))
            assert response.error_code is ErrorCode.none
            assert [each.error_code for each in response.members] == [expected]


async def commit(
    wire: Wire,
    version: int,
    topics: dict[str, dict[int, tuple[int, str | None]]],
    joined: Any = None,
    group: str = "g",
) -> dict[tuple[str, int], ErrorCode]:
    key = OFFSET_COMMIT
    response = await wire.call(
        key,
        version,
        group_id=group,
        generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
        member_id="" if joined is None else joined.member_id,
        topics=tuple(
            part(
                key,
                version,
                "OffsetCommitRequestTopic",
                name=topic,
                partitions=tuple(
                    part(
                        key,
                        version,
                        "OffsetCommitRequestPartition",
                        partition_index=index,
                        committed_offset=offset,
                        committed_metadata=metadata,
                    )
                    for index, (offset, metadata) in partitions.items()
                ),
            )
            for topic, partitions in topics.items()
        ),
    )
    return {
        (topic.name, each.partition_index): each.error_code
        for topic in response.topics
        for each in topic.partitions
    }


async def fetch(
    wire: Wire, version: int, topics: dict[str, tuple[int, ...]] | None
) -> dict[tuple[str, int], tuple[int, str]]:
    key = OFFSET_FETCH
    entity = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
    wanted = topics and tuple(
        part(key, version, entity, name=topic, partition_indexes=indexes)
        for topic, indexes in topics.items()
    )
    if version >= 8:
        group = part(key, version, "OffsetFetchRequestGroup", group_id="g", topics=wanted)
        response = (await wire.call(key, version, groups=(group,))).groups[0]
    else:
        response = await wire.call(key, version, group_id="g", topics=wanted)
    assert version < 2 or response.error_code is ErrorCode.none
    return {
        (topic.name, each.partition_index): (each.committed_offset, each.metadata)
        for topic in response.topics
        for each in topic.partitions
        if each.error_code is ErrorCode.none
    }


@pytest.mark.parametrize(("key", "version"), versions(OFFSET_COMMIT))
async def test_offset_commit(wire: Wire, key: int, version: int) -> None:
    joined = await synced_member(wire)
    outcome = await commit(
        wire,
        version,
        {"t": {0: (5, "note"), 1: (6, None), 2: (7, "x" * 4097), 9: (1, "")}, "none": {0: (1, "")}},
        joined,
    )
    assert outcome == {
        ("t", 0): ErrorCode.none,
        ("t", 1): ErrorCode.none,
        ("t", 2): ErrorCode.offset_metadata_too_large,
        ("t", 9): ErrorCode.unknown_topic_or_partition,
        ("none", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert await fetch(wire, 8, None) == {("t", 0): (5, "note"), ("t", 1): (6, "")}
    outsider = await commit(wire, version, {"t": {0: (9, "")}})
    assert outsider == {("t", 0): ErrorCode.unknown_member_id}


@pytest.mark.parametrize(("key", "version"), versions(OFFSET_FETCH))
async def test_offset_fetch(wire: Wire, key: int, version: int) -> None:
    await commit(wire, 8, {"t": {0: (5, "note"), 1: (6, "")}})
    asked = {"t": (0, 3), "none": (0,)}
    assert await fetch(wire, version, asked) == {
        ("t", 0): (5, "note"),
        ("t", 3): (-1, ""),
        ("none", 0): (-1, ""),
    }
    if version >= 2:
        assert await fetch(wire, version, None) == {("t", 0): (5, "note"), ("t", 1): (6, "")}


@pytest.mark.parametrize(("key", "version"), versions(FIND_COORDINATOR))
async def test_find_coordinator(wire: Wire, broker: Broker, key: int, version: int) -> None:
    found = await wire.call(key, version, key="g", key_type=0, coordinator_keys=("g", "h"))
    for each in found.coordinators if version >= 4 else [found]:
        assert each.error_code is ErrorCode.none
        assert f"{each.host}:{each.port}" == broker.bootstrap_servers
        assert each.node_id == 0
    if version >= 1:
        unknown = await wire.call(key, version, key="g", key_type=9, coordinator_keys=("g",))
        each = unknown.coordinators[0] if version >= 4 else unknown
        assert each.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(("key", "version"), versions(DESCRIBE))
async def test_describe_groups(wire: Wire, key: int, version: int) -> None:
    joined = await synced_member(wire)
    group, missing = (await wire.call(key, version, groups=("g", "missing"))).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (described,) = group.members
    assert described.member_id == joined.member_id
    assert (described.client_id, described.client_host) == ("raw", "/127.0.0.1")
    assert (described.member_metadata, described.member_assignment) == (b"m", b"plan")
    not_found = ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none
    assert (missing.error_code, missing.group_state) == (not_found, "Dead")


@pytest.mark.parametrize(("key", "version"), versions(LIST))
async def test_list_groups(wire: Wire, key: int, version: int) -> None:
    await synced_member(wire)
    await commit(wire, 8, {"t": {0: (1, "")}}, group="tool")
    listed = await wire.call(key, version)
    assert {(each.group_id, each.protocol_type) for each in listed.groups} == {
        ("g", "consumer"),
        ("tool", ""),
    }
    if version >= 4:
        stable = await wire.call(key, version, states_filter=("stable",))
        assert [each.group_id for each in stable.groups] == ["g"]
        assert stable.groups[0].group_state == "Stable"
    if version >= 5:
        assert {each.group_type for each in listed.groups} == {"classic"}
        of_type = [await wire.call(key, version, types_filter=(t,)) for t in ("Classic", "share")]
        assert [len(each.groups) for each in of_type] == [2, 0]


@pytest.mark.parametrize(("key", "version"), versions(DELETE))
async def test_delete_groups(wire: Wire, key: int, version: int) -> None:
    await synced_member(wire)
    await commit(wire, 8, {"t": {0: (1, "")}}, group="tool")
    deleted = await wire.call(key, version, groups_names=("g", "tool", "missing"))
    assert {each.group_id: each.error_code for each in deleted.results} == {
        "g": ErrorCode.non_empty_group,
        "tool": ErrorCode.none,
        "missing": ErrorCode.group_id_not_found,
    }


async def test_deleting_a_topic_forgets_what_groups_committed_for_it(
    wire: Wire, broker: Broker
) -> None:
    await commit(wire, 8, {"t": {0: (5, "")}})
    await wire.call(20, 5, topic_names=("t",))
    await broker.topics.create("t")
    assert await fetch(wire, 8, None) == {}
