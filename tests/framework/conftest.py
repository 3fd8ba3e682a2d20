"""Fixtures of the framework's tests: a running broker, topics and records in it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import clickhouse_connect
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from kmr.broker import Broker

    FillTable = Callable[..., str]


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


@pytest.fixture
def fill(clickhouse_url: str) -> Iterator[FillTable]:
    """Return a function that creates a ClickHouse table with the given rows; the test drops it at its end."""
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        names: list[str] = []

        def fill(columns: str, *values: tuple[object, ...]) -> str:
            name = f"check_{len(names)}"
            client.command(
                f"CREATE OR REPLACE TABLE {name} ({columns}) ENGINE = MergeTree ORDER BY tuple()"
            )
            names.append(name)
            if values:
                client.insert(name, [list(row) for row in values])
            return name

        yield fill
        for name in names:
            client.command(f"DROP TABLE IF EXISTS {name}")
