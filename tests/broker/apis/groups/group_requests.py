"""Requests of the group APIs, in any version."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from kmr.broker.apis.catalogue import apis_of
from kmr.broker.apis.groups import committed_offsets, groups
from kmr.broker.protocol.messages import default_message

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = range(8, 15)
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47
APIS = [api for module in (groups, committed_offsets) for api in apis_of(module)]
TEN_SECONDS = i32Timedelta.parse(timedelta(seconds=10))


class Wire:
    """A client that sends requests of any version."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(self, key: int, version: int, /, **values: object) -> Any:
        """Send a request; leave out fields that this version lacks, and fill in defaults."""
        return await self._client.ask(default_message(load_request_schema(key, version), **values))


def part(key: int, version: int, entity: str, /, **values: object) -> Any:
    """A nested entity of a request."""
    module = import_module(load_request_schema(key, version).__module__)
    return default_message(getattr(module, entity), **values)


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
    """Join, with a second request in versions that require it."""
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
