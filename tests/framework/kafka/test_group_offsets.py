"""Committed offsets are read when they are certain: the coordinator has loaded, no transaction is open."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiokafka
import anyio
import pytest
from aiokafka.protocol.commit import OffsetFetchRequest_v3
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v9.response import OffsetFetchResponseGroup

from kmr.broker.apis.groups import committed_offsets
from kmr.errors import CommitRefused, ConsumerError
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.group_offsets import OffsetFetch
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kmr.broker import Broker

    Committed = Callable[[], Awaitable[dict[TopicPartition, CommitOffset | None]]]

    from .members import Consume, CreateTopic

UNSTABLE = ErrorCode.unstable_offset_commit
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


@pytest.fixture(params=["a member", "an admin"])
async def asking(
    request: pytest.FixtureRequest, broker: Broker, consume: Consume, create_topic: CreateTopic
) -> AsyncIterator[Committed]:
    """Asks for the committed offsets of group g: offset 4 of t-0."""
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(lambda assigned: len(assigned) == 2)
        await member.consumer.commit({T0: CommitOffset(4, "mark")})
        if request.param == "a member":

            async def ask() -> dict[TopicPartition, CommitOffset | None]:
                return dict(await member.consumer.committed([T0, T1]))

            yield ask
        else:
            config = ConnectionConfig(
                bootstrap_servers=broker.bootstrap_servers, request_timeout=20
            )
            async with connect_admin(config) as admin:

                async def ask_admin() -> dict[TopicPartition, CommitOffset | None]:
                    return {T1: None, **await admin.list_group_offsets("g")}

                yield ask_admin


@pytest.fixture
def coordinator_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The group's coordinator answers with these errors first, and with no offsets."""
    fetch = committed_offsets._group

    def answers(*codes: ErrorCode) -> None:
        left = list(codes)

        async def answer(context: Any, asked: Any, *, stable: bool) -> OffsetFetchResponseGroup:
            if not left:
                return await fetch(context, asked, stable=stable)
            return OffsetFetchResponseGroup(
                group_id=asked.group_id, topics=(), error_code=left.pop(0)
            )

        monkeypatch.setattr(committed_offsets, "_group", answer)

    return answers


@pytest.mark.parametrize("version", [3, 7])
async def test_a_coordinator_that_loads_or_moves_is_asked_again(
    asking: Committed,
    coordinator_answers: Callable[..., None],
    version: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if version == 3:  # as with brokers before Kafka 2.5
        monkeypatch.setattr(OffsetFetch, "_CLASSES", (OffsetFetchRequest_v3,))
    assert await asking() == {T0: CommitOffset(4, "mark"), T1: None}
    coordinator_answers(
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
    )
    assert await asking() == {T0: CommitOffset(4, "mark"), T1: None}


async def test_a_group_that_may_not_be_read_is_an_error(
    asking: Committed, coordinator_answers: Callable[..., None]
) -> None:
    coordinator_answers(ErrorCode.group_authorization_failed)
    with pytest.raises(ConsumerError, match=r"group g.*GroupAuthorizationFailed"):
        await asking()


@asynccontextmanager
async def transaction_with(broker: Broker, offset: int) -> AsyncIterator[aiokafka.AIOKafkaProducer]:
    """A transaction that has committed an offset of t-0 for group g, and is open."""
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="x"
    ) as producer:
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction(
            {aiokafka.TopicPartition(*T0): (offset, "")}, "g"
        )
        yield producer


@pytest.mark.parametrize("commit", [True, False])
async def test_a_read_waits_for_an_offset_in_an_open_transaction(
    broker: Broker, asking: Committed, monkeypatch: pytest.MonkeyPatch, *, commit: bool
) -> None:
    refused = anyio.Event()
    fetch = committed_offsets._group

    async def watched(context: Any, asked: Any, *, stable: bool) -> OffsetFetchResponseGroup:
        group = await fetch(context, asked, stable=stable)
        if any(p.error_code is UNSTABLE for topic in group.topics for p in topic.partitions):
            refused.set()
        return group

    monkeypatch.setattr(committed_offsets, "_group", watched)
    answer: dict[TopicPartition, CommitOffset | None] = {}

    async def ask() -> None:
        answer.update(await asking())

    async with transaction_with(broker, 9) as producer, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await refused.wait()
        assert not answer
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    assert answer == {T0: CommitOffset(9, "") if commit else CommitOffset(4, "mark"), T1: None}


async def test_an_offset_that_is_refused_for_good_does_not_hide_that_others_are_committed(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(lambda assigned: len(assigned) == 2)
        with pytest.raises(CommitRefused, match=r"t-0: OffsetMetadataTooLarge") as refused:
            await member.consumer.commit({T0: CommitOffset(5, "x" * 20_000), T1: CommitOffset(3)})
        assert refused.value.acknowledged == {T1}
        assert await member.consumer.committed([T0, T1]) == {T0: None, T1: CommitOffset(3)}
