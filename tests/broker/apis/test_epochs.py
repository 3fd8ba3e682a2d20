from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
OFFSET_FOR_LEADER_EPOCH, PRODUCE = 23, 0


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_the_only_epoch_ends_where_the_log_ends(
    broker: Broker, connect: Connect, batch: Callable[..., bytes], version: int
) -> None:
    await broker.topics.create("t")
    client = await connect(broker)
    records = {"index": 0, "records": batch(b"a", b"b")}
    topics = [{"name": "t", "partition_data": [records]}]
    await client.call(PRODUCE, 8, acks=-1, topic_data=topics)

    async def ask(partition: int, epoch: int, current: int = 0) -> tuple[ErrorCode, int, int]:
        wanted = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}
        response = await client.call(
            OFFSET_FOR_LEADER_EPOCH, version, topics=[{"topic": "t", "partitions": [wanted]}]
        )
        found = response.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert await ask(0, 0) == (ErrorCode.none, 0, 2)
    assert await ask(0, 1) == (ErrorCode.none, -1, -1)
    assert await ask(0, 0, current=3) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert await ask(1, 0) == (ErrorCode.unknown_topic_or_partition, -1, -1)
