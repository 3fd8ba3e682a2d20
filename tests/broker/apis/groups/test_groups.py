"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker.apis.groups.groups import group_error_code
from kmr.broker.coordinators.groups.group_types import GroupError

from .group_requests import (
    APIS,
    DELETE,
    DESCRIBE,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
    TEN_SECONDS,
    Wire,
    commit,
    join,
    member,
    part,
    sync,
    synced_member,
    versions,
)

if TYPE_CHECKING:
    from kmr.broker import Broker


def test_the_versions_are_those_of_the_design() -> None:
    served: dict[int, tuple[int, int]] = {}
    for api in APIS:
        low, high = served.get(api.key, (api.min_version, api.max_version))
        served[api.key] = (min(low, api.min_version), max(high, api.max_version))
    assert served == {
        OFFSET_COMMIT: (2, 9),
        OFFSET_FETCH: (1, 9),
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


def test_every_refusal_has_an_error_code() -> None:
    assert group_error_code(None) is ErrorCode.none
    for error in GroupError:
        assert group_error_code(error).name == error.name.lower()


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
