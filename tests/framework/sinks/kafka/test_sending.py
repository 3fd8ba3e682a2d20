"""Sending a flush: limits of the topic, lost acknowledgements, lost producers."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import anyio
import numpy as np
import pytest
from aiokafka import errors

from kmr.broker import Broker, BrokerSettings
from kmr.chaos.services import free_port
from kmr.reducers.reducer import Retry
from kmr.sinks.kafka.row_messages import RowMessages
from kmr.sinks.kafka.sending import ProducerLost, SendState
from kmr.sinks.kafka.writer import KafkaWriter

from ...flushes import outcome
from .topics import TOPIC, consumed, context, create, delete, flushed, opened, rows_of

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_message_above_our_limit_is_poisoned_and_the_others_are_delivered(
    broker: Broker,
) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, value="v", max_message_bytes=500)) as writer:
        writer.add(rows_of(v=["a", "b"]))
        writer.add(rows_of(first=2, v=["c", "x" * 1000, "d"]))
        (poisoned,) = (await flushed(writer)).refusals
    assert poisoned.rows.offsets is not None
    assert poisoned.rows.offsets.tolist() == [3]
    assert poisoned.rows.table.to_pylist() == [{"v": "x" * 1000}]
    assert poisoned.reason == "the message is too large for topic out"
    assert [record.value for record in await consumed(broker)] == [b"a", b"b", b"c", b"d"]


async def test_where_nothing_takes_what_is_refused_nothing_is_sent_that_would_be_sent_again(
    broker: Broker,
) -> None:
    await create(broker)
    writer = copy.deepcopy(KafkaWriter(TOPIC, value="v", max_message_bytes=500))
    await writer.open(context(broker.bootstrap_servers).with_sinks(takes_refused=False))
    writer.add(rows_of(v=["a", "x" * 1000]))
    (refused,) = (await flushed(writer)).refusals
    await writer.close()
    assert refused.reason == "the message is too large for topic out"
    assert await consumed(broker) == []


async def test_a_message_above_the_topics_limit_is_found_among_the_others(broker: Broker) -> None:
    await create(broker, max_message_bytes="2000")
    values = ["x" * 3000 if number == 33 else f"{number:050}" for number in range(100)]
    async with opened(broker, KafkaWriter(TOPIC, value="v")) as writer:
        writer.add(rows_of(v=values))
        (poisoned,) = (await flushed(writer)).refusals
    assert poisoned.rows.offsets is not None
    assert poisoned.rows.offsets.tolist() == [33]
    delivered = [int(record.value or b"") for record in await consumed(broker)]
    assert delivered == [number for number in range(100) if number != 33]


async def test_a_limit_that_is_lowered_later_is_found_by_sending(broker: Broker) -> None:
    await create(broker)
    values = [f"{number:050}" for number in range(100)]
    values[10] = values[70] = "x" * 3000
    async with opened(broker, KafkaWriter(TOPIC, value="v")) as writer:
        await delete(broker)
        await create(broker, max_message_bytes="2000")
        writer.add(rows_of(v=values))
        poisoned = (await flushed(writer)).refusals
    (refused,) = poisoned
    assert refused.rows.offsets is not None
    assert refused.rows.offsets.tolist() == [10, 70]
    delivered = [int(record.value or b"") for record in await consumed(broker)]
    assert delivered == [number for number in range(100) if number not in (10, 70)]


async def test_while_the_broker_is_down_a_flush_is_retried_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "broker", port=free_port())
    async with Broker(settings) as first:
        await create(first)
        writer = copy.deepcopy(KafkaWriter(TOPIC, value="v"))
        await writer.open(context(first.bootstrap_servers))
        writer.add(rows_of(v=["before"]))
        await flushed(writer)
        writer.reset()
        writer.attempt_timeout = 0.3
    try:
        writer.add(rows_of(v=["during", "too"]))
        for _ in range(2):
            result = await outcome(writer)
            assert isinstance(result, Retry)
            assert not result.may_double, "the messages in flight are awaited, not sent again"
            assert "topic out: no acknowledgement from the brokers in 0.3 s" in result.reason
        async with Broker(settings) as second:
            with anyio.fail_after(60):
                while isinstance(await outcome(writer), Retry):
                    pass
            values = [record.value for record in await consumed(second)]
            assert values == [b"before", b"during", b"too"]
            await writer.close()
    finally:
        await writer.close()


@pytest.mark.slow
async def test_a_writer_can_be_closed_while_the_broker_is_down_and_leaves_no_task(
    tmp_path: Path,
) -> None:
    before = asyncio.all_tasks()
    async with Broker(BrokerSettings(data_dir=tmp_path / "broker", port=0)) as broker:
        await create(broker)
        writer = copy.deepcopy(KafkaWriter(TOPIC, value="v", attempt_timeout=0.2))
        await writer.open(context(broker.bootstrap_servers))
    writer.add(rows_of(v=["never"]))
    assert isinstance(await outcome(writer), Retry)
    with anyio.fail_after(60):
        await writer.close()
    await anyio.wait_all_tasks_blocked()
    assert asyncio.all_tasks() == before


async def test_a_topic_that_is_recreated_under_the_producer_loses_nothing(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, value="v")) as writer:
        writer.add(rows_of(v=["old"]))
        await flushed(writer)
        writer.reset()
        await delete(broker)
        await create(broker)
        writer.add(rows_of(v=["new"]))
        with anyio.fail_after(60):
            while isinstance(await outcome(writer), Retry):
                pass
    assert [record.value for record in await consumed(broker)] == [b"new"]


class Answers:
    """A producer that answers each record batch with the next error, None for an acknowledgement."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)

    def create_batch(self) -> Any:
        return Mock(append=Mock(return_value=1))

    async def send_batch(self, *_: object, **__: object) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        error = self.errors.pop(0)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        return future


def sending(partitions: list[int]) -> SendState:
    count = len(partitions)
    messages = RowMessages([None] * count, [b"v"] * count, [[]] * count, [None] * count)
    return SendState("t", messages, np.array(partitions, dtype=np.int64))


@pytest.mark.parametrize(
    ("error", "doubles"),
    [(errors.RequestTimedOutError(), True), (errors.NotEnoughReplicasError(), False)],
)
async def test_a_retry_says_whether_messages_may_be_written_twice(
    error: Exception, *, doubles: bool
) -> None:
    producer: Any = Answers(error)
    with pytest.raises(Retry) as caught:
        await sending([0]).attempt(producer, 1.0, idempotent=True)
    assert caught.value.may_double is doubles


async def test_a_new_producer_sends_nothing_again_that_its_predecessor_has_in_flight() -> None:
    """A message that is too large needs a new producer: the other partitions are awaited first."""
    producer: Any = Answers(errors.MessageSizeTooLargeError(), None)
    state = sending([0, 1])
    with pytest.raises(ProducerLost) as caught:
        await state.attempt(producer, 1.0, idempotent=True)
    assert not caught.value.may_double
    assert state.refused == [0]
    await state.attempt(producer, 1.0, idempotent=True)
    assert producer.errors == []


async def test_a_producer_that_is_fenced_may_have_written_its_messages() -> None:
    producer: Any = Answers(errors.OutOfOrderSequenceNumber())
    with pytest.raises(ProducerLost) as caught:
        await sending([0]).attempt(producer, 1.0, idempotent=True)
    assert caught.value.may_double


class Silent(Answers):
    """Answers of one partition; the other one does not answer."""

    async def send_batch(self, *_: object, **__: object) -> asyncio.Future[None]:
        return await super().send_batch() if self.errors else asyncio.Future()


async def test_messages_in_flight_of_a_lost_producer_may_be_there_twice() -> None:
    """The other partition has not answered when the producer is replaced."""
    producer: Any = Silent(errors.MessageSizeTooLargeError())
    with pytest.raises(ProducerLost) as caught:
        await sending([0, 1]).attempt(producer, 0.1, idempotent=True)
    assert caught.value.may_double


@pytest.mark.parametrize("doubles", [True, False])
async def test_a_writer_says_so_when_a_lost_producer_may_double(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, *, doubles: bool
) -> None:
    attempts = []

    async def lose(*_: object, **__: object) -> None:
        attempts.append(1)
        raise ProducerLost("fenced", may_double=doubles)

    monkeypatch.setattr(SendState, "attempt", lose)
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, value="v")) as writer:
        writer.add(rows_of(v=["a"]))
        result = await outcome(writer)
    assert isinstance(result, Retry)
    assert result.may_double is doubles
    assert len(attempts) == 1 if doubles else len(attempts) > 1, "else a new producer goes on"
