"""Fixtures of the framework's tests: a running broker, topics and records in it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from kmr.broker import Broker


class CreateTopic(Protocol):
    async def __call__(self, topic: str, partitions: int = 1, **settings: str) -> None: ...


class Produce(Protocol):
    async def __call__(
        self, topic: str, values: Iterable[bytes | None], partition: int = 0, **fields: Any
    ) -> int:
        """Returns the offset of the first record."""


@pytest.fixture
async def create_topic(broker: Broker) -> AsyncIterator[CreateTopic]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()

    async def create(topic: str, partitions: int = 1, **settings: str) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=settings)
        response = await admin.create_topics([new])
        assert [code for _, code, *_ in response.topic_errors] == [0]

    yield create
    await admin.close()


@pytest.fixture
async def produce(broker: Broker) -> AsyncIterator[Produce]:
    """Writes record batches of its own making: one per call, of any codec (`compression`)."""
    async with AsyncExitStack() as stack:
        producers: dict[str | None, AIOKafkaProducer] = {}

        async def write(
            topic: str, values: Iterable[bytes | None], partition: int = 0, **fields: Any
        ) -> int:
            compression = fields.pop("compression", None)
            if compression not in producers:
                producers[compression] = await stack.enter_async_context(
                    AIOKafkaProducer(
                        bootstrap_servers=broker.bootstrap_servers,
                        compression_type=compression,
                        max_batch_size=1 << 20,
                    )
                )
            producer = producers[compression]
            batch = producer.create_batch()
            fields = {"key": None, "timestamp": None, "headers": []} | fields
            for value in values:
                assert batch.append(value=value, **fields) is not None
            metadata = await (await producer.send_batch(batch, topic, partition=partition))
            return int(metadata.offset)

        yield write
