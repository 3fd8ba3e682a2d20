"""A broker that somebody else runs, Apache Kafka say, in place of ours: `KMR_INTEROP_BOOTSTRAP=HOST:PORT`.

A test that needs more of its broker than Kafka's protocol gives is skipped, with the reason.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NoReturn

import anyio
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code
from anyio import to_thread
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["BOOTSTRAP_VARIABLE", "OutsideBroker", "only_ours"]

BOOTSTRAP_VARIABLE: Final = "KMR_INTEROP_BOOTSTRAP"

_POLL: Final = 0.05


def only_ours(what: str) -> NoReturn:
    """Skip the test that asks for something that only our own broker has."""
    pytest.skip(f"needs {what} of our own broker, and {BOOTSTRAP_VARIABLE} is set")


class OutsideBroker:
    """What tests may ask of the fixture `broker`, by Kafka's protocol alone."""

    def __init__(self, servers: str) -> None:
        self.bootstrap_servers = servers
        self.topics = OutsideTopics(servers)

    def __getattr__(self, name: str) -> NoReturn:
        only_ours(f"broker.{name}")


class OutsideTopics:
    """Its topics."""

    def __init__(self, servers: str) -> None:
        self._servers = servers

    async def create(
        self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, and wait until every partition has a leader."""
        async with self._admin() as admin:
            answer = await admin.create_topics(
                [NewTopic(name, partitions, 1, topic_configs=dict(settings or {}))]
            )
            for _, code, *_ in answer.topic_errors:
                if code:
                    raise for_code(code)(name)
            while await self._led(admin, name) < partitions:  # noqa: ASYNC110  there is no event to wait for
                await anyio.sleep(_POLL)

    async def delete_all(self) -> None:
        """Delete every topic and every group, for the next test to begin with none."""
        async with self._admin() as admin:
            while groups := [name for name, *_ in await admin.list_consumer_groups()]:
                await to_thread.run_sync(self._delete_groups, groups)
            while names := await self._names(admin):
                await admin.delete_topics(names)
                await anyio.sleep(_POLL)

    def __getattr__(self, name: str) -> NoReturn:
        only_ours(f"kmr.broker.topics.topics.{name}")

    def _delete_groups(self, groups: list[str]) -> None:
        """Those that have members still are asked for again, until their sessions have expired."""
        client = AdminClient({"bootstrap.servers": self._servers})
        for answer in client.delete_consumer_groups(groups, request_timeout=10).values():
            with suppress(KafkaException):
                answer.result()

    async def _names(self, admin: AIOKafkaAdminClient) -> list[str]:
        return [name for name in await admin.list_topics() if not name.startswith("__")]

    async def _led(self, admin: AIOKafkaAdminClient, name: str) -> int:
        (topic,) = await admin.describe_topics([name])
        return sum(partition["leader"] >= 0 for partition in topic["partitions"])

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()
