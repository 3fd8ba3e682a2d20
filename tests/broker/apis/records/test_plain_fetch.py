"""Fetches of few partitions without a session: their responses are those of `Fetch`."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.apis.records import fetch as fetch_module
from kmr.broker.apis.records.long_poll import LongPoll
from kmr.broker.apis.records.plain_fetch import PlainFetch
from kmr.broker.authorization.rules import Denial, Operation, Rule, write_rules
from kmr.broker.log.records import NewRecord, build_batch

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

FETCH = 1


@pytest.fixture
async def topic(broker: Broker) -> Any:
    """Records, an aborted transaction and a committed one in partition 0; three records in partition 2."""
    topic = await broker.topics.create("t", 3)
    servers = broker.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in range(20):
            await producer.send_and_wait("t", b"%d" % number * 100, partition=0)
        for _ in range(3):
            await producer.send_and_wait("t", bytes(100), partition=2)
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="x") as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"aborted", partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("t", b"committed", partition=0)
    return topic


def frame(client: Any, topic: Any, version: int, offset: int, *others: int, **fields: Any) -> bytes:
    """A request of partition 0 from `offset` on, and of the next ones from `others` on."""
    named = {"topic_id": topic.topic_id} if version >= 13 else {"topic": topic.name}
    wait = timedelta(seconds=fields.pop("wait", 0.01))
    most = fields.pop("partition_max_bytes", 2**20)
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": most}
    wanted.update(fields.pop("wanted", {}))
    rest = [
        {"partition": index, "fetch_offset": each, "partition_max_bytes": most}
        for index, each in enumerate(others, 1)
    ]
    topics = [{**named, "partitions": [wanted, *rest]}]
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


async def answered_in_full(client: Any, sent: bytes) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_module, "MOST_PARTITIONS", 0)
        return await answer(client, sent)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each attempt to answer whether `Fetch` was not needed."""
    calls: list[bool] = []
    answer_now, in_full = PlainFetch.answer_now, PlainFetch._answer_in_full

    def watched(*arguments: Any) -> Any:
        calls.append(True)
        return answer_now(*arguments)

    def watched_in_full(*arguments: Any) -> Any:
        calls[-1] = False
        return in_full(*arguments)

    monkeypatch.setattr(PlainFetch, "answer_now", watched)
    monkeypatch.setattr(PlainFetch, "_answer_in_full", watched_in_full)
    return calls


@pytest.mark.parametrize("fields", [{}, {"isolation_level": 1}], ids=["all", "committed"])
@pytest.mark.parametrize("version", range(4, 19))
async def test_the_response_is_the_full_one(
    broker: Broker, topic: Any, connect: Connect, version: int, fields: Any, answered: list[bool]
) -> None:
    client, end = await connect(broker), topic.partitions[0].log.next_offset
    for offset in (0, 7, 19, 20, 21, 22, end - 1, end, end + 1, -1, 0):
        for others in ((), (0, 1), (0, 3)):
            sent = frame(client, topic, version, offset, *others, **fields)
            assert await answer(client, sent) == await answered_in_full(client, sent), offset
    assert answered[1] is (not fields), "in full only with aborted transactions"
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
        for others in ((), (0, 1), (0, 4)):
            sent = frame(client, topic, 11, offset, *others, **fields)
            assert await answer(client, sent) == await answered_in_full(client, sent), offset


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
                    await producer.send_and_wait("t", bytes(50), partition=0)
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
    assert await answer(client, sent) == await answered_in_full(client, sent)


@pytest.mark.parametrize(("size", "busy"), [(100, True), (100, False), (100_000, True)])
async def test_few_records_wait_for_those_of_the_requests_that_are_here_if_the_broker_is_busy(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch, size: int, busy: bool
) -> None:
    monkeypatch.setattr("kmr.broker.storage.group_commit._MANY_APPENDS", 1 if busy else 2)
    topic = await broker.topics.create("t")
    [partition] = topic.partitions
    waited: list[bool] = []
    wait = LongPoll._wait

    def watched(self: LongPoll, lacking: Any) -> None:
        waited.append(True)
        wait(self, lacking)
        batch = build_batch([NewRecord(None, b"meanwhile")])
        partition.log.append_plain(memoryview(batch), 0)
        partition.log.flush_pending()
        partition.advance(partition.log.next_offset, len(batch))

    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait("t", bytes(size))
    monkeypatch.setattr(LongPoll, "_wait", watched)
    client = await connect(broker)
    response = await answer(client, frame(client, topic, 12, 0, wait=60))
    waits = busy and size == 100
    assert (bool(waited), b"meanwhile" in response) == (waits, waits)


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
