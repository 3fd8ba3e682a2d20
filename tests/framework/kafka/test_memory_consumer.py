"""The consumer without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.errors import CommitFenced, reason_of
from kmr.kafka.consumer import CommitOffset
from kmr.testing import MemoryConsumer, batch_of

from ..workers import P0, P1

if TYPE_CHECKING:
    from kmr.types import TopicPartition


class Listener:
    """A listener that agrees to everything."""

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None: ...

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None: ...


async def assigned(*partitions: TopicPartition) -> MemoryConsumer:
    consumer = MemoryConsumer()
    for partition in (P0, P1):
        for first in (0, 2):
            consumer.put(batch_of(*partition, first, [b"a", b"b"]))
    await consumer.start(Listener())
    await consumer.assign(partitions)
    return consumer


async def test_the_consumer_reads_from_the_committed_offset_also_inside_a_batch() -> None:
    consumer = await assigned(P0)
    await consumer.commit({P0: CommitOffset(1)})
    await consumer.assign([P0])
    (batch,) = await consumer.poll()
    assert (batch.first, batch.last) == (1, 1)
    (batch,) = await consumer.poll()
    assert (batch.first, batch.last) == (2, 3)


async def test_a_paused_partition_is_not_read_until_it_is_resumed() -> None:
    consumer = await assigned(P0, P1)
    consumer.pause([P0])
    assert [batch.partition for batch in await consumer.poll()] == [1]
    consumer.resume([P0])
    assert sorted(batch.partition for batch in await consumer.poll()) == [0, 1]


async def test_a_fenced_consumer_refuses_commits() -> None:
    consumer = await assigned(P0)
    consumer.fenced = True
    with pytest.raises(CommitFenced) as refused:
        await consumer.commit({P0: CommitOffset(1)})
    assert reason_of(refused.value) == "CommitFenced: the group has a new generation"
    assert consumer.commits == []
