"""Consumers that ask for the group protocol of KIP-848 hear at once that it is not there."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]

LIST_GROUPS, CONSUMER_GROUP_HEARTBEAT = 16, 68


@pytest.mark.parametrize("version", range(2))
async def test_a_heartbeat_of_the_new_protocol_is_refused(
    broker: Broker, connect: Connect, version: int
) -> None:
    client = await connect(broker)
    answer = await client.call(
        CONSUMER_GROUP_HEARTBEAT,
        version,
        group_id="g",
        member_id="m",
        subscribed_topic_names=["t"],
    )
    assert answer.error_code is ErrorCode.unsupported_version
    assert "group.protocol=classic" in answer.error_message
    assert (answer.member_id, answer.assignment) == ("m", None)
    assert not (await client.call(LIST_GROUPS, 4)).groups
