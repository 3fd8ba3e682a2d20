"""Fetch sessions (KIP-227): what a response says, and which requests do not continue their session."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kmr.broker import Broker, BrokerSettings
from kmr.broker.apis.records.fetch_sessions import IDLE, FetchSession, FetchSessions
from kmr.broker.authorization.rules import write_rules
from kmr.broker.log.disk_work import do_now
from kmr.broker.log.records import NewRecord, build_batch, read_records, split_batches
from kmr.broker.protocol.fetch_request import FetchPartition
from tests.broker.raw_client import RawClient
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.broker.conftest import Start

    Batch = Callable[..., bytes]
    Connect = Callable[[Broker], Awaitable[RawClient]]
    Until = Callable[[Callable[[], bool]], Awaitable[None]]

PRODUCE, FETCH = 0, 1
PARTITIONS = 3
ID_ERROR = ErrorCode.fetch_session_topic_id_error


def values(records: bytes) -> list[bytes | None]:
    return [
        record.value
        for header in split_batches(bytearray(records or b""))
        for record in read_records(records, header)
    ]


class Consumer:
    """A client that keeps to the protocol: it knows of each partition what responses have said."""

    def __init__(self, client: RawClient, topic: Any, version: int = 12) -> None:
        self.client = client
        self.version = version
        self.topic = {"topic_id" if version >= 13 else "topic": topic}
        self.session_id = self.epoch = 0
        self.positions: dict[int, int] = {}
        self.high_watermarks: dict[int, int] = {}
        self.read: dict[int, list[bytes | None]] = {}
        self._changed: set[int] = set()
        self._forgotten: list[int] = []

    def add(self, *partitions: int, offset: int = 0) -> None:
        for each in partitions:
            self.positions.setdefault(each, offset)
            self._changed.add(each)
            if each in self._forgotten:
                self._forgotten.remove(each)

    def forget(self, partition: int) -> None:
        if self.positions.pop(partition, None) is not None:
            self._changed.discard(partition)
            self._forgotten.append(partition)

    async def fetch(self, most: int = 2**20, **fields: Any) -> Any:
        """Fetch without waiting; return the response, after its news were noted."""
        named = sorted(self._changed) if self.epoch > 0 else list(self.positions)
        partitions = [
            {"partition": each, "fetch_offset": self.positions[each], "partition_max_bytes": most}
            for each in named
        ]
        topics = [{**self.topic, "partitions": partitions}] if partitions else []
        gone = [{**self.topic, "partitions": self._forgotten}] if self._forgotten else []
        session = {"session_id": self.session_id, "session_epoch": self.epoch}
        response = await self.client.call(
            FETCH,
            self.version,
            **{
                "max_wait": timedelta(0),
                "min_bytes": 1,
                "max_bytes": most,
                "topics": topics,
                "forgotten_topics_data": gone if self.epoch > 0 else [],
                **session,
                **fields,
            },
        )
        if response.error_code is ErrorCode.none:
            self.session_id = response.session_id
            self.epoch = self.epoch + 1 if self.session_id else 0
            self._changed.clear()
            self._forgotten.clear()
            for topic in response.responses:
                for each in topic.partitions:
                    self._note(each)
        return response

    def _note(self, told: Any) -> None:
        index = told.partition_index
        self.high_watermarks[index] = told.high_watermark
        got = values(told.records)
        self.read.setdefault(index, []).extend(got)
        if got:
            self.positions[index] += len(got)
            self._changed.add(index)

    async def told(self, **fields: Any) -> list[int]:
        """Fetch; return the partitions that the response names."""
        response = await self.fetch(**fields)
        assert response.error_code is ErrorCode.none
        return [each.partition_index for topic in response.responses for each in topic.partitions]


async def produce(client: RawClient, *batches: bytes, partition: int = 0, topic: str = "t") -> None:
    for data in batches:
        parts = [{"index": partition, "records": data}]
        await client.call(
            PRODUCE, 9, acks=-1, topic_data=[{"name": topic, "partition_data": parts}]
        )


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> RawClient:
    await broker.topics.create("t", PARTITIONS)
    return await connect(broker)


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
async def test_a_session_tells_of_all_partitions_first_and_then_of_those_with_news(
    broker: Broker, client: RawClient, batch: Batch, version: int
) -> None:
    topic = broker.topics.get("t")
    assert topic is not None
    consumer = Consumer(client, topic.topic_id if version >= 13 else "t", version)
    consumer.add(0, 1, 2)
    assert await consumer.told() == [0, 1, 2]
    assert consumer.session_id > 0
    assert await consumer.told() == []
    await produce(client, batch(b"a", b"b"), partition=1)
    assert await consumer.told() == [1]
    assert consumer.read[1] == [b"a", b"b"]
    assert await consumer.told() == []


async def test_a_session_waits_for_records_of_any_of_its_partitions(
    broker: Broker, client: RawClient, connect: Connect, batch: Batch, until: Until
) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0, 1, 2)
    await consumer.fetch()
    waiting = asyncio.create_task(consumer.told(max_wait=timedelta(seconds=600)))
    await until(lambda: bool(broker.topics.partitions[2].watches))
    await produce(await connect(broker), batch(b"a"), partition=2)
    assert await waiting == [2]


async def test_partitions_join_and_leave_a_session(client: RawClient, batch: Batch) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0)
    await consumer.fetch()
    consumer.add(2)
    assert await consumer.told() == [2]
    consumer.forget(0)
    await produce(client, batch(b"a"), partition=0)
    assert await consumer.told() == []
    consumer.forget(2)
    response = await consumer.fetch()
    assert (response.session_id, consumer.epoch) == (0, 0)  # nothing is left


async def test_a_log_that_begins_later_and_records_that_cannot_be_read_yet_are_news(
    broker: Broker, client: RawClient, batch: Batch
) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0, 1)
    await consumer.fetch()
    await produce(client, batch(b"a"), batch(b"b"))
    consumer.positions[0] = 2
    consumer.add(0)
    assert await consumer.told() == [0]  # the high watermark
    do_now(broker.topics.partitions[0].log.truncation(1))
    assert await consumer.told() == [0]
    assert await consumer.told() == []


async def test_errors_are_told_until_they_are_over(broker: Broker, client: RawClient) -> None:
    consumer = Consumer(client, "t")
    consumer.add(1, offset=5)
    consumer.add(0)
    for expected in ([1, 0], [1], [1]):
        assert await consumer.told() == expected
    consumer.positions[1] = 0
    consumer.add(1)
    assert await consumer.told() == [1]
    assert await consumer.told() == []
    await broker.topics.delete("t")
    assert sorted(await consumer.told()) == [0, 1]
    await broker.topics.create("t", PARTITIONS)
    assert sorted(await consumer.told()) == [0, 1]
    assert await consumer.told() == []


async def test_the_id_of_a_deleted_topic_is_unknown_in_its_session(
    broker: Broker, client: RawClient
) -> None:
    topic = broker.topics.get("t")
    assert topic is not None
    consumer = Consumer(client, topic.topic_id, 13)
    consumer.add(0)
    await consumer.fetch()
    await broker.topics.delete("t")
    await broker.topics.create("t", PARTITIONS)
    for _ in range(2):
        response = await consumer.fetch()
        [told] = response.responses[0].partitions
        assert told.error_code is ErrorCode.unknown_topic_id


async def test_requests_that_do_not_continue_a_session_are_refused(
    broker: Broker, client: RawClient
) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0)
    await consumer.fetch()
    names = [{"topic": "t", "partitions": []}]
    for fields, code in (
        ({"session_id": 0, "session_epoch": 1}, ErrorCode.fetch_session_id_not_found),
        ({"session_id": -7, "session_epoch": 1}, ErrorCode.fetch_session_id_not_found),
        ({"session_epoch": 2}, ErrorCode.invalid_fetch_session_epoch),
        ({"session_epoch": -2}, ErrorCode.invalid_fetch_session_epoch),
    ):
        response = await consumer.fetch(topics=names, **fields)
        assert (response.error_code, response.session_id) == (code, 0)
        assert response.responses == ()
    consumer.version = 13
    response = await consumer.fetch(topics=[])
    assert response.error_code is ID_ERROR
    consumer.version = 12
    assert await consumer.told() == []


@pytest.mark.parametrize("epoch", [0, -1])
async def test_a_full_fetch_ends_its_session_and_may_begin_another(
    client: RawClient, batch: Batch, epoch: int
) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0)
    await produce(client, batch(b"a"))
    await consumer.fetch()
    old = consumer.session_id
    whole = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
    response = await consumer.fetch(session_epoch=epoch, topics=whole)
    assert values(response.responses[0].partitions[0].records) == [b"a"]
    assert (response.session_id > 0) == (epoch == 0)
    assert response.session_id != old
    response = await consumer.fetch(session_id=old, session_epoch=1, topics=[])
    assert response.error_code is ErrorCode.fetch_session_id_not_found


async def test_sessions_are_counted(broker: Broker, client: RawClient) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0, 1)
    await consumer.fetch()
    value = broker.metrics.registry.get_sample_value
    assert value("kmr_broker_fetch_sessions") == 1
    assert value("kmr_broker_fetch_session_partitions") == 2
    assert value("kmr_broker_fetch_session_evictions_total") == 0


async def test_a_partition_does_not_wait_for_others_that_always_have_records(
    client: RawClient, batch: Batch
) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0, 1, 2)
    one = batch(b"x" * 100)
    for partition in range(PARTITIONS):
        await produce(client, *[one] * 4, partition=partition)
    for _ in range(PARTITIONS):
        await consumer.fetch(most=len(one))
    assert consumer.positions == {0: 1, 1: 1, 2: 1}


def test_an_idle_session_makes_room_and_one_in_use_does_not() -> None:
    now = 0.0
    sessions = FetchSessions(2, clock=lambda: now)
    topics = [("t", [FetchPartition(0, -1, 0, 1)])]

    def create() -> FetchSession | None:
        return sessions.create(topics, by_id=False)

    first, second = create(), create()
    assert first is not None
    assert second is not None
    now = 119.0
    assert create() is None
    assert sessions.use(first.session_id) is first
    now = 121.0
    third = create()
    assert third is not None
    assert sessions.use(second.session_id) is None
    assert sessions.use(first.session_id) is first
    assert (len(sessions), sessions.partitions, sessions.evictions) == (2, 2, 1)
    assert sessions.create([], by_id=False) is None


async def test_partitions_that_do_not_exist_or_may_not_be_read_are_not_remembered(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    broker = await start()
    await broker.topics.create("t", PARTITIONS)
    client = await connect(broker)
    for topic, partition in (("none", 0), ("t", PARTITIONS), ("t", -1)):
        consumer = Consumer(client, topic)
        consumer.add(partition)
        response = await consumer.fetch()
        assert (response.session_id, len(response.responses)) == (0, 1)
    consumer = Consumer(client, "t")
    consumer.add(0)
    await consumer.fetch()
    assert consumer.session_id
    consumer.add(PARTITIONS)
    assert (await consumer.fetch()).session_id == 0
    assert broker.metrics.registry.get_sample_value("kmr_broker_fetch_session_partitions") == 0
    rules = tmp_path / "acls.json"
    write_rules(rules, [])
    denying = await start(data_dir=tmp_path / "other", acl_file=rules)
    await denying.topics.create("t", PARTITIONS)
    consumer = Consumer(await connect(denying), "t")
    consumer.add(0)
    assert (await consumer.fetch()).session_id == 0


def test_the_partitions_of_all_sessions_together_are_limited() -> None:
    now = 0.0
    sessions = FetchSessions(10, 5, clock=lambda: now)

    def create(partitions: int) -> FetchSession | None:
        some = [FetchPartition(each, -1, 0, 1) for each in range(partitions)]
        return sessions.create([("t", some)], by_id=False)

    assert create(6) is None
    assert create(3) is not None
    growing = create(2)
    assert growing is not None
    assert create(1) is None
    growing.update([("u", [FetchPartition(0, -1, 0, 1)])], ())
    assert not sessions.make_room()
    now = 121.0
    assert sessions.make_room()
    assert (len(sessions), sessions.partitions, sessions.evictions) == (1, 3, 1)


def test_epochs_begin_again_after_the_largest() -> None:
    session = FetchSession(1, by_id=False, used_at=0.0, epoch=2**31 - 1)
    session.turn()
    assert session.epoch == 1


def test_what_was_told_is_no_news_until_it_changes_or_an_error_was_told() -> None:
    session = FetchSession(1, by_id=False, used_at=0.0)
    shown = (3, 3, 0)
    assert session.has_news("t", 0, shown)
    session.responded("t", 0, shown, has_records=False)
    assert not session.has_news("t", 0, shown)
    assert session.has_news("t", 0, (3, 2, 0))
    session.responded("t", 0, None, has_records=False)
    assert session.has_news("t", 0, shown)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("add"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("forget"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("fetch"), st.sampled_from([1, 200, 2**20])),
        st.tuples(st.just("lose a response"), st.just(2**20)),
    ),
    max_size=25,
)


async def follow(history: Sequence[tuple[str, int]]) -> None:
    with TemporaryDirectory() as directory:
        async with Broker(BrokerSettings(data_dir=Path(directory), port=0)) as broker:
            await broker.topics.create("t", PARTITIONS)
            host, _, port = broker.bootstrap_servers.rpartition(":")
            client = RawClient(*await asyncio.open_connection(host, int(port)))
            async with aclosing(_Closing(client)):
                await _follow(history, broker, Consumer(client, "t"))


class _Closing:
    def __init__(self, client: RawClient) -> None:
        self.aclose = client.close


async def _follow(history: Sequence[tuple[str, int]], broker: Broker, consumer: Consumer) -> None:
    produced: dict[int, list[bytes]] = {each: [] for each in range(PARTITIONS)}
    consumer.add(0, 1)
    for step, argument in history:
        if step == "produce":
            value = str(len(produced[argument])).encode()
            produced[argument].append(value)
            batch = bytes(build_batch([NewRecord(None, value, timestamp=0)]))
            await produce(consumer.client, batch, partition=argument)
        elif step == "add":
            consumer.add(argument, offset=len(consumer.read.get(argument, ())))
        elif step == "forget":
            consumer.forget(argument)
        else:
            epoch = consumer.epoch
            response = await consumer.fetch(argument)
            if response.error_code is not ErrorCode.none:
                consumer.session_id = consumer.epoch = 0  # as clients do
            elif step == "lose a response" and epoch:
                consumer.epoch = epoch
    for _ in range(3 * PARTITIONS + 2 * sum(map(len, produced.values()))):
        if (await consumer.fetch()).error_code is not ErrorCode.none:
            consumer.session_id = consumer.epoch = 0
    for each in consumer.positions:
        assert consumer.read[each] == produced[each]
        assert consumer.high_watermarks[each] == broker.topics.partitions[each].high_watermark


@settings(max_examples=examples(90))
@given(steps)
def test_who_applies_all_responses_knows_what_full_fetches_would_say(
    history: list[tuple[str, int]],
) -> None:
    asyncio.run(follow(history))


async def test_sessions_outlive_connections(start: Start, connect: Connect, batch: Batch) -> None:
    broker = await start()
    await broker.topics.create("t", PARTITIONS)
    consumer = Consumer(await connect(broker), "t")
    consumer.add(0)
    await consumer.fetch()
    await consumer.client.close()
    consumer.client = await connect(broker)
    await produce(consumer.client, batch(b"a"))
    assert await consumer.told() == [0]


async def test_a_session_at_rest_below_an_open_transaction_wakes_for_a_reader_of_all(
    broker: Broker, client: RawClient
) -> None:
    consumer = Consumer(client, "t")
    consumer.add(0)
    committed = {"isolation_level": 1}
    await consumer.fetch(**committed)
    producer = await client.call(
        22, 4, transactional_id="x", transaction_timeout=timedelta(seconds=60)
    )
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    topics = [{"name": "t", "partitions": [0]}]
    names = {f"v3_and_below_{name}": value for name, value in identity.items()}
    await client.call(24, 3, v3_and_below_transactional_id="x", v3_and_below_topics=topics, **names)
    record = NewRecord(None, b"a", timestamp=0)
    batch = bytes(build_batch([record], **identity, base_sequence=0, transactional=True))
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    response = await client.call(PRODUCE, 9, acks=-1, transactional_id="x", topic_data=data)
    assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
    assert await consumer.told(**committed) == [0]
    assert await consumer.told(**committed) == []
    assert consumer.read[0] == []
    assert await consumer.told(isolation_level=0) == [0]
    assert consumer.read[0] == [b"a"]


def test_so_many_fetches_without_a_session_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmr.broker.apis.records.fetch_sessions.MOST_IDLE", 2)
    sessions, memories = FetchSessions(), [dict[bytes, Any]() for _ in range(3)]
    for memory in (*memories[:2], memories[0], memories[2]):
        sessions.remember_idle(memory, "found nothing")
    assert [IDLE in memory for memory in memories] == [False, True, True]
