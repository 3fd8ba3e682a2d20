"""Members of a consumer group: real consumers with a listener that the tests watch and control."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from kmr.kafka import connection
from kmr.record import SCHEMA
from kmr.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from kmr.kafka.connection import ConsumerConfig
    from kmr.kafka.kafka_consumer import KafkaConsumer
    from kmr.record import Batch, TopicPartition

    Produce = Callable[..., Awaitable[int]]
    CreateTopic = Callable[..., Awaitable[None]]
    Consume = Callable[..., AbstractAsyncContextManager[Any]]


def consumer_config(**options: Any) -> ConsumerConfig:
    """A configuration with the defaults of a worker, for group "g" and topic "t"."""
    return replace(connection.consumer_config(Settings(topics=("t",), group="g")), **options)


def values(batches: Iterable[Batch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.records["value"].to_pylist()]


def numbers(*bounds: int) -> list[bytes | None]:
    return [b"%d" % n for n in range(*bounds)]


class Silent:
    """A listener that does nothing."""

    async def revoked(self, partitions: Any) -> None: ...

    async def assigned(self, partitions: Any) -> None: ...


@dataclass
class Member:
    """A consumer, its listener, and the calls of the listener."""

    consumer: KafkaConsumer
    calls: list[tuple[str, set[TopicPartition]]] = field(default_factory=list)
    partitions: frozenset[TopicPartition] = frozenset()
    on_revoked: Callable[[], Awaitable[None]] | None = None
    on_assigned: Callable[[], Awaitable[None]] | None = None
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoked", set(partitions)))
        if self.on_revoked is not None:
            await self.on_revoked()

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", set(partitions)))
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
