"""Names of topics; the coordinators' logs as topics."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker, BrokerSettings
from kmr.broker.coordinators.offset_store import OffsetKey, decode_offset, decode_offsets_key
from kmr.broker.coordinators.transaction_store import decode_transactional_id
from kmr.broker.errors import RequestError
from kmr.broker.log.records import parse_header, read_records
from kmr.broker.topics.topic import check_topic_name

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]


PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT = 0, 1, 2, 3, 8


CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 19, 20, 22, 32


OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> Any:
    await broker.topics.create("t")
    return await connect(broker)


async def commit(client: Any, offset: int) -> None:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    response = await client.call(
        OFFSET_COMMIT,
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[{"name": "t", "partitions": [partition]}],
    )
    assert response.topics[0].partitions[0].error_code is ErrorCode.none


async def listed(client: Any) -> dict[str, bool]:
    response = await client.call(METADATA, 12, topics=None)
    return {topic.name: topic.is_internal for topic in response.topics}


def fetch_request(client: Any, topic: str, offset: int = 0, wait: float = 0) -> Any:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    return client.message(
        FETCH,
        11,
        max_wait=timedelta(seconds=wait),
        min_bytes=1,
        max_bytes=2**20,
        topics=[{"topic": topic, "partitions": [partition]}],
    )


def records(response: Any) -> list[Any]:
    partition = response.responses[0].partitions[0]
    assert partition.error_code is ErrorCode.none
    data, found = memoryview(bytearray(partition.records)), []
    at = 0
    while at < len(data):
        header = parse_header(data, at)
        found += read_records(data, header)
        at = header.end
    return found


async def test_internal_topics_are_listed_once_there_is_something_in_them(client: Any) -> None:
    assert await listed(client) == {"t": False}
    await commit(client, 5)
    assert await listed(client) == {"t": False, OFFSETS: True}
    answer = await client.call(
        INIT_PRODUCER_ID,
        4,
        transactional_id="x",
        transaction_timeout=timedelta(seconds=60),
    )
    assert answer.error_code is ErrorCode.none
    assert await listed(client) == {"t": False, OFFSETS: True, TRANSACTIONS: True}
    (transaction,) = records(await client.ask(fetch_request(client, TRANSACTIONS)))
    assert decode_transactional_id(transaction.key) == "x"


async def test_an_internal_topic_has_the_same_id_after_a_restart(
    tmp_path: Path, connect: Connect
) -> None:
    ids = []
    for _ in range(2):
        async with Broker(BrokerSettings(data_dir=tmp_path / "data", port=0)) as broker:
            client = await connect(broker)
            response = await client.call(METADATA, 12, topics=[{"name": OFFSETS}])
            ids.append(response.topics[0].topic_id)
            by_id = [{"topic_id": ids[0], "name": None}]
            response = await client.call(METADATA, 12, topics=by_id)
            assert [each.name for each in response.topics] == [OFFSETS]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("fsync", ["os", "always"])
async def test_committed_offsets_can_be_read_as_they_come(
    start: Start, connect: Connect, until: Until, fsync: str
) -> None:
    broker = await start(fsync=fsync)
    await broker.topics.create("t")
    client, reader = await connect(broker), await connect(broker)
    await commit(client, 5)
    request = fetch_request(reader, OFFSETS)
    (record,) = records(await reader.ask(request))
    assert decode_offsets_key(record.key) == OffsetKey("g", "t", 0)
    assert decode_offset(record.value).offset == 5

    partition = broker.topics.partition(OFFSETS, 0)
    assert partition is not None
    poll = fetch_request(reader, OFFSETS, offset=1, wait=600)
    number = await reader.send(poll)
    await until(lambda: bool(partition.watches))
    await commit(client, 6)
    async with asyncio.timeout(60):
        (record,) = records(await reader.receive(poll, number))
    assert decode_offset(record.value).offset == 6


async def test_where_an_internal_topic_begins_and_ends_can_be_asked_for(client: Any) -> None:
    for offset in range(3):
        await commit(client, offset)
    for timestamp, expected in ((-2, 0), (-1, 3)):
        wanted = {"partition_index": 0, "timestamp": timestamp}
        topics = [{"name": OFFSETS, "partitions": [wanted]}]
        response = await client.call(LIST_OFFSETS, 7, topics=topics)
        assert response.topics[0].partitions[0].offset == expected


async def test_the_settings_of_an_internal_topic_say_that_it_is_compacted(client: Any) -> None:
    wanted = {
        "resource_type": 2,
        "resource_name": OFFSETS,
        "configuration_keys": ["cleanup.policy"],
    }
    response = await client.call(DESCRIBE_CONFIGS, 4, resources=[wanted])
    (setting,) = response.results[0].configs
    assert (setting.name, setting.value) == ("cleanup.policy", "compact")


async def test_clients_cannot_change_an_internal_topic(
    client: Any, batch: Callable[..., bytes]
) -> None:
    await commit(client, 5)
    new = {"name": OFFSETS, "num_partitions": 1, "replication_factor": 1}
    response = await client.call(CREATE_TOPICS, 7, topics=[new], timeout=timedelta(seconds=30))
    assert response.topics[0].error_code is ErrorCode.topic_already_exists
    response = await client.call(
        DELETE_TOPICS, 6, topics=[{"name": OFFSETS}], timeout=timedelta(seconds=30)
    )
    assert response.responses[0].error_code is ErrorCode.invalid_topic_exception
    data = [{"name": OFFSETS, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    response = await client.call(PRODUCE, 8, acks=-1, topic_data=data)
    assert response.responses[0].partition_responses[0].error_code is (
        ErrorCode.invalid_topic_exception
    )
    assert len(records(await client.ask(fetch_request(client, OFFSETS)))) == 1


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a/b", "a b", "ä", "__consumer_offsets"]
)
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_topic_name(name)
    assert refusal.value.code is ErrorCode.invalid_topic_exception


def test_every_name_that_kafka_allows_is_allowed() -> None:
    for name in ("a" * 249, "A.b_c-9", "...", "__mine"):
        check_topic_name(name)
