"""The letters of a topic, and the passes that are written there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer

from kmr.dead_letters.passes import Filter, Pass
from kmr.dead_letters.topic_letters import (
    find_letters,
    read_letters,
    unfinished_pass,
    write_pass,
)
from kmr.errors import ConsumerError
from kmr.kafka.connection import ConnectionConfig
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from kmr.broker import Broker


@pytest.fixture
async def config(broker: Broker) -> ConnectionConfig:
    """Of a broker whose topic `dead` has the letters of two records."""
    await broker.topics.create("dead", 1)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for offset in (b"7", b"8"):
            headers = [("kmr.topic", b"orders"), ("kmr.partition", b"3"), ("kmr.offset", offset)]
            await producer.send_and_wait("dead", b"", None, 0, headers=headers)
    return ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)


async def test_letters_are_open_until_a_pass_covers_them(config: ConnectionConfig) -> None:
    known = await read_letters(config, "dead")
    assert (known.open.tolist(), known.ends) == ([True, True], {0: 2})
    replay = Pass(
        name="p",
        action="replay",
        begun=1,
        ends=known.ends,
        chosen=Filter(first=8),
        to="s",
        limit=None,
    )
    await write_pass(config, "dead", replay)
    again = await read_letters(config, "dead")
    assert (again.open.tolist(), again.passes) == ([True, False], [replay])
    unfinished = await unfinished_pass(config, "dead", again)  # its group has committed nothing
    assert unfinished is not None
    assert (unfinished[0], unfinished[1].tolist()) == (replay, [False, True])


async def test_a_letter_is_found_by_its_place_and_by_that_of_its_record(
    config: ConnectionConfig,
) -> None:
    (by_record,) = await find_letters(
        config, "dead", TopicPartition("orders", 3), 8, of_record=True
    )
    (by_place,) = await find_letters(config, "dead", TopicPartition("dead", 0), 1, of_record=False)
    assert by_record.equals(by_place)
    with pytest.raises(ConsumerError, match="dead has no letter for orders-3 offset 9"):
        await find_letters(config, "dead", TopicPartition("orders", 3), 9, of_record=True)
