"""Members of a group on a running broker."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kmr.kafka.kafka_consumer import KafkaConsumer

from .members import Member, consumer_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from kmr.broker import Broker

    Consume = Callable[..., AbstractAsyncContextManager[Member]]


@pytest.fixture
async def consume(broker: Broker) -> AsyncIterator[Consume]:
    """Starts a member of group "g" that reads topic "t"; keyword arguments are those of the config.

    It creates the topic, unless there is one.
    """

    @asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[Member]:
        options = {"bootstrap_servers": broker.bootstrap_servers} | options
        admin = AIOKafkaAdminClient(bootstrap_servers=options["bootstrap_servers"])
        await admin.start()
        await admin.create_topics([NewTopic("t", 1, 1)])
        await admin.close()
        member = Member(KafkaConsumer(consumer_config(**options)))
        await member.consumer.start(member)
        try:
            yield member
        finally:
            await member.consumer.stop()

    with anyio.fail_after(60):
        yield start
