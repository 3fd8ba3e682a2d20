"""A Kafka client for code that is not asynchronous: Spark's planner and its tasks.

Spark uses one Python process for many tasks, so clients and the event loop that they live on are kept
for the whole process: a task that reads the same cluster finds its connections open.
"""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import aiokafka
import aiokafka.errors
import anyio
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest

from framework.errors import ConsumerError
from framework.kafka.connecting import connect
from framework.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    from framework.spark.properties import ClientConfig

__all__ = ["Client", "Fetched", "Timestamps", "client_of", "event_loop"]

T = TypeVar("T")

Timestamps = Mapping[TopicPartition, int]

_ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}
_CLOSE_TIMEOUT: Final = 5.0


class Fetched(NamedTuple):
    """What a broker answered to one fetch of one partition.

    Attributes:
        error: the protocol's error code; 0 for none.
        data: record batches as they are on the wire.
        end: the offset after the last record, -1 if the answer does not say.
        aborted: producer id and first offset of each aborted transaction in `data`.
    """

    error: int
    data: bytes = b""
    end: int = -1
    aborted: list[tuple[int, int]] = []  # noqa: RUF012  never changed


class Client:
    """Connections to one cluster. May be used from several threads at once."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._loop = event_loop()
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._committers: dict[str, Any] = {}

    def partitions(self) -> dict[str, tuple[int, ...]]:
        """All topics of the cluster, with their partitions; never creates one.

        Raises:
            ConsumerError: no broker answers, or it refuses us.
        """
        return self._run(self._partitions(), "the list of topics")

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises ConsumerError."""
        return self._run(self._offsets("beginning_offsets", list(partitions)), "the first offsets")

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last readable record of each partition. Raises ConsumerError."""
        return self._run(self._offsets("end_offsets", list(partitions)), "the end offsets")

    def at_times(self, times: Timestamps) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time (milliseconds), None beyond all. Raises ConsumerError."""
        return self._run(self._at_times(times), "offsets by time")

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit for a group without members. Raises ConsumerError, also when it has some."""
        self._run(self._commit(group, offsets), f"a commit of group {group}")

    def fetch(self, partition: TopicPartition, offset: int) -> Future[Fetched]:
        """Begin to fetch from an offset; the future raises KafkaError for what may pass."""
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

    def _run(self, question: Coroutine[Any, Any, T], what: str) -> T:
        try:
            self._connected()
        except BaseException:
            question.close()
            raise
        return asyncio.run_coroutine_threadsafe(self._ask(question, what), self._loop).result()

    async def _ask(self, question: Coroutine[Any, Any, T], what: str) -> T:
        seconds = self.config.request_timeout
        servers = self.config.bootstrap_servers
        try:
            with anyio.fail_after(seconds):
                return await question
        except KafkaError as error:
            raise ConsumerError(f"{what}: the broker at {servers} refused: {error}") from error
        except TimeoutError:
            raise ConsumerError(f"{what}: no answer from {servers} in {seconds:g} s") from None

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

    async def _partitions(self) -> dict[str, tuple[int, ...]]:
        client = self._consumer._client
        cluster = await client.fetch_all_metadata()
        found = {
            topic: tuple(sorted(cluster.partitions_for_topic(topic) or ()))
            for topic in cluster.topics()
        }
        # A refresh asks for the topics that the client knows of, and so may create those that are gone.
        client._topics &= set(found)
        return found

    async def _offsets(
        self, method: str, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        asked = [aiokafka.TopicPartition(*partition) for partition in partitions]
        found = await getattr(self._consumer, method)(asked)
        return {TopicPartition(*partition): offset for partition, offset in found.items()}

    async def _at_times(self, times: Timestamps) -> dict[TopicPartition, int | None]:
        if not times:
            return {}
        asked = {aiokafka.TopicPartition(*partition): time for partition, time in times.items()}
        found = await self._consumer.offsets_for_times(asked)
        return {
            TopicPartition(*partition): None if entry is None else int(entry.offset)
            for partition, entry in found.items()
        }

    async def _commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        committer = self._committers.get(group)
        if committer is None:
            committer = aiokafka.AIOKafkaConsumer(
                group_id=group, enable_auto_commit=False, **self.config.client_options()
            )
            await connect(committer, self.config)
            self._committers[group] = committer
        entries = {aiokafka.TopicPartition(*p): (offset, "") for p, offset in offsets.items()}
        committer.assign(list(entries))
        await committer.commit(entries)

    async def _fetch(self, partition: TopicPartition, offset: int) -> Fetched:
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
        for _, answers in response.topics:
            for _, code, end, *rest in answers:
                if code != 0:
                    client.force_metadata_update()
                    return Fetched(code, end=end)
                # v4: last stable offset, aborted; v5: log start before it; v11: preferred replica.
                aborted = [] if len(rest) == 1 else rest[1] if len(rest) == 3 else rest[2]
                return Fetched(0, rest[-1], end, aborted or [])
        raise aiokafka.errors.KafkaError(f"the broker said nothing about {partition}")


def client_of(config: ClientConfig) -> Client:
    """The client of this process for this cluster; made once. A forked process makes its own."""
    return _client_of(config, os.getpid())


@lru_cache(maxsize=32)
def _client_of(config: ClientConfig, _process: int) -> Client:
    return Client(config)


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process for Kafka clients and sinks, in a thread that ends with the process."""
    return _event_loop(os.getpid())


@lru_cache(maxsize=1)
def _event_loop(_process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="kmr-kafka", daemon=True).start()
    return loop
