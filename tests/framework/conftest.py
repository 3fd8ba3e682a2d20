"""A running broker for every test of the framework that wants one, records in it, and consumers."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from framework.kafka.connection import ConsumerConfig
from framework.kafka.consumer import KafkaConsumer
from framework.kafka.fallback import RecordFetcher
from framework.kafka.fetch import BatchFetcher
from framework.record import SCHEMA
from framework.testing import broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from broker import Broker
    from framework.record import Batch, TopicPartition

    Consume = Callable[..., AbstractAsyncContextManager["Member"]]

__all__ = ["broker"]


class CreateTopic(Protocol):
    async def __call__(self, topic: str, partitions: int = 1) -> None: ...


class Produce(Protocol):
    async def __call__(
        self, topic: str, values: Iterable[bytes | None], partition: int = 0, **fields: Any
    ) -> int:
        """Returns the offset of the first record."""


@pytest.fixture
async def create_topic(broker: Broker) -> AsyncIterator[CreateTopic]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()

    async def create(topic: str, partitions: int = 1) -> None:
        response = await admin.create_topics([NewTopic(topic, partitions, 1)])
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


@pytest.fixture(params=["batches", "records"])
def fetcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """Which of its two ways to fetch a consumer takes."""
    if request.param == "batches":
        return BatchFetcher
    monkeypatch.setattr("framework.kafka.consumer.fetcher_mismatch", lambda _: "something")
    return RecordFetcher


@dataclass
class Member:
    """A consumer, its listener, and what it was told."""

    consumer: KafkaConsumer
    told: list[tuple[str, set[TopicPartition]]] = field(default_factory=list)
    partitions: frozenset[TopicPartition] = frozenset()
    on_revoked: Callable[[], Awaitable[None]] | None = None
    on_assigned: Callable[[], Awaitable[None]] | None = None
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("revoked", set(partitions)))
        if self.on_revoked is not None:
            await self.on_revoked()

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("assigned", set(partitions)))
        self.partitions = partitions
        if self.on_assigned is not None:
            await self.on_assigned()
        self._changed.set()
        self._changed = anyio.Event()

    async def until_assigned(self, condition: Callable[[frozenset[TopicPartition]], bool]) -> None:
        while not condition(self.partitions):
            await self._changed.wait()

    async def read(self, count: int) -> list[Batch]:
        """Poll until there are `count` records, and check that the batches follow each other."""
        batches: list[Batch] = []
        while sum(map(len, batches)) < count:
            batches += await self.consumer.poll()
        ends: dict[TopicPartition, int] = {}
        for batch in batches:
            assert batch.records.schema == SCHEMA
            assert ends.get(batch.topic_partition, batch.first) == batch.first
            ends[batch.topic_partition] = batch.last + 1
        assert sum(map(len, batches)) == count
        return batches


@pytest.fixture
async def consume(broker: Broker, fetcher: type) -> AsyncIterator[Consume]:
    """Starts a member of group "g" that reads topic "t"; keyword arguments are those of the config."""

    @asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[Member]:
        config = {"group": "g", "topics": ("t",), "bootstrap_servers": broker.bootstrap_servers}
        member = Member(KafkaConsumer(ConsumerConfig(**(config | options))))
        await member.consumer.start(member)
        assert isinstance(member.consumer._fetcher, fetcher)
        try:
            yield member
        finally:
            await member.consumer.stop()

    with anyio.fail_after(60):
        yield start
