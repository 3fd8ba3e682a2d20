"""A broker in its own process (Spark's calls block the test's process), and ways to fill it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from kmr.broker.client import BatchProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from kmr.spark.blocking_client import BlockingClient


@dataclass
class Kafka:
    """A broker behind blocking calls."""

    servers: str

    def create(self, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=config)
        self._admin(lambda admin: admin.create_topics([new]))

    def delete(self, topic: str) -> None:
        self._admin(lambda admin: admin.delete_topics([topic]))

    def delete_records(self, topic: str, before: int) -> None:
        """Delete the records of partition 0 before an offset, as retention does."""
        end = {TopicPartition(topic, 0): RecordsToDelete(before_offset=before)}
        self._admin(lambda admin: admin.delete_records(end))

    def _admin(self, order: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Any]]) -> None:
        async def run() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
            await admin.start()
            try:
                await order(admin)
            finally:
                await admin.close()

        asyncio.run(run())

    def produce(
        self, topic: str, values: Sequence[bytes], *, partition: int | None = None, **options: Any
    ) -> None:
        async def run() -> None:
            async with BatchProducer(self.servers, topic, **options) as producer:
                for first in range(0, len(values), 10_000):
                    await producer.send(values[first : first + 10_000], partition=partition)

        asyncio.run(run())

    def produce_one(self, topic: str, value: bytes | None, **fields: Any) -> None:
        """Produce one record with key, headers, timestamp_ms, partition."""

        async def run() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.servers) as producer:
                await producer.send_and_wait(topic, value, **fields)

        asyncio.run(run())

    def produce_to(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        """Produce a few records, in order, to one partition."""

        async def run() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.servers) as producer:
                for value in values:
                    await producer.send_and_wait(topic, value, partition=partition)

        asyncio.run(run())

    def ends(self, topic: str, *, first: bool = False) -> dict[int, int]:
        """Return the end (or the first) offset of each partition."""

        async def run() -> dict[int, int]:
            async with AIOKafkaConsumer(topic, bootstrap_servers=self.servers) as consumer:
                partitions = consumer.assignment()
                ask = consumer.beginning_offsets if first else consumer.end_offsets
                return {p.partition: offset for p, offset in (await ask(partitions)).items()}

        return asyncio.run(run())

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        async def run() -> int | None:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.servers, group_id=group, enable_auto_commit=False
            )
            await consumer.start()
            try:
                offset: int | None = await consumer.committed(TopicPartition(topic, partition))
                return offset
            finally:
                await consumer.stop()

        return asyncio.run(run())


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    data = tmp_path_factory.mktemp("broker")
    kmr = Path(sys.executable).with_name("kmr")
    with subprocess.Popen(
        [
            *(kmr, "broker", "serve", "--data", data, "--port", "0", "--fsync", "os"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if found := re.search(r"127\.0\.0\.1:\d+", line):
                    break
            else:
                raise AssertionError("the broker did not start")
            yield Kafka(found[0])
        finally:
            server.terminate()
            server.wait(60)


@pytest.fixture
def client(kafka: Kafka) -> Iterator[BlockingClient]:
    """A blocking client of the broker."""
    from kmr.spark.blocking_client import BlockingClient
    from kmr.spark.source_settings import ClientConfig

    made = BlockingClient(ClientConfig(bootstrap_servers=kafka.servers, fetch_max_wait=0.05))
    yield made
    made.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic name that is unique to the test."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[-120:]
