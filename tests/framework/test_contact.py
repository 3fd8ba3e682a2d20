"""A worker whose brokers fall silent while it runs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.contact import BrokerContact
from kmr.errors import BrokerUnavailable, ConsumerError
from kmr.observe.metrics import Metrics
from kmr.testing import MemoryConsumer, VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.testing import VirtualClock


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


_GONE = "no Kafka broker answers at kafka:9092"
_REFUSED = "kafka:9092 refuses PLAIN credentials of 'app'"


class Scripted(MemoryConsumer):
    """Its group falls silent, and a new connection ends with an error, as a test says."""

    silent: str | None = None
    error: ConsumerError | None = None

    async def reach(self) -> None:
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def watched(consumer: Scripted) -> AsyncIterator[BrokerContact]:
    contact = BrokerContact(consumer, Metrics(), timeout=60.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(contact.watch)
        yield contact
        tasks.cancel_scope.cancel()


def fall_silent(consumer: Scripted, error: ConsumerError | None) -> None:
    consumer.silent, consumer.error = "group g: its coordinator does not answer", error


async def test_a_broker_that_is_away_is_waited_for(clock: VirtualClock) -> None:
    consumer = Scripted()
    async with watched(consumer) as contact:
        fall_silent(consumer, BrokerUnavailable(_GONE))
        for _ in range(120):
            await clock.advance(1.0)
        assert contact.problem == _GONE
        consumer.silent = None
        await clock.advance(1.0)
        assert contact.problem is None


async def test_refused_credentials_end_the_worker_after_ten_seconds(clock: VirtualClock) -> None:
    consumer = Scripted()
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConsumerError, match=f"{_REFUSED}.*with the present password")
    ):
        async with watched(consumer) as contact:
            fall_silent(consumer, ConsumerError(_REFUSED))
            await clock.advance(1.0)
            assert contact.problem == _REFUSED
            for _ in range(9):
                await clock.advance(1.0)
            assert contact.problem == _REFUSED
            await clock.advance(1.0)
            await anyio.sleep_forever()


async def test_a_broker_that_refuses_only_while_it_starts_ends_nothing(clock: VirtualClock) -> None:
    consumer = Scripted()
    async with watched(consumer) as contact:
        for _ in range(5):
            fall_silent(consumer, ConsumerError(_REFUSED))
            for _ in range(9):
                await clock.advance(1.0)
            fall_silent(consumer, BrokerUnavailable(_GONE))
            await clock.advance(1.0)
        assert contact.problem == _GONE


async def test_one_node_that_stays_silent_is_named_though_another_answers(
    clock: VirtualClock,
) -> None:
    consumer = Scripted()
    async with watched(consumer) as contact:
        fall_silent(consumer, None)
        for _ in range(10):
            await clock.advance(1.0)
            assert contact.problem is None
        for _ in range(2):
            await clock.advance(1.0)
        assert contact.problem == "group g: its coordinator does not answer"
