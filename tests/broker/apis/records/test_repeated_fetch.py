"""Fetches of one partition that repeat the last one: their responses are those of fetches that do not."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.apis.records.repeated_fetch import RepeatedFetch
from kmr.broker.authorization.rules import Denial, Operation, Rule, write_rules

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

FETCH = 1


@pytest.fixture
async def topic(broker: Broker) -> Any:
    """Records, an aborted transaction, and records of an open one."""
    topic = await broker.topics.create("t")
    servers = broker.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in range(20):
            await producer.send_and_wait("t", b"%d" % number * 100)
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="x") as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("t", b"committed")
    return topic


def frame(client: Any, topic: Any, version: int, offset: int, **fields: Any) -> bytes:
    named = {"topic_id": topic.topic_id} if version >= 13 else {"topic": topic.name}
    wait = timedelta(seconds=fields.pop("wait", 0.01))
    most = fields.pop("partition_max_bytes", 2**20)
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": most}
    wanted.update(fields.pop("wanted", {}))
    topics = [{**named, "partitions": [wanted]}]
    defaults = {"max_wait": wait, "min_bytes": 1, "max_bytes": 2**22, "topics": topics}
    if version >= 7:
        defaults["session_epoch"] = -1
    message = client.message(FETCH, version, **{**defaults, **fields})
    sent: bytes = client.frame(message, 7)
    return sent


async def answer(client: Any, sent: bytes) -> bytes:
    await client.send_bytes(sent)
    frame: bytes = await client.receive_frame()
    return frame


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each fetch that repeats another whether it needed no other way."""
    calls: list[bool] = []
    answer_now, in_full = RepeatedFetch.answer_now, RepeatedFetch._in_full

    def watched(*arguments: Any) -> Any:
        calls.append(True)
        return answer_now(*arguments)

    def watched_in_full(*arguments: Any) -> Any:
        calls[-1] = False
        return in_full(*arguments)

    monkeypatch.setattr(RepeatedFetch, "answer_now", watched)
    monkeypatch.setattr(RepeatedFetch, "_in_full", watched_in_full)
    return calls


@pytest.mark.parametrize("fields", [{}, {"isolation_level": 1}], ids=["all", "committed"])
@pytest.mark.parametrize("version", range(4, 19))
async def test_the_response_is_that_of_another_connection(
    broker: Broker, topic: Any, connect: Connect, version: int, fields: Any, answered: list[bool]
) -> None:
    client, end = await connect(broker), topic.partitions[0].log.next_offset
    for offset in (0, 7, 19, 20, 21, 22, end - 1, end, end + 1, -1, 0):
        sent = frame(client, topic, version, offset, **fields)
        other = await connect(broker)
        assert await answer(client, sent) == await answer(other, sent), offset
    assert answered[0] is (not fields), "in full only with aborted transactions"
    assert any(answered)


@pytest.mark.parametrize(
    "fields",
    [
        {"partition_max_bytes": 10},
        {"partition_max_bytes": 400},
        {"partition_max_bytes": 0},
        {"max_bytes": 300},
        {"max_bytes": 0},
        {"min_bytes": 0},
        {"min_bytes": 10**6, "wait": 0.01},
        {"min_bytes": 500, "partition_max_bytes": 300},
        {"wanted": {"current_leader_epoch": 0}},
        {"wanted": {"current_leader_epoch": 5}},
        {"wanted": {"partition": 1}},
        {"wanted": {"partition": -1}},
    ],
    ids=str,
)
async def test_limits_and_errors_are_the_same(
    broker: Broker, topic: Any, connect: Connect, fields: Any
) -> None:
    client = await connect(broker)
    for offset in (0, 3, 18, 0):
        sent = frame(client, topic, 11, offset, **fields)
        other = await connect(broker)
        assert await answer(client, sent) == await answer(other, sent), offset


async def test_it_waits_for_records_and_for_enough_of_them(
    broker: Broker, topic: Any, connect: Connect, until: Until, answered: list[bool]
) -> None:
    client, partition = await connect(broker), topic.partitions[0]
    end = partition.log.next_offset
    for offset in (0, end):
        sent = frame(client, topic, 12, offset, wait=60, min_bytes=300)
        await client.send_bytes(sent)
        if offset:
            await until(lambda: bool(partition.watches))
            async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
                for _ in range(4):
                    await producer.send_and_wait("t", bytes(50))
        response = await client.receive_frame()
    assert len(response) >= 300
    assert all(answered)


async def test_a_deleted_topic_is_an_error_also_if_there_is_a_new_one_of_its_name(
    broker: Broker, topic: Any, connect: Connect, until: Until
) -> None:
    client = await connect(broker)
    end = topic.partitions[0].log.next_offset
    await answer(client, frame(client, topic, 12, 0, wait=60))
    await client.send_bytes(frame(client, topic, 12, end, wait=60))
    await until(lambda: bool(topic.partitions[0].watches))
    await broker.topics.delete("t")
    async with asyncio.timeout(30):
        response = await client.receive(client.message(FETCH, 12), 7)
    partition = response.responses[0].partitions[0]
    assert partition.error_code is ErrorCode.unknown_topic_or_partition
    again = await broker.topics.create("t")
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"new")
    sent = frame(client, again, 12, 0, wait=60)
    assert await answer(client, sent) == await answer(await connect(broker), sent)


async def test_a_right_that_is_withdrawn_is_missed_at_the_next_fetch(
    start: Start, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmr.broker.authorization.rules._CHECK_INTERVAL", 0.0)
    acls = tmp_path / "acls.json"
    rule: dict[str, Any] = {"principal": "User:ANONYMOUS", "topics": ("t",)}
    allowed = Rule(**rule, operations=(Operation.READ, Operation.WRITE))
    write_rules(acls, [allowed])
    broker = await start(acl_file=acls)
    topic = await broker.topics.create("t")
    client = await connect(broker)
    codes = []
    for rules in ([allowed], [allowed], [allowed, Denial(**rule, operations=(Operation.READ,))]):
        write_rules(acls, rules)
        await client.send_bytes(frame(client, topic, 12, 0))
        response = await client.receive(client.message(FETCH, 12), 7)
        codes.append(response.responses[0].partitions[0].error_code)
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.topic_authorization_failed]
