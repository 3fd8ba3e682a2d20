"""A Kafka client with blocking calls, for Spark's planner and its tasks.

Spark runs many tasks in one Python process, one after the other. Clients, and the event loop that they run
on, live as long as the process, so that the next task finds its connections open.
"""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

import asyncio
import os
import threading
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiokafka
import aiokafka.errors
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest

from ..kafka.admin import explain_refusal, log_offsets
from ..kafka.connection import connect
from ..kafka.fetching import unpack_response
from ..service.threads import background_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from concurrent.futures import Future

    from ..kafka.consumer import CommitOffset
    from ..kafka.fetching import FetchedPartition
    from ..record import TopicPartition
    from .source_settings import ClientConfig

T = TypeVar("T")

_ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}
_CLOSE_TIMEOUT: Final = 5.0


class BlockingClient:
    """Connections to one cluster. Several threads may use it at once."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._loop = background_loop()
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._committers: dict[str, Any] = {}

    def partitions(self) -> dict[str, tuple[int, ...]]:
        """Return all topics of the cluster with their partitions; never create one.

        Raises:
            ConsumerError: no broker answers, or it refuses the client.
        """
        return self._run(_partitions, "the list of topics")

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition. Raises ConsumerError."""
        return self._run(
            partial(log_offsets, end="beginning", partitions=partitions), "the first offsets"
        )

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition. Raises ConsumerError."""
        return self._run(partial(log_offsets, end="end", partitions=partitions), "the end offsets")

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommitOffset],
    ) -> None:
        """Commit for a group without members. Raises ConsumerError, also for a group with members."""
        commit = partial(self._commit, group, offsets)
        self._run(commit, f"a commit of group {group}")

    def fetch(self, partition: TopicPartition, offset: int) -> Future[FetchedPartition]:
        """Begin to fetch from an offset; the future raises KafkaError for errors worth a retry."""
        self._connected()
        return asyncio.run_coroutine_threadsafe(self._fetch(partition, offset), self._loop)

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            open_ones = [c for c in (self._consumer, *self._committers.values()) if c is not None]
            self._consumer, self._committers = None, {}
        for consumer in open_ones:
            closing = asyncio.run_coroutine_threadsafe(consumer.stop(), self._loop)
            closing.result(_CLOSE_TIMEOUT)

    def _run(self, request: Callable[[Any], Awaitable[T]], what: str) -> T:
        """Await a request that takes the consumer, on the event loop."""
        self._connected()

        async def ask() -> T:
            with explain_refusal(what, self.config):
                return await request(self._consumer)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()

    def _connected(self) -> None:
        with self._lock:
            if self._consumer is None:
                connecting = asyncio.run_coroutine_threadsafe(self._connect(), self._loop)
                self._consumer = connecting.result()

    async def _connect(self) -> Any:
        config = self.config
        consumer = aiokafka.AIOKafkaConsumer(
            **config.client_options(), isolation_level=config.isolation_level
        )
        await connect(consumer, config)
        return consumer

    async def _commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommitOffset],
        _consumer: object,
    ) -> None:
        committer = self._committers.get(group)
        if committer is None:
            committer = aiokafka.AIOKafkaConsumer(
                group_id=group, enable_auto_commit=False, **self.config.client_options()
            )
            await connect(committer, self.config)
            self._committers[group] = committer
        entries = {aiokafka.TopicPartition(*p): tuple(entry) for p, entry in offsets.items()}
        committer.assign(list(entries))
        await committer.commit(entries)

    async def _fetch(self, partition: TopicPartition, offset: int) -> FetchedPartition:
        config = self.config
        client = self._consumer._client
        if client.cluster.partitions_for_topic(partition.topic) is None:
            await client.add_topic(partition.topic)
        node = client.cluster.leader_for_partition(aiokafka.TopicPartition(*partition))
        if node in (None, -1):
            client.force_metadata_update()
            raise aiokafka.errors.LeaderNotAvailableError(str(partition))
        size = config.max_partition_fetch_bytes
        request = FetchRequest(
            round(config.fetch_max_wait * 1000),
            1,
            size,
            _ISOLATION[config.isolation_level],
            [(partition.topic, [(partition.partition, offset, size)])],
        )
        response = await client.send(node, request)
        for fetched in unpack_response(response):
            if fetched.error != 0:
                client.force_metadata_update()
            return fetched
        raise KafkaError(f"the fetch response has no partition {partition}")


async def _partitions(consumer: Any) -> dict[str, tuple[int, ...]]:
    client = consumer._client
    cluster = await client.fetch_all_metadata()
    found = {
        topic: tuple(sorted(cluster.partitions_for_topic(topic) or ()))
        for topic in cluster.topics()
    }
    # Forget deleted topics: a metadata refresh names every known topic, and logs those that it does not find.
    client._topics &= set(found)
    return found


def shared_client(config: ClientConfig) -> BlockingClient:
    """Return this process's client for a cluster. A forked process makes its own."""
    return _shared_client(config, os.getpid())


@lru_cache(maxsize=32)
def _shared_client(config: ClientConfig, _process: int) -> BlockingClient:
    return BlockingClient(config)
