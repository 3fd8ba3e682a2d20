"""A topic to write to, rows for it, and its content."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kmr.record import Range, Rows
from kmr.reducers.reducer import Context

from ...flushes import Flushed, outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiokafka import ConsumerRecord

    from kmr.broker import Broker
    from kmr.sinks.kafka.writer import KafkaWriter


TOPIC = "out"


def context(bootstrap_servers: str, stage: str = "reduce-1") -> Context:
    return Context("g", stage, bootstrap_servers).with_sinks(client={"client_id": "test"})


def rows_of(table: pa.Table | None = None, first: int = 0, **columns: Any) -> Rows:
    table = table if table is not None else pa.table(columns)
    offsets = np.arange(first, first + table.num_rows, dtype=np.int64)
    return Rows(table, (Range("in", 0, first, first + table.num_rows - 1),), offsets)


@asynccontextmanager
async def admin_of(broker: Broker) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(broker: Broker, topic: str = TOPIC, partitions: int = 1, **configs: str) -> None:
    configs = {name.replace("_", "."): value for name, value in configs.items()}
    async with admin_of(broker) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])


async def delete(broker: Broker, topic: str = TOPIC) -> None:
    async with admin_of(broker) as admin:
        await admin.delete_topics([topic])


async def consumed(broker: Broker, partitions: int = 1) -> list[ConsumerRecord[bytes, bytes]]:
    """Everything in the topic, partition by partition."""
    consumer: AIOKafkaConsumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    await consumer.start()
    try:
        assigned = [TopicPartition(TOPIC, number) for number in range(partitions)]
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        ends = await consumer.end_offsets(assigned)
        records: list[ConsumerRecord[bytes, bytes]] = []
        with anyio.fail_after(60):
            for partition in assigned:
                while await consumer.position(partition) < ends[partition]:
                    fetched = await consumer.getmany(partition, timeout_ms=200)
                    records += fetched.get(partition, [])
        return records
    finally:
        await consumer.stop()


@asynccontextmanager
async def opened(
    broker: Broker, writer: KafkaWriter, stage: str = "reduce-1"
) -> AsyncIterator[KafkaWriter]:
    copied = copy.deepcopy(writer)
    await copied.open(context(broker.bootstrap_servers, stage))
    try:
        yield copied
    finally:
        await copied.close()


async def flushed(writer: KafkaWriter) -> Flushed:
    result = await outcome(writer)
    assert isinstance(result, Flushed), result
    return result
