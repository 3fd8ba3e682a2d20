"""Groups of KIP-848 on the wire: epochs, offsets, the restart of a broker, and the change of the protocol."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta

from .group_requests import (
    DELETE,
    LEAVE,
    OFFSET_FETCH,
    Wire,
    commit,
    join,
    part,
    synced_member,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kmr.broker import Broker

    Start = Callable[..., Awaitable[Broker]]
    Connect = Callable[[Broker], Awaitable[Any]]


def joining(member: str, *topics: str, regex: str | None = None) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=GroupId("k"),
        member_id=member,
        member_epoch=i32(0),
        rebalance_timeout=i32Timedelta.parse(timedelta(minutes=1)),
        subscribed_topic_names=tuple(map(TopicName, topics)),
        subscribed_topic_regex=regex,
        topic_partitions=(),
    )


def beating(
    member: str, epoch: int, owned: tuple[TopicPartitions, ...] | None = None
) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=GroupId("k"), member_id=member, member_epoch=i32(epoch), topic_partitions=owned
    )


async def test_a_member_goes_on_with_its_epoch_after_a_restart_of_the_broker(
    start: Start, connect: Connect
) -> None:
    broker = await start()
    topic = await broker.topics.create("t", 3)
    client = await connect(broker)
    joined = await client.ask(joining("m", "t"))
    (given,) = joined.assignment.topic_partitions
    assert (given.topic_id, given.partitions) == (topic.topic_id, (0, 1, 2))
    assert (joined.error_code, joined.heartbeat_interval) == (0, timedelta(seconds=5))
    await client.close()
    await broker.__aexit__(None, None, None)

    broker = await start()
    client = await connect(broker)
    beat = await client.ask(beating("m", joined.member_epoch))
    assert (beat.error_code, beat.member_epoch) == (0, joined.member_epoch)
    (group,) = (
        await client.ask(
            ConsumerGroupDescribeRequest(
                group_ids=(GroupId("k"),), include_authorized_operations=False
            )
        )
    ).groups
    assert (group.group_state, group.assignor_name) == ("Stable", "uniform")
    (member,) = group.members
    assert member.assignment == member.target_assignment
    wanted = ListGroupsRequest(states_filter=(), types_filter=("Consumer",))
    (listed,) = (await client.ask(wanted)).groups
    assert (listed.group_id, listed.group_state, listed.group_type) == ("k", "Stable", "consumer")


async def test_bad_requests_and_patterns_are_refused(start: Start, connect: Connect) -> None:
    broker = await start()
    await broker.topics.create("ta")
    client = await connect(broker)
    for request, code in (
        (joining("", "ta"), ErrorCode.invalid_request),
        (beating("m", 1), ErrorCode.unknown_member_id),
        (beating("m", -2), ErrorCode.invalid_request),
        (joining("m", regex="("), ErrorCode.invalid_regular_expression),
        (joining("m", regex="a)|(b"), ErrorCode.invalid_regular_expression),
    ):
        assert (await client.ask(request)).error_code == code
    joined = await client.ask(joining("m", regex="t."))
    assert len(joined.assignment.topic_partitions) == 1
    await broker.topics.create("tb")
    await broker.topics.create("other")
    owned = tuple(
        TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
        for each in joined.assignment.topic_partitions
    )
    grown = await client.ask(beating("m", joined.member_epoch, owned))
    assert len(grown.assignment.topic_partitions) == 2


async def test_members_commit_with_versions_that_know_epochs_only(
    start: Start, connect: Connect
) -> None:
    broker = await start()
    await broker.topics.create("t")
    client = await connect(broker)
    wire = Wire(client)
    epoch = (await client.ask(joining("m", "t"))).member_epoch
    for version in range(2, 9):
        for sent in (epoch, epoch - 1, epoch + 5):
            refused = await _committed(wire, "m", sent, 7, version=version)
            assert refused == ErrorCode.unsupported_version
        assert await _committed(wire, "x", epoch, 7, version=version) == ErrorCode.unknown_member_id
        assert await _committed(wire, "", -1, 7, version=version) == ErrorCode.unknown_member_id
    assert await _committed(wire, "m", epoch, 7) == ErrorCode.none
    assert (await client.ask(beating("m", -1))).error_code == ErrorCode.none
    assert await _committed(wire, "", -1, 8, version=2) == ErrorCode.none, "the group is empty"


async def test_a_group_without_members_changes_its_protocol_and_keeps_its_offsets(
    start: Start, connect: Connect
) -> None:
    broker = await start()
    await broker.topics.create("t")
    client = await connect(broker)
    wire = Wire(client)
    joined = await client.ask(joining("m", "t"))
    epoch = joined.member_epoch
    assert await _committed(wire, "m", epoch - 1, 7) == ErrorCode.stale_member_epoch
    assert await _committed(wire, "other", epoch, 7) == ErrorCode.unknown_member_id
    assert await _committed(wire, "m", epoch, 7) == ErrorCode.none
    assert (await join(wire, group="k")).error_code == ErrorCode.inconsistent_group_protocol
    refused = await wire.call(DELETE, 2, groups_names=(GroupId("k"),))
    assert refused.results[0].error_code == ErrorCode.non_empty_group

    assert (await client.ask(beating("m", -1))).error_code == ErrorCode.none
    classic = await synced_member(wire, group="k")
    assert (await client.ask(joining("m", "t"))).error_code == ErrorCode.group_id_not_found
    await wire.call(LEAVE, 2, group_id="k", member_id=classic.member_id)

    again = await client.ask(joining("m", "t"))
    assert again.error_code == ErrorCode.none
    for member, asked_epoch, code in (
        ("m", again.member_epoch, ErrorCode.none),
        ("m", again.member_epoch + 1, ErrorCode.stale_member_epoch),
        ("x", again.member_epoch, ErrorCode.unknown_member_id),
    ):
        asked = part(
            OFFSET_FETCH,
            9,
            "OffsetFetchRequestGroup",
            group_id="k",
            member_id=member,
            member_epoch=asked_epoch,
            topics=None,
        )
        (group,) = (await wire.call(OFFSET_FETCH, 9, groups=(asked,), require_stable=False)).groups
        assert group.error_code == code
        if code == ErrorCode.none:
            assert group.topics[0].partitions[0].committed_offset == 7


async def _committed(
    wire: Wire, member: str, epoch: int, offset: int, *, version: int = 9
) -> ErrorCode:
    sender = SimpleNamespace(member_id=member, generation_id=epoch)
    codes = await commit(wire, version, {"t": {0: (offset, "")}}, sender, group="k")
    return codes["t", 0]
