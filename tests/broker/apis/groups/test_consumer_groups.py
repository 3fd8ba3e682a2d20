"""Groups of KIP-848 on the wire: epochs, offsets, the restart of a broker, and the change of the protocol."""

from __future__ import annotations

from datetime import timedelta
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
