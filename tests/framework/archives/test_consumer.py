"""A member of a group that reads the archive first, and the topic from where that ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import aiokafka
import anyio
from aiokafka.admin import RecordsToDelete

from kmr.archives.consumer import ArchiveConsumer
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import consumer_config
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition
from kmr.settings import Settings
from tests.framework.archives.conftest import records

if TYPE_CHECKING:
    from kmr.broker import Broker
    from tests.framework.conftest import CreateTopic, Produce

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Quiet:
    """A listener that seeks nothing."""

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None: ...


async def read(consumer: ArchiveConsumer, **until: int) -> dict[str, list[int]]:
    """Read until partitions (`p0=20`) are at these offsets; return all offsets of both."""
    found: dict[str, list[int]] = {"p0": [], "p1": []}
    with anyio.fail_after(60):
        while any(found[name][-1:] != [end - 1] for name, end in until.items()):
            for batch in await consumer.poll():
                found[f"p{batch.partition}"] += batch.offsets().tolist()
    return found


async def test_each_record_is_returned_once_also_after_seeks_and_pauses(
    broker: Broker, create_topic: CreateTopic, produce: Produce, write: Any, opened: Any
) -> None:
    await create_topic("t", 2)
    for partition in range(2):
        await produce("t", [str(n).encode() for n in range(20)], partition)
    config = Settings(topics=("t",), group="g", bootstrap_servers=broker.bootstrap_servers)
    async with connect_admin({"bootstrap_servers": broker.bootstrap_servers}) as admin:
        await admin._client.delete_records({aiokafka.TopicPartition("t", 0): RecordsToDelete(12)})
        await admin.reset_offsets("g", {P0: CommitOffset(3), P1: CommitOffset(10)}, before_log=True)
    write("partition=0/a.parquet", records(range(15)))
    write("partition=1/a.parquet", records(range(10)))
    consumer = ArchiveConsumer(
        consumer_config(config), partial(opened), on_skip=lambda _at, _offset: None
    )
    await consumer.start(Quiet())
    try:
        found = await read(consumer, p0=20, p1=20)
        assert found == {"p0": list(range(3, 20)), "p1": list(range(10, 20))}
        consumer.pause([P0])
        consumer.seek(P0, 5)  # into the archive, while it is paused
        consumer.seek(P1, 8)
        assert await read(consumer, p1=20) == {"p0": [], "p1": list(range(8, 20))}
        consumer.resume([P0])
        assert (await read(consumer, p0=20))["p0"] == list(range(5, 20))
        again = [batch async for batch in consumer.read_range(P0, 2, 18)]
        assert [n for batch in again for n in batch.offsets().tolist()] == list(range(2, 18))
    finally:
        await consumer.stop()
